#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: scripts/demo.sh [--model MODEL]      (default: the bundled Qwen3.5-MoE; models/tiny-kimi-k3-mxfp4 is the other)
# From a fresh clone to an answer: set-up, release build, one question, 100 problems, and what the model is made of.
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

section "3. One question"
answer=build/logs/demo-answer.txt
show generate "$model" --chat --prompt "$question" | tee "$answer"
say
grep -q 'answer is 15' "$answer" || die "The answer should have been 15."

section "4. 100 word problems the model has not seen"
show eval "$model" --data "$model/eval.jsonl" --limit 100 --parallel 16

section "5. The same on two ranks that exchange rows"
show plan "$model" --tp 2 --ep 2 --moe-a2a-backend mori | sed -n 1,34p
say "..."
show verify "$model" --tp 2 --ep 2 --moe-a2a-backend mori
show eval "$model" --data "$model/eval.jsonl" --limit 100 --parallel 16 --tp 2 --ep 2 --moe-a2a-backend mori

section "6. What the checkpoint holds"
inventory=$(show inspect "$model")
head -n 24 <<<"$inventory"
say "..."

section "Done"
say "Ask it yourself:  $signalbox chat $model"
