#!/usr/bin/env bash
# Starts the quickstart flow, sends it a few messages, shows what became of them, and keeps running.
set -euo pipefail
cd "$(dirname "$0")/.."
penstock=.venv/bin/penstock
lines=$(mktemp)
echo "Starting examples/quickstart.yaml: HTTP, a router, two files. Spark takes some seconds to start."
# In a process group of its own: it is told once to stop, by the trap. A Ctrl-C that reached it as well would be its
# second signal, which kills at once.
set -m
"$penstock" run examples/quickstart.yaml --no-view > "$lines" &
server=$!
set +m
trap 'kill "$server" 2>/dev/null; wait "$server"; rm -f "$lines"' EXIT
until grep -q '^ready' "$lines"; do
    kill -0 "$server" 2>/dev/null || exit 1
    sleep 0.1
done
cat "$lines"
url=http://$(sed -n 's/^ready.* web=\([^ ]*\).*/\1/p' "$lines")
.venv/bin/python - "$url" <<'PY'
import json, sys, urllib.error, urllib.request

[url] = sys.argv[1:]
for dest in ("a", "b", "a", "nowhere"):
    try:
        answer = urllib.request.urlopen(f"{url}/?dest={dest}&sync=true", f"hello from {dest}".encode())
    except urllib.error.HTTPError as error:  # an answer too: its receipt says what went wrong
        answer = error
    with answer:
        receipt = json.loads(answer.read())
    told = f"{receipt['status']} {receipt.get('reason', '')}".rstrip()
    print(f"POST /?dest={dest}&sync=true -> {answer.code} {told} ({receipt.get('id', 'not stored')})")
PY
echo "In .penstock/a.out:"
tail -n 2 .penstock/a.out
echo "Dead letters:"
"$penstock" deadletter list quickstart
echo "Running until Ctrl-C. In another terminal, in this folder:"
echo "  source .venv/bin/activate"
echo "  curl -d 'hello' '$url/?dest=a&sync=true'; cat .penstock/a.out"
echo "  penstock tail quickstart.web --follow"
wait "$server"
