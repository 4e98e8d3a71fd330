#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The page of a server of two ranks, used in headless Chromium and photographed into build/page.
# usage: scripts/e2e/page.sh [path of the signalbox program]
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/src/signalbox/cli/signalbox}
key=a-key-of-the-test
model=models/tiny-qwen3.5-moe-mxfp4
out=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$out"' EXIT
fail() { echo "e2e: $*" >&2; exit 1; }

"$program" serve $model --tp 2 --ep 2 --moe-a2a-backend mori --speculative-algorithm mtp --port 0 \
  --api-key "$key" >"$out/log" 2>&1 &
server=$!
url=
for _ in $(seq 300); do
  url=$(grep -om1 'http://127.0.0.1:[0-9]*' "$out/log" || true)
  [ -z "$url" ] || break
  kill -0 $server 2>/dev/null || fail "no server: $(cat "$out/log")"
  sleep 0.1
done
[ -n "$url" ] || fail "no address: $(cat "$out/log")"

scripts/e2e/page_driver.py "$url" $model build/page "$key" || fail "$(cat "$out/log")"
kill $server
wait $server || fail "the server ended with $?: $(cat "$out/log")"
server=
echo "e2e page: all holds"
