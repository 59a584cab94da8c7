# Finding uv, or getting it: for tools/setup.sh, which runs in the clone's folder and has `say` and `die`.
# shellcheck shell=bash

# Debian's Python comes without what makes an environment.
make_venv() {
    if python3 -m venv "$1" >/dev/null 2>&1; then return; fi
    rm -rf "$1"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "installing python3-venv"
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv; } >/dev/null || true
    fi
    python3 -m venv "$1" >&2 || die "python3 -m venv failed (on Debian: apt-get install python3 python3-venv)"
}

find_uv() {
    if command -v uv >/dev/null; then command -v uv; return; fi
    if [ ! -x .tools/bin/uv ]; then
        command -v python3 >/dev/null || [ "$(id -u)" = 0 ] || die "Python 3.11 or later is needed (on Debian: apt-get install python3 python3-venv)"
        say "installing uv into .tools"
        make_venv .tools
        .tools/bin/python -m pip install --quiet uv >&2
    fi
    echo .tools/bin/uv
}
