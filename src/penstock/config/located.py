"""YAML as a tree in which everything knows its place.

The tree is built from the parser's events, without recursion, so that no input can exhaust the stack;
size, depth and the number of nodes that aliases stand for are bounded (see `limits`). Scalars stay
text: what type a value has is for the model that reads it to say. Keys are always text.

What is not taken: tags, several documents, keys that are not text, a key twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

from penstock.config.problems import Mark, Problems, quoted
from penstock.limits import MAX_FLOW_DEPTH, MAX_FLOW_FILE_BYTES, MAX_FLOW_NODES

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_TEXT_TAG = "tag:yaml.org,2002:str"


@dataclass(slots=True)
class Scalar:
    """`plain` text was written without quotes (or came from a variable): it may mean a number."""

    mark: Mark
    text: str
    plain: bool = True
    secret: bool = False
    broken: bool = False  # it had a reference that could not be followed; that has been reported

    @property
    def is_null(self) -> bool:
        return self.plain and self.text in _NULLS


@dataclass(slots=True)
class Sequence:
    mark: Mark
    items: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class Entry:
    key: Scalar
    value: Node


@dataclass(slots=True)
class Mapping:
    mark: Mark
    entries: dict[str, Entry] = field(default_factory=dict)

    def get(self, key: str) -> Node | None:
        entry = self.entries.get(key)
        return entry.value if entry else None

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())


Node: TypeAlias = Scalar | Sequence | Mapping


def is_null(node: Node | None) -> bool:
    return node is None or (isinstance(node, Scalar) and node.is_null)


def describe(node: Node) -> str:
    """What was found, for a message. A secret is never shown."""
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return "a list"
    if node.secret:
        return "a secret"
    return "nothing" if node.is_null else quoted(node.text)


def decode(data: bytes, problems: Problems) -> str | None:
    """The file's text, or None and a problem."""
    if len(data) > MAX_FLOW_FILE_BYTES:
        problems.add(
            Mark(), f"the file has {len(data)} bytes; a flow file has at most {MAX_FLOW_FILE_BYTES}"
        )
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.add(_mark_at(data, error.start), "the file is not UTF-8", "save it as UTF-8")
        return None
    if "\0" in text:
        problems.add(_mark_at(data, data.index(0)), "the file holds a NUL byte; is it a text file?")
        return None
    return text


def _mark_at(data: bytes, position: int) -> Mark:
    before = data[:position]
    start = before.rfind(b"\n") + 1
    column = len(before[start:].decode("utf-8", "replace")) + 1
    return Mark(before.count(b"\n") + 1, column)


def parse(text: str, problems: Problems) -> Node | None:
    """The tree, or None and a problem. Duplicate keys are problems that do not stop it."""
    try:
        return _Builder(problems).build(text)
    except _Refused as refused:
        problems.add(refused.mark, str(refused), refused.hint)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Mark(mark.line + 1, mark.column + 1) if mark else Mark()
        problems.add(place, f"not YAML: {_plainly(error.problem)}", _yaml_hint(text, place))
    except yaml.YAMLError as error:
        problems.add(_unprintable(text), f"not YAML: {_plainly(getattr(error, 'reason', None))}")
    return None


def _plainly(reason: object) -> str:
    text = str(reason or "it cannot be read").replace("\n", " ")
    return text[:200]


def _yaml_hint(text: str, mark: Mark) -> str | None:
    lines = text.splitlines()
    line = lines[mark.line - 1] if 0 < mark.line <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces, not tabs"
    if "${" in line and "{" in line.replace("${", ""):
        return 'inside { } put quotes around a reference: "${NAME}"'
    if re.search(r"[{,].*:\s+:[0-9]", line):
        return 'inside { } put quotes around an address: ":7071"'
    return None


def _unprintable(text: str) -> Mark:
    """Where the character is that YAML does not allow; its reader gives no line."""
    line = column = 1
    for char in text:
        if not (char.isprintable() or char in "\t\n\r\x85"):
            return Mark(line, column)
        line, column = (line + 1, 1) if char == "\n" else (line, column + 1)
    return Mark()


