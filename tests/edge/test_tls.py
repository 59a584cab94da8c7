"""TLS and mutual TLS in front of `receiver.http` and `receiver.tcp`, with real certificates."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.edge.listening import tls_context
from penstock.errors import ConfigError
from penstock.peers.options import TlsServerOptions
from tests.edge.conftest import Edge
from tests.edge.http_client import post, read_all, request

Start = Callable[..., Edge]


class Papers:
    """An authority, a certificate for 127.0.0.1 that it signed, and one for a client."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.stranger = trustme.CA()
        self.cert, self.key, self.ca = (str(folder / name) for name in ("cert", "key", "ca"))
        server = self.authority.issue_cert("127.0.0.1")
        server.private_key_pem.write_to_path(self.key)
        for number, blob in enumerate(server.cert_chain_pems):
            blob.write_to_path(self.cert, append=number > 0)
        self.authority.cert_pem.write_to_path(self.ca)

    def client(self, known_by: trustme.CA | None = None) -> ssl.SSLContext:
        """A client that trusts the authority, and shows a certificate of `known_by`."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if known_by is not None:
            known_by.issue_cert("client@example.org").configure_cert(context)
        return context


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(params=["receiver.http", "receiver.tcp"], scope="module")
def module(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def options(papers: Papers, **more: Any) -> dict[str, Any]:
    return {"bind": "127.0.0.1:0", "tls": {"cert": papers.cert, "key": papers.key, **more}}


def start(folder: Path, module: str, given: dict[str, Any]) -> Edge:
    if module == "receiver.tcp":
        return Edge(folder, module, {**given, "reply": "status"}, interceptors=[("lines", {})])
    return Edge(folder, module, given)


@pytest.fixture(scope="module")
def mutual(module: str, papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    edge = start(tmp_path_factory.mktemp("mutual"), module, options(papers, client_ca=papers.ca))
    yield edge
    edge.kill()
    assert "Traceback" not in edge.log_path.read_text()


def send(edge: Edge, module: str, context: ssl.SSLContext, payload: bytes) -> bytes:
    """The first line that comes back for one message."""
    with (
        socket.create_connection(edge.host_port, timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(payload + b"\n" if module == "receiver.tcp" else request(payload))
        return sock.makefile("rb").readline()


ACCEPTED = (b"HTTP/1.1 202 ", b"new in/")


def test_who_shows_the_right_certificate_is_served(
    mutual: Edge, module: str, papers: Papers
) -> None:
    mutual.begin_anew()
    answer = send(mutual, module, papers.client(papers.authority), b"hello")
    assert answer.startswith(ACCEPTED)
    assert mutual.payloads() == [b"hello"]


def test_who_shows_no_certificate_or_a_stranger_s_is_not(
    mutual: Edge, module: str, papers: Papers
) -> None:
    mutual.begin_anew()
    for known_by in (None, papers.stranger):
        try:
            answer = send(mutual, module, papers.client(known_by), b"hello")
        except (ssl.SSLError, ConnectionError):
            answer = b""
        assert answer == b""
    assert mutual.payloads() == []
    assert send(mutual, module, papers.client(papers.authority), b"next").startswith(ACCEPTED)


def test_a_client_that_does_not_trust_the_authority_hangs_up(
    mutual: Edge, module: str, papers: Papers
) -> None:
    context = ssl.create_default_context()
    papers.stranger.configure_trust(context)
    with pytest.raises(ssl.SSLCertVerificationError):
        send(mutual, module, context, b"hello")
    assert send(mutual, module, papers.client(papers.authority), b"next").startswith(ACCEPTED)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_old_versions_of_tls_are_refused(mutual: Edge, module: str, papers: Papers) -> None:
    context = papers.client(papers.authority)
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    # It is the server that ends it; whether it says why is up to its library.
    with pytest.raises(ssl.SSLError, match=r"alert protocol version|EOF occurred"):
        send(mutual, module, context, b"hello")
    context = papers.client(papers.authority)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    assert send(mutual, module, context, b"next").startswith(ACCEPTED)


def test_plain_text_to_a_tls_port_is_not_taken(mutual: Edge, module: str, papers: Papers) -> None:
    mutual.begin_anew()
    with mutual.connect() as sock:
        sock.sendall(request(b"hello") + b"\n")
        try:
            answer = read_all(sock)
        except ConnectionResetError:
            answer = b""
    assert not answer.startswith(ACCEPTED)
    assert mutual.payloads() == []
    assert send(mutual, module, papers.client(papers.authority), b"next").startswith(ACCEPTED)


def test_half_a_handshake_does_not_hold_a_connection_for_ever(edge: Start, papers: Papers) -> None:
    web = edge("receiver.http", {**options(papers), "header_timeout_s": 0.5})
    with web.connect() as sock:
        sock.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionResetError):
            assert read_all(sock) == b""
    client = http.client.HTTPSConnection(*web.host_port, timeout=30, context=papers.client())
    assert post(client, b"x")[0] == 202


def test_a_client_needs_no_certificate_where_none_is_asked_for(edge: Start, papers: Papers) -> None:
    web = edge("receiver.http", options(papers, min_version="1.3"))
    client = http.client.HTTPSConnection(*web.host_port, timeout=30, context=papers.client())
    for number in range(3):
        assert post(client, b"%d" % number)[0] == 202
    old = papers.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        post(http.client.HTTPSConnection(*web.host_port, timeout=30, context=old), b"x")
    big = b"".join(b"%d\n" % number for number in range(200_000))
    assert post(client, big, content_type="application/x-ndjson")[1]["count"] == 200_000
    assert len(web.payloads()) == 200_003
    assert web.stop() == 0


def test_pipelined_requests_over_tls_are_answered_in_order(edge: Start, papers: Papers) -> None:
    web = edge("receiver.http", options(papers))
    count = 400
    with (
        web.connect() as plain,
        papers.client().wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall(b"".join(request(b"%d" % n) for n in range(count - 1)))
        sock.sendall(request(b"%d" % (count - 1), "connection: close"))
        answer = read_all(sock)
    assert answer.count(b"HTTP/1.1 202 ") == count
    assert web.payloads() == [b"%d" % n for n in range(count)]


# --- Configuration -----------------------------------------------------------------------------


def refusal(**changed: Any) -> str:
    with pytest.raises(ConfigError) as found:
        tls_context("web", TlsServerOptions.model_validate(changed))
    return str(found.value)


def test_a_file_that_is_missing_or_no_key_is_named(papers: Papers, tmp_path: Path) -> None:
    cert, key = papers.cert, papers.key
    missing = str(tmp_path / "missing")
    assert refusal(cert=missing, key=key) == (
        f"web: tls.cert {missing} cannot be read: No such file or directory"
    )
    assert refusal(cert=cert, key=missing) == (
        f"web: tls.key {missing} cannot be read: No such file or directory"
    )
    assert "tls.client_ca" in refusal(cert=cert, key=key, client_ca=missing)
    assert "Is a directory" in refusal(cert=cert, key=str(tmp_path))
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("no key")
    assert "do not make a pair that can be used" in refusal(cert=cert, key=str(nonsense))
    assert "holds no certificates" in refusal(cert=cert, key=key, client_ca=str(nonsense))


def test_a_key_of_another_certificate_is_told(papers: Papers, tmp_path: Path) -> None:
    other = tmp_path / "other"
    papers.authority.issue_cert("127.0.0.1").private_key_pem.write_to_path(str(other))
    assert "the key is another certificate's" in refusal(cert=papers.cert, key=str(other))


def test_a_key_is_never_shown(papers: Papers) -> None:
    content = Path(papers.key).read_text()
    reason = refusal(cert=papers.cert, key=content)
    assert "PRIVATE KEY" not in reason
    assert content.splitlines()[1] not in reason


def test_a_key_with_a_password_needs_it(papers: Papers, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as to

    plain = to.load_pem_private_key(Path(papers.key).read_bytes(), None)
    locked = tmp_path / "locked"
    locked.write_bytes(
        plain.private_bytes(
            to.Encoding.PEM,
            to.PrivateFormat.PKCS8,
            to.BestAvailableEncryption(b"open sesame"),
        )
    )
    given = {"cert": papers.cert, "key": str(locked)}
    tls_context("web", TlsServerOptions.model_validate({**given, "key_password": "open sesame"}))
    assert "do not make a pair" in refusal(**given)
    reason = refusal(**given, key_password="guess")
    assert "do not make a pair" in reason
    assert "guess" not in reason
