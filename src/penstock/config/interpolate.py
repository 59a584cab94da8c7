"""References in values: `${ENV}`, `${ENV:default}` and `${file:/path}`; `$${` is a plain `${`.

They stand in any value, whole or inside longer text, but not in keys. A value that came from a file is
a secret from then on: nothing shows it again.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping as Environment
from pathlib import Path

from penstock.config.located import Mapping, Node, Scalar, Sequence
from penstock.config.problems import Problems, quoted
from penstock.limits import MAX_FLOW_FILE_BYTES, MAX_SECRET_BYTES

_REFERENCE = re.compile(r"(\$?)\$\{([^}]*)(\}?)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def interpolate(
    root: Node, environment: Environment[str, str], folder: Path, problems: Problems
) -> None:
    """Replace every reference in the tree, in place. Relative paths begin at `folder`."""
    replacer = _Replacer(environment, folder, problems)
    seen: set[int] = set()  # aliases make nodes appear more than once
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            waiting.extend(entry.value for entry in node)
        elif isinstance(node, Sequence):
            waiting.extend(node.items)
        elif "${" in node.text:
            replacer.replace(node)


class _BadReference(Exception):
    def __init__(self, message: str, hint: str | None = None) -> None:
        self.hint = hint
        super().__init__(message)


class _Replacer:
    def __init__(
        self, environment: Environment[str, str], folder: Path, problems: Problems
    ) -> None:
        self._environment = environment
        self._folder = folder
        self._problems = problems
        self._size_bytes = 0

    def replace(self, scalar: Scalar) -> None:
        secret = False

        def value(match: re.Match[str]) -> str:
            nonlocal secret
            if match[1]:
                return match[0][1:]
            if not match[3]:
                raise _BadReference("`${` without its `}`", "write `$${` for a plain `${`")
            if match[2].startswith("file:"):
                secret = True
                return self._from_file(match[2].removeprefix("file:"))
            return self._from_environment(match[2])

        try:
            text = _REFERENCE.sub(value, scalar.text)
            # What variables hold is not bounded by the size of the file.
            self._size_bytes += len(text)
            if self._size_bytes > MAX_FLOW_FILE_BYTES:
                raise _BadReference(f"values come to more than {MAX_FLOW_FILE_BYTES} characters")
        except _BadReference as bad:
            self._problems.add(scalar.mark, str(bad), bad.hint)
            # One mistake is enough: the model must not complain of the text as well.
            scalar.broken = True
            return
        scalar.text = text
        scalar.plain = True
        scalar.secret = secret

    def _from_environment(self, reference: str) -> str:
        name, colon, default = reference.partition(":")
        if not _VARIABLE.fullmatch(name):
            raise _BadReference(
                f"{quoted('${' + reference + '}')} is not a reference",
                "use ${NAME}, ${NAME:default} or ${file:/path}; `$${` for a plain `${`",
            )
        if name in self._environment:
            return self._environment[name]
        if colon:
            return default
        close = self._problems.suggest(name, list(self._environment)[:10_000])
        raise _BadReference(
            f"the environment variable {quoted(name)} is not set",
            close or f"set it, or give a default: ${{{name}:...}}",
        )

    def _from_file(self, path: str) -> str:
        if not path or "\0" in path:
            raise _BadReference("`${file:}` names no file", "use ${file:/run/secrets/name}")
        try:
            data = _read_secret(self._folder / path)
        except OSError as error:
            raise _BadReference(
                f"the file {quoted(path)} cannot be read: {error.strerror}"
            ) from None
        except ValueError as error:
            raise _BadReference(f"the file {quoted(path)} {error}") from None
        return data


def _read_secret(path: Path) -> str:
    # Not blocking: a FIFO without a writer must not hang the loader.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("is not a regular file")
        data = file.read(MAX_SECRET_BYTES + 1)
    if len(data) > MAX_SECRET_BYTES:
        raise ValueError(f"has more than {MAX_SECRET_BYTES} bytes; a secret is smaller")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    if "\0" in text:
        raise ValueError("holds a NUL byte")
    return text.removesuffix("\n").removesuffix("\r")
