#!/usr/bin/env bash
# Makes .venv on a machine that has Python 3.11 or later, or nothing but a shell and uv's package.
# uv is used from the PATH, or installed into .tools. Java 17+ is found, or unpacked into .java.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'penstock: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

find_uv() {
    if command -v uv >/dev/null; then command -v uv; return; fi
    if [ ! -x .tools/bin/uv ]; then
        command -v python3 >/dev/null || die "Python 3.11 or later is needed (on Debian: apt-get install python3 python3-venv)"
        say "installing uv into .tools"
        python3 -m venv .tools >&2 || die "python3 -m venv failed (on Debian: apt-get install python3-venv)"
        .tools/bin/python -m pip install --quiet uv >&2
    fi
    echo .tools/bin/uv
}

java_major() { "$1" -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1; }

find_java() {
    local java
    for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" .java/bin/java; do
        if [ -n "$java" ] && [ -x "$java" ] && [ "$(java_major "$java")" -ge 17 ] 2>/dev/null; then
            return
        fi
    done
    command -v apt-get >/dev/null || { say "no Java 17 or later found; install one before running flows on Spark"; return; }
    if [ "$(id -u)" = 0 ]; then
        say "installing Java 17"
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless; } >/dev/null \
            || say "Java could not be installed; flows will need one (17 or later)"
        return
    fi
    say "unpacking Java 17 into .java"
    local packages; packages=$(mktemp -d)
    ( cd "$packages" && apt-get download -qq openjdk-17-jre-headless && dpkg -x openjdk-17-*.deb . ) >/dev/null 2>&1 \
        && cp -r "$packages"/usr/lib/jvm/java-17-* .java \
        || say "Java could not be unpacked; flows will need one (17 or later)"
    rm -rf "$packages"
}

uv=$(find_uv)
if [ "${1:-}" = lock ]; then
    exec "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --group dev \
        --no-annotate --custom-compile-command "make lock" pyproject.toml -o requirements.lock
fi
if [ ! -x .venv/bin/python ]; then "$uv" venv --quiet --python '>=3.11' .venv; fi
say "installing the locked dependencies"
"$uv" pip sync --quiet --python .venv/bin/python --require-hashes requirements.lock
"$uv" pip install --quiet --python .venv/bin/python --no-deps --editable .
find_java
