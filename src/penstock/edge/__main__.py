"""`python -m penstock.edge --control FD`: started by the supervisor, never by hand."""

from __future__ import annotations

import sys

import uvloop

from penstock.edge.worker import serve


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] != "--control" or not sys.argv[2].isdigit():
        print("penstock: edge processes are started by `penstock run`", file=sys.stderr)
        return 2
    return uvloop.run(serve(int(sys.argv[2])))


if __name__ == "__main__":
    sys.exit(main())
