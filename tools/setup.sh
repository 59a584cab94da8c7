#!/usr/bin/env bash
# Makes .venv on a machine that has Python 3.11 or later, or nothing but a shell and uv's package.
# uv is used from the PATH, or installed into .tools. Java 17+ is found, installed, or unpacked
# into .java; without one the setup fails, and says what to do.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'penstock: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

source tools/uv.sh
source tools/java.sh

uv=$(find_uv)
if [ "${1:-}" = lock ]; then
    exec "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --group dev \
        --no-annotate --custom-compile-command "make lock" pyproject.toml -o requirements.lock
fi
if [ ! -x .venv/bin/python ]; then "$uv" venv --quiet --python '>=3.11' .venv; fi
say "installing the locked dependencies"
"$uv" pip sync --quiet --compile-bytecode --python .venv/bin/python --require-hashes requirements.lock
"$uv" pip install --quiet --python .venv/bin/python --no-deps --editable .
# Here too: where Python may not keep what it has compiled, each of the many processes would do it again.
.venv/bin/python -m compileall -q src
find_java || exit 1
