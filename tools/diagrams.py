"""Puts the state diagrams of the connector protocol into its reference page, from the tables.

python tools/diagrams.py            write the page anew
python tools/diagrams.py --check    fail if it is not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from penstock.connector.diagrams import mermaid, rows
from penstock.connector.states import TABLES

PAGE = Path(__file__).parents[1] / "docs/reference/connector-protocol.md"
_PART = re.compile(r"(<!-- states: ([a-z ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def drawn(page: str) -> str:
    """The page with every part between `<!-- states: NAME -->` and `<!-- end -->` made anew."""
    found: set[str] = set()

    def draw(match: re.Match[str]) -> str:
        name = match[2]
        found.add(name)
        table = TABLES[name]
        return f"{match[1]}\n```mermaid\n{mermaid(table)}\n```\n\n{rows(table)}\n\n{match[3]}"

    page = _PART.sub(draw, page)
    missing = set(TABLES) - found
    assert not missing, f"{PAGE} has no place for: {', '.join(sorted(missing))}"
    return page


def main() -> int:
    page = PAGE.read_text()
    if "--check" in sys.argv[1:]:
        return 0 if drawn(page) == page else 1
    PAGE.write_text(drawn(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
