"""`python -m penstock.testing.engine`: one run of a flow that is to crash, in a process of its own.

Given the work, pickled, on stdin; says on stdout why it could not be carried through, if it could not.
"""

from __future__ import annotations

import os
import pickle
import sys

from penstock import logs
from penstock.errors import PenstockError
from penstock.testing.runner import FlowRunner, carry_through


def main() -> int:
    logs.configure("error", "auto", process="engine")
    work = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the process that started this one
    # Whatever else is written belongs to the log.
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        said, code = carry_through(work, FlowRunner().session(work.flow)), 0
    except PenstockError as error:
        said, code = str(error), 1
    os.write(answer, (said or "").encode())
    return code


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # Spark's threads may hang on to the process
