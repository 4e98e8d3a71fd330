#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Launch lines of other engines start both bundled models: nothing is dropped in silence, and answers come.
# usage: scripts/e2e/launch_lines.sh [path of the signalbox program]
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/src/signalbox/cli/signalbox}
out=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$out"' EXIT
fail() { echo "e2e: $*" >&2; cat "$out/err" >&2; exit 1; }

line=(--trust-remote-code --tp 2 --ep-size 2 --moe-a2a-backend mori --attention-backend triton --dtype bfloat16
  --kv-cache-dtype fp8_e4m3 --mem-fraction-static 0.85 --chunked-prefill-size 2048 --max-running-requests 256
  --cuda-graph-max-bs-decode 256 --host 127.0.0.1 --port 0 --disable-radix-cache)
drafts=(--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1
  --speculative-num-draft-tokens 4)

starts() {  # starts MODEL FLAG...: until it is ready; then it answers, and drains
  local model=$1 url=''
  shift
  "$program" serve --model-path "$model" "$@" >"$out/log" 2>"$out/err" &
  server=$!
  for _ in $(seq 600); do
    [ -n "$url" ] || url=$(grep -ohE 'http://127\.0\.0\.1:[0-9]+' "$out/log" "$out/err" | head -n 1 || true)
    [ -n "$url" ] && curl -sf -o "$out/ready" "$url/ready" && break
    kill -0 $server 2>/dev/null || fail "ended early: $model $*"
    sleep 0.1
  done
  for flag in --trust-remote-code '--attention-backend triton' '--dtype bfloat16' --cuda-graph-max-bs; do
    [ "$(grep -c -- "note: $flag.* changes nothing" "$out/err")" = 1 ] || fail "not one note about $flag"
  done
  curl -sf "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{"model": "default", "max_tokens": 512,
    "temperature": 0, "messages": [{"role": "user",
    "content": "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"}]}' >"$out/answer" \
    || fail "no answer: $model $*"
  grep -q 19 "$out/answer" || fail "no 19 in $(cat "$out/answer")"
  kill -TERM $server
  wait $server || fail "exit $? after SIGTERM"
  server=
}

qwen=models/tiny-qwen3.5-moe-mxfp4
kimi=models/tiny-kimi-k3-mxfp4
starts $kimi "${line[@]}" --reasoning-parser kimi_k3 --tool-call-parser kimi_k3
starts $qwen "${line[@]}" --reasoning-parser qwen3 --tool-call-parser qwen3_coder
starts $qwen "${line[@]}" "${drafts[@]}"

refused() {  # refused PART MODEL FLAG...
  local part=$1 model=$2 code=0
  shift 2
  "$program" serve --model-path "$model" "$@" >"$out/log" 2>"$out/err" || code=$?
  [ "$code" = 3 ] || fail "exit $code instead of 3: $model $*"
  grep -q "$part" "$out/err" || fail "no reason '$part'"
}
refused 'no draft head' $kimi "${line[@]}" "${drafts[@]}"
refused 'does not fit what the model writes' $qwen "${line[@]}" --reasoning-parser kimi_k3
refused 'experts are not moved' $qwen "${line[@]}" --enable-eplb
echo "e2e launch lines: all hold"
