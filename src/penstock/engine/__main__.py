"""`python -m penstock.engine --control FD`: started by the supervisor, never by hand."""

from __future__ import annotations

import asyncio
import sys

from penstock.engine.program import serve


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] != "--control" or not sys.argv[2].isdigit():
        print("penstock: the engine is started by `penstock run`", file=sys.stderr)
        return 2
    return asyncio.run(serve(int(sys.argv[2])))


if __name__ == "__main__":
    sys.exit(main())
