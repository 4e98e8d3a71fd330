#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: scripts/demo.sh [--model MODEL]      (default: the bundled Qwen3.5-MoE; models/tiny-kimi-k3-mxfp4 is the other)
# From a fresh clone to an answer: set-up, release build, the plan of two ranks that exchange rows, a server on them,
# one question over HTTP, 100 problems, and what the model is made of.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

usage="usage: scripts/demo.sh [--model MODEL]"
model=models/tiny-qwen3.5-moe-mxfp4
if (($#)); then
  [[ $# == 2 && $1 == --model ]] || die "$usage"
  model=${2%/}
fi
[[ -f $model/config.json && -f $model/eval.jsonl ]] || die "No config.json and eval.jsonl in $model. $usage"
signalbox=build/release/src/signalbox/cli/signalbox
# Two steps: the bundled Kimi-K3 has never seen a problem of one.
question="Tom has 12 apples. Then Tom buys 7 more. Then Tom loses 4. How many apples does Tom have now?"

# Shows a command as one would type it, then runs it.
show() {
  printf '$ signalbox'
  local word
  for word in "$@"; do
    if [[ $word == *' '* ]]; then printf ' "%s"' "$word"; else printf ' %s' "$word"; fi
  done
  printf '\n'
  "$signalbox" "$@" </dev/null
}

section "1. Set-up"
scripts/setup.sh build

section "2. Build (release)"
mkdir -p build/logs
log=build/logs/demo-build.log
start=$SECONDS
say "A first build takes a few minutes; its output goes to $log"
{ cmake --preset release && cmake --build --preset release -j "$jobs" --target signalbox; } \
  >"$log" 2>&1 </dev/null || { tail -n 40 "$log" >&2; die "The build failed."; }
say "Built in $((SECONDS - start)) s: $signalbox"

section "3. The layout: two ranks that exchange rows"
layout=(--tp 2 --ep 2 --moe-a2a-backend mori)
show plan "$model" "${layout[@]}" | sed -n 1,34p
say "..."
show verify "$model" "${layout[@]}"

section "4. Serving it"
log=build/logs/demo-serve.log
say "\$ signalbox serve $model ${layout[*]} --port 0 &      (its output goes to $log)"
"$signalbox" serve "$model" "${layout[@]}" --port 0 >"$log" 2>&1 </dev/null &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
url=
for _ in $(seq 600); do
  kill -0 "$server" 2>/dev/null || { cat "$log" >&2; die "The server did not start."; }
  url=$(grep -o 'http://127.0.0.1:[0-9]*' "$log" | head -n 1 || true)
  [[ -n $url ]] && curl -fsS "$url/ready" >/dev/null 2>&1 && break
  sleep 0.1
done
curl -fsS "$url/ready" >/dev/null || { cat "$log" >&2; die "The server is not ready."; }

section "5. One question over HTTP"
body='{"messages": [{"role": "user", "content": "'$question'"}], "max_tokens": 512}'
say "\$ curl $url/v1/chat/completions -H 'content-type: application/json' -d '$body'"
reply=$(curl -fsS "$url/v1/chat/completions" -H 'content-type: application/json' -d "$body")
answer=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["choices"][0]["message"]["content"])' <<<"$reply")
say "$answer"
grep -q 'answer is 15' <<<"$answer" || die "The answer should have been 15."

section "6. 100 word problems the model has not seen"
show eval --url "$url" --data "$model/eval.jsonl" --limit 100 --parallel 16

section "7. Shutting down"
kill -TERM "$server"
wait "$server" || die "The server should have drained and ended with 0."
trap - EXIT
tail -n 3 "$log"

section "8. What the checkpoint holds"
inventory=$(show inspect "$model")
head -n 24 <<<"$inventory"
say "..."

section "Done"
say "Ask it yourself:  $signalbox chat $model"
say "Or in a browser:   $signalbox serve $model, then http://127.0.0.1:30000"
