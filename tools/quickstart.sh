#!/usr/bin/env bash
# Starts the quickstart flow, sends it a few messages, shows them in their topic, and keeps running.
set -euo pipefail
cd "$(dirname "$0")/.."
penstock=.venv/bin/penstock
data=.penstock/quickstart
lines=$(mktemp)
"$penstock" run examples/quickstart.yaml --data-dir "$data" > "$lines" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server"; rm -f "$lines"' EXIT
until grep -q '^ready' "$lines"; do
    kill -0 "$server" 2>/dev/null || exit 1
    sleep 0.1
done
cat "$lines"
url=http://127.0.0.1:7071
for dest in a b a; do
    .venv/bin/python - "$url/?dest=$dest" "hello from $dest" <<'PY'
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], sys.argv[2].encode()) as answer:
    print(f"POST {sys.argv[1]} -> {answer.status} {answer.read().decode()}")
PY
done
echo "In the topic quickstart.web:"
"$penstock" tail quickstart.web --data-dir "$data" --limit 5
echo "Running until Ctrl-C. In another terminal:"
echo "  curl -d 'hello' '$url/?dest=a'"
echo "  $penstock tail quickstart.web --follow --data-dir $data"
wait "$server"
