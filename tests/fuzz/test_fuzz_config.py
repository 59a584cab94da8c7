"""A bounded, seeded run of the flow file's fuzzer; and any YAML tree at all, by hypothesis."""

from __future__ import annotations

import random

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.test_definitions import FULFIL
from tests.config.test_flows import EXAMPLES, RELAY
from tests.config.test_mistakes import OTHERS, SPELLING, TYPES, WIRING
from tests.config.test_references import PLACES, WRONG_PLACES
from tests.fuzz.fuzz_config import TestOneInput

MARKED = [case[0] for cases in (SPELLING, TYPES, WIRING, OTHERS) for case in cases.values()]
CORPUS = (
    [path.read_bytes() for path in EXAMPLES]
    + [text.encode() for text in RELAY.values()]
    + [text.replace("«", "").encode() for text in MARKED]
    + [t.replace("secret}", "s}").encode() for t in (*PLACES.values(), *WRONG_PLACES.values())]
    + [FULFIL.encode()]
)
FRAGMENTS = [
    *(
        b"{} [] : - , & * ! | > ' \" # % @ ` ~ ? ${ } ${file:s} ${A} ${B} $${ <<: *a &a --- ...".split()
    ),
    b"\n",
    b"\n  ",
    b"\t",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    "\u2028".encode(),
    "\x85".encode(),
    b"module: ",
    b"params: ",
    b"connect: ",
    b"links: ",
    b"routes: ",
    b"components:",
    b"pipeline:",
    b"system:",
    b"receiver.tcp",
    b"peer.http",
    b"link.router",
    b"sink.dumper",
    b"9" * 30,
    b"1e999",
    b"0x7f",
    b"!!binary ",
    b"!!python/name:os.system ",
]


def mutated(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(CORPUS))
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(5):
            case 0:
                data[at:at] = rng.choice(FRAGMENTS)
            case 1:
                del data[at : at + rng.randrange(1, 12)]
            case 2 if at < len(data):
                data[at] = rng.randrange(256)
            case 3:
                other = rng.choice(CORPUS)
                start = rng.randrange(len(other))
                data[at:at] = other[start : start + rng.randrange(60)]
            case _:
                lines = bytes(data).split(b"\n")
                rng.shuffle(lines)
                data = bytearray(b"\n".join(lines))
    return bytes(data)


sample = mutated


def test_the_corpus_itself_holds():
    for data in CORPUS:
        TestOneInput(data)


@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_give_a_flow_or_problems(seed):
    rng = random.Random(seed)
    for _ in range(400):
        TestOneInput(mutated(rng))


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_random_bytes_give_problems(data):
    TestOneInput(data)


WORDS = st.sampled_from(
    [
        "components",
        "pipeline",
        "system",
        "topics",
        "workflows",
        "name",
        "module",
        "params",
        "plugin",
        "constructor",
        "codec",
        "topic",
        "interceptors",
        "connect",
        "links",
        "routes",
        "default",
        "bind",
        "bind_addr",
        "web",
        "out",
        "a",
        "b",
        "receiver.http",
        "receiver.tcp",
        "link.router",
        "link.multiplexer",
        "link.replicator",
        "sink.dumper",
        "peer.http",
        "lines",
        "gzip",
        "separate",
        "json",
        "routing_key",
        "replicas",
        "trigger",
        "stages",
        "after",
        "outputs",
        "${A}",
        "${file:s}",
        "${NO}",
        "x-a",
        "admin",
        "log",
        "retention",
        "kept",
        "guarantee",
        "commit",
        "atomic",
        "version",
        "actors",
        "tls",
        "cert",
        "key",
        "tokens",
        "1",
        "-1",
        ":7071",
        "true",
    ]
)
SCALARS = st.one_of(
    WORDS, st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(WORDS, inner, max_size=5)),
    max_leaves=25,
)
PIPED = st.fixed_dictionaries(
    {
        "components": st.dictionaries(
            st.sampled_from("abcdef"),
            st.fixed_dictionaries(
                {"module": WORDS}, optional={"params": st.dictionaries(WORDS, TREES, max_size=3)}
            ),
            max_size=6,
        ),
        "pipeline": st.dictionaries(
            st.sampled_from("abcdef"),
            st.dictionaries(
                st.sampled_from(["connect", "links", "routes", "default"]),
                st.one_of(
                    st.sampled_from("abcdef"),
                    st.lists(st.sampled_from("abcdef"), max_size=4),
                    st.dictionaries(WORDS, st.sampled_from("abcdef"), max_size=3),
                ),
            ),
        ),
    }
)


@given(st.one_of(st.dictionaries(WORDS, TREES, max_size=5), PIPED))
@settings(max_examples=200, deadline=None)
def test_any_tree_gives_a_flow_or_problems(tree):
    TestOneInput(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))


@given(
    count=st.integers(1, 30),
    wires=st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60),
)
@settings(max_examples=100, deadline=None)
def test_any_graph_is_ordered_or_refused(count, wires):
    kinds = ["receiver.topic", "link.multiplexer", "link.multiplexer", "sink.dumper", "peer.http"]
    components = {}
    for number in range(count):
        module = kinds[number % len(kinds)]
        params: dict[str, object] = {"topic": f"t{number}"} if module == "receiver.topic" else {}
        if module == "peer.http":
            params = {"bind": 9000 + number}
        components[f"c{number}"] = {"module": module, "params": params}
    pipeline: dict[str, dict[str, list[str]]] = {}
    for one, other in wires:
        if one < count and other < count:
            links = pipeline.setdefault(f"c{one}", {"links": []})["links"]
            if f"c{other}" not in links:
                links.append(f"c{other}")
    TestOneInput(yaml.safe_dump({"components": components, "pipeline": pipeline}).encode())
