#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of interface.md on the bundled model and on synthetic ones: outputs and exit codes.
# usage: scripts/e2e/commands.sh [path of the signalbox program]
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/src/signalbox/cli/signalbox}
model=models/tiny-qwen3.5-moe-mxfp4
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "e2e: $*" >&2; exit 1; }

exits() {  # exits CODE COMMAND...: the exit code, with the message in $out/err
  local want=$1 got=0
  shift
  "$@" >"$out/out" 2>"$out/err" || got=$?
  [ "$got" = "$want" ] || { cat "$out/err" >&2; fail "exit $got instead of $want: $*"; }
}

exits 0 "$program" generate $model --chat --prompt "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"
grep -q 19 "$out/out" || fail "no 19 in the answer"
grep -qE 'tok/s|loading' "$out/out" && fail "stdout holds more than the text"
grep -q 'tok/s' "$out/err" || fail "no statistics on stderr"

exits 0 "$program" eval $model --limit 60 --quiet
grep -qE '^accuracy (1.000|0.99[0-9]|0.98[0-9]) \([0-9]+ of 60\) \| [0-9]+ tok/s \| accept' "$out/out" || fail "eval: $(cat "$out/out")"
exits 0 "$program" eval $model --limit 60 --quiet --no-thinking --format json
grep -q '"problems":60' "$out/out" || fail "eval --format json: $(cat "$out/out")"

# The same through tiktoken.model and XTML: markers are read, not shown.
kimi=models/tiny-kimi-k3-mxfp4
exits 0 "$program" generate $kimi --chat --no-thinking --prompt "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"
grep -q 'The answer is 19' "$out/out" || fail "Kimi-K3: $(cat "$out/out")"
exits 0 "$program" generate $kimi --chat --prompt "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"
grep -q '<|' "$out/out" && fail "a marker in the answer: $(cat "$out/out")"
exits 0 "$program" eval $kimi --limit 60 --quiet
grep -qE '^accuracy (1.000|0.99[0-9]|0.98[0-9]) \([0-9]+ of 60\)' "$out/out" || fail "eval of Kimi-K3: $(cat "$out/out")"

exits 0 "$program" verify $model --reference $model/reference_logits.safetensors --quiet
exits 4 "$program" verify $model --reference $model/reference_logits.safetensors --tolerance 1e-12 --quiet
exits 0 "$program" inspect $model
grep -q 'expert down' "$out/out" || fail "inspect does not say what tensors are for"
exits 0 "$program" version
exits 0 "$program" env

exits 2 "$program" generate $model --promt x
grep -q 'did you mean --prompt?' "$out/err" || fail "the nearest flag is not named"
exits 5 "$program" generate "$out" --prompt x
cp -r $model "$out/cut"
truncate -s 1000000 "$out/cut/model.safetensors"
exits 5 "$program" generate "$out/cut" --prompt x
grep -q 'model.safetensors' "$out/err" || fail "the damaged file is not named"

# Real geometries, small in number: every dimension of the release but layers, vocabulary and experts.
for name in qwen3-30b-a3b qwen3.5-35b-a3b; do
  python3 - "$name" "$out/$name.json" <<'PY'
import json, sys
config = json.load(open(f"models/configs/{sys.argv[1]}.json"))
text = config.get("text_config", config)
text.update(vocab_size=512, num_experts=8, eos_token_id=0)
json.dump(config, open(sys.argv[2], "w"))
PY
  for format in mxfp4 bf16; do
    exits 0 "$program" synth "$out/$name.json" "$out/$name-$format" --layers 2 --format $format --quiet
    exits 0 "$program" inspect "$out/$name-$format"
    exits 0 "$program" generate "$out/$name-$format" --prompt "Hello" --max-new-tokens 4
    rm -rf "$out/$name-$format"
  done
done
echo "e2e commands: all hold"
