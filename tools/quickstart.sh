#!/usr/bin/env bash
# Starts the quickstart flow, sends it a few messages, shows what became of them, and keeps running.
set -euo pipefail
cd "$(dirname "$0")/.."
penstock=.venv/bin/penstock
data=.penstock/quickstart
mkdir -p "$data"
lines=$(mktemp)
echo "Starting examples/quickstart.yaml: HTTP, a router, two files. Spark takes some seconds to start."
"$penstock" run examples/quickstart.yaml --data-dir "$data" --no-view > "$lines" &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server"; rm -f "$lines"' EXIT
until grep -q '^ready' "$lines"; do
    kill -0 "$server" 2>/dev/null || exit 1
    sleep 0.1
done
cat "$lines"
url=http://127.0.0.1:7071
.venv/bin/python - "$url" "$data" <<'PY'
import json, sys, time, urllib.request

sys.path.insert(0, "src")
from penstock.flow.receipts import Receipts
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName

url, data = sys.argv[1:]
begin = EmbeddedLog(data).describe(TopicName.parse("quickstart.web")).partitions[0].end
ids = []
for dest in ("a", "b", "a", "nowhere"):
    with urllib.request.urlopen(f"{url}/?dest={dest}", f"hello from {dest}".encode()) as answer:
        told = json.loads(answer.read())
        ids.append(told["id"])
        print(f"POST /?dest={dest:8} -> {answer.status} {told['status']}: on disk as {told['id']}")
receipts = Receipts(data)
while receipts.frontier("quickstart.web", 0) < begin + len(ids):
    time.sleep(0.05)
for offset, event in enumerate(ids, begin):
    receipt = receipts.find("quickstart.web", 0, offset)
    print(f"receipt of {event}: {receipt.status} {receipt.reason}".rstrip())
PY
echo "In .penstock/a.out:"
tail -n 2 .penstock/a.out
echo "Dead letters:"
"$penstock" deadletter list quickstart --data-dir "$data"
echo "Running until Ctrl-C. In another terminal:"
echo "  curl -d 'hello' '$url/?dest=a'; cat .penstock/a.out"
echo "  $penstock tail quickstart.web --follow --data-dir $data"
wait "$server"