class _Refused(Exception):
    def __init__(self, mark: Mark, message: str, hint: str | None = None) -> None:
        self.mark = mark
        self.hint = hint
        super().__init__(message)


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet."""

    node: Sequence | Mapping
    anchor: str | None
    key: Scalar | None = None  # of a mapping: the key whose value comes next
    merges: list[tuple[Scalar, Node]] = field(default_factory=list)
    nodes: int = 1
    height: int = 1


@dataclass(slots=True)
class _Built:
    node: Node
    nodes: int  # after aliases are expanded
    height: int


class _Builder:
    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._open: list[_Open] = []
        self._anchors: dict[str, _Built | None] = {}  # None: begun and not ended
        self._root: Node | None = None

    def build(self, text: str) -> Node | None:
        documents = 0
        for event in yaml.parse(text, Loader=_Loader):
            mark = _mark(event)
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise _Refused(mark, "a second document begins here; a flow is one document")
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event, mark)
            elif isinstance(event, yaml.ScalarEvent):
                self._scalar(event, mark)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event, mark)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._end()
        return self._root

    def _alias(self, event: yaml.AliasEvent, mark: Mark) -> None:
        name = str(event.anchor)
        if name not in self._anchors:
            raise _Refused(mark, f"there is no anchor {quoted('&' + name)} before this")
        built = self._anchors[name]
        if built is None:
            raise _Refused(mark, f"the alias {quoted('*' + name)} is inside its own anchor")
        self._place(built, mark)

    def _scalar(self, event: yaml.ScalarEvent, mark: Mark) -> None:
        _refuse_tag(event.tag, mark)
        # libyaml and the parser in Python name the plain style differently.
        plain = event.style in (None, "") and event.tag != _TEXT_TAG
        built = _Built(Scalar(mark, event.value, plain), 1, 1)
        if event.anchor:
            self._anchors[event.anchor] = built
        self._place(built, mark)

    def _begin(self, event: yaml.CollectionStartEvent, mark: Mark) -> None:
        _refuse_tag(event.tag, mark)
        if len(self._open) >= MAX_FLOW_DEPTH:
            raise _Refused(mark, f"nested deeper than {MAX_FLOW_DEPTH} levels")
        if event.anchor:
            self._anchors[event.anchor] = None
        is_list = isinstance(event, yaml.SequenceStartEvent)
        self._open.append(_Open(Sequence(mark) if is_list else Mapping(mark), event.anchor))

    def _end(self) -> None:
        done = self._open.pop()
        if isinstance(done.node, Mapping):
            self._merge(done.node, done.merges)
        built = _Built(done.node, done.nodes, done.height)
        if done.anchor:
            self._anchors[done.anchor] = built
        self._place(built, done.node.mark)

    def _place(self, built: _Built, mark: Mark) -> None:
        """Put a finished node where it belongs: under the collection that is open, or at the root."""
        if not self._open:
            self._root = built.node
            return
        parent = self._open[-1]
        parent.nodes += built.nodes
        parent.height = max(parent.height, built.height + 1)
        if sum(one.nodes for one in self._open) > MAX_FLOW_NODES:
            raise _Refused(mark, f"more than {MAX_FLOW_NODES} values, aliases counted")
        if len(self._open) + built.height > MAX_FLOW_DEPTH + 1:
            raise _Refused(mark, f"nested deeper than {MAX_FLOW_DEPTH} levels, aliases counted")
        if isinstance(parent.node, Sequence):
            parent.node.items.append(built.node)
        elif parent.key is None:
            if not isinstance(built.node, Scalar):
                raise _Refused(mark, f"a key is text, not {describe(built.node)}")
            # An alias as key has the place of the alias, not of its anchor.
            parent.key = Scalar(mark, built.node.text, built.node.plain)
        else:
            self._add(parent, parent.key, built.node)
            parent.key = None

    def _add(self, parent: _Open, key: Scalar, value: Node) -> None:
        assert isinstance(parent.node, Mapping)
        if key.plain and key.text == "<<":
            parent.merges.append((key, value))
            return
        first = parent.node.entries.get(key.text)
        if first is not None:
            line = first.key.mark.line
            self._problems.add(
                key.mark, f"{quoted(key.text)} is given twice; the first is on line {line}"
            )
            return
        parent.node.entries[key.text] = Entry(key, value)

    def _merge(self, target: Mapping, merges: list[tuple[Scalar, Node]]) -> None:
        """`<<: *defaults`: keys that the mapping has itself win, then earlier ones."""
        for key, value in merges:
            for source in value.items if isinstance(value, Sequence) else [value]:
                if not isinstance(source, Mapping):
                    raise _Refused(key.mark, f"`<<` takes mappings, found {describe(source)}")
                for entry in source:
                    target.entries.setdefault(entry.key.text, entry)


def _mark(event: yaml.Event) -> Mark:
    assert event.start_mark is not None
    return Mark(event.start_mark.line + 1, event.start_mark.column + 1)


def _refuse_tag(tag: str | None, mark: Mark) -> None:
    if tag and tag != "!" and not tag.startswith("tag:yaml.org,2002:"):
        raise _Refused(mark, f"tags have no meaning here: {quoted(tag)}", "leave it out")
    if tag and tag.startswith("tag:yaml.org,2002:python"):
        raise _Refused(mark, f"tags have no meaning here: {quoted(tag)}", "leave it out")
