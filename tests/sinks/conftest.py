from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from penstock.peers.options import TlsClientOptions


class Authority:
    """A certificate authority, a server's context, and a client's options."""

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        self.ca = folder / "ca.pem"
        ca.cert_pem.write_to_path(str(self.ca))
        self.client_cert, self.client_key = folder / "client.pem", folder / "client.key"
        client = ca.issue_cert("penstock@example.org")
        client.cert_chain_pems[0].write_to_path(str(self.client_cert))
        client.private_key_pem.write_to_path(str(self.client_key))
        self._server = ca.issue_cert("localhost", "127.0.0.1")
        self._ca = ca

    def server(self, *, mutual: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        if mutual:
            self._ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client(self, *, mutual: bool = False) -> TlsClientOptions:
        shown = {"cert": str(self.client_cert), "key": str(self.client_key)} if mutual else {}
        return TlsClientOptions.model_validate({"ca": str(self.ca), **shown})


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))
