#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Layouts of the bundled model: plan, verify and eval on thread ranks and under mpirun, and the refusals.
# usage: scripts/e2e/layouts.sh [path of the signalbox program]
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/src/signalbox/cli/signalbox}
model=models/tiny-qwen3.5-moe-mxfp4
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "e2e: $*" >&2; exit 1; }

refused() {  # refused TEXT FLAG...: exit 3, the message holds TEXT
  local text=$1 got=0
  shift
  "$program" plan $model "$@" >"$out/out" 2>"$out/err" || got=$?
  [ "$got" = 3 ] || fail "exit $got instead of 3: plan $*"
  grep -q -- "$text" "$out/err" || fail "no '$text' in: $(cat "$out/err")"
}

for layout in "--tp 2" "--tp 2 --ep 2" "--tp 2 --ep 2 --moe-a2a-backend mori" \
  "--tp 4 --dp 2 --enable-dp-attention --ep 4 --moe-a2a-backend deepep" \
  "--tp 2 --ep 2 --moe-a2a-contract src/signalbox/a2a/testdata/acme.contract"; do
  # shellcheck disable=SC2086
  "$program" verify $model --reference $model/reference_logits.safetensors --quiet $layout >"$out/out" ||
    fail "verify $layout: $(cat "$out/out")"
  # shellcheck disable=SC2086
  "$program" verify $model --quiet $layout >"$out/out" || fail "verify, layer by layer, $layout: $(cat "$out/out")"
done

# Their library had rounded the rotary frequencies: models/random/README.md.
for random in qwen2-moe qwen3-moe qwen3-next qwen3.5-moe; do
  for layout in "--chunked-prefill-size 7" "--tp 2 --ep 2" "--tp 2 --ep 2 --moe-a2a-backend mori"; do
    # shellcheck disable=SC2086
    "$program" verify models/random/$random --reference models/random/$random/reference_logits.safetensors \
      --rope-frequencies bf16 --tolerance 2e-5 --quiet $layout >"$out/out" || fail "verify $random $layout: $(cat "$out/out")"
  done
done
got=0
"$program" verify models/random/qwen3-moe --reference models/random/qwen3-moe/reference_logits.safetensors --quiet \
  >"$out/out" 2>"$out/err" || got=$?
[ "$got" = 4 ] || fail "exit $got instead of 4: a reference of other frequencies"
grep -q 'try --rope-frequencies bf16' "$out/err" || fail "no remedy for rounded frequencies: $(cat "$out/err")"

k3=models/tiny-kimi-k3-mxfp4
for layout in "" "--delta-rule chunked --latent-attention expanded" "--tp 2 --ep 2" "--tp 3 --dp 3 --enable-dp-attention" \
  "--tp 2 --ep 2 --moe-a2a-backend mori" "--tp 4 --dp 2 --enable-dp-attention --ep 4 --moe-a2a-backend deepep"; do
  # shellcheck disable=SC2086
  "$program" verify $k3 --reference $k3/reference.safetensors --tolerance 1e-5 --quiet $layout >"$out/out" ||
    fail "verify $k3 $layout: $(cat "$out/out")"
done

layout="--tp 2 --ep 2 --moe-a2a-backend mori"
for fault in sum-scattered-rows shared-per-rank shared-halved shared-doubled local-experts ids-off-by-one \
  weights-twice poison-row; do
  got=0
  # shellcheck disable=SC2086
  "$program" verify $model $layout --inject $fault >"$out/out" 2>"$out/err" || got=$?
  [ "$got" = 4 ] || fail "exit $got instead of 4: verify --inject $fault"
  grep -q 'layer 0 computes' "$out/err" || fail "$fault was not found in layer 0: $(cat "$out/err")"
  grep -q 'the checker: ' "$out/err" || fail "no word of the checker: $(cat "$out/err")"
  ! grep -q 'accepts it' "$out/err" || fail "the checker accepts $fault"
done
got=0
# shellcheck disable=SC2086
"$program" generate $model --prompt a $layout --inject shared-halved >"$out/out" 2>"$out/err" || got=$?
[ "$got" = 4 ] || fail "exit $got instead of 4: the start-up check let a wrong layout pass"

"$program" matrix $model models/random/qwen* --every 97 --quiet >"$out/out" 2>"$out/err" ||
  fail "matrix: $(cat "$out/out" "$out/err")"

# shellcheck disable=SC2086
"$program" plan $model $layout >"$out/plan"
# shellcheck disable=SC2086
"$program" plan $model $layout --format svg >"$out/svg"
diff -q docs/plan-example.svg "$out/svg" >/dev/null ||
  fail "docs/plan-example.svg is not what plan draws: look at the new picture, then copy it there"
grep -q 'reduce-scatter h over attn_tp' "$out/plan" || fail "no reduce-scatter after the mixer in the plan"
# shellcheck disable=SC2086
"$program" eval $model $layout --quiet --limit 100 >"$out/out"
grep -qE '^accuracy (1.000|0.99)' "$out/out" || fail "eval $layout: $(cat "$out/out")"

# The released shape, without data.
"$program" synth models/configs/kimi-k3.json "$out/k3" --headers-only --quiet
"$program" plan "$out/k3" --tp 8 --ep 8 --moe-a2a-backend mori >"$out/out" || fail "plan of the released Kimi-K3"
grep -q 'shared expert replicated' "$out/out" || fail "no sequence-parallel rows: $(cat "$out/out")"
grep -q 'memory per rank' "$out/out" || fail "no memory per rank: $(cat "$out/out")"
rm -r "$out/k3"

refused 'nearest layout that works' --tp 3 --ep 3
refused 'largest that works' --tp 2 --ep 2 --moe-a2a-backend mori --chunked-prefill-size 4096 --max-dispatch-tokens-per-rank 1024

"$program" bench a2a --tokens 1,16 --hidden 64 --repeats 2 --format json >"$out/out" ||
  fail "bench a2a: other bytes moved than the routing asks for: $(cat "$out/out")"
grep -q '"bytes between"' "$out/out" || fail "bench a2a measured nothing: $(cat "$out/out")"

if command -v mpirun >/dev/null; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  # shellcheck disable=SC2086
  mpirun -np 2 --oversubscribe "$program" eval $model $layout --quiet --limit 60 >"$out/out"
  grep -qE '^accuracy (1.000|0.98)' "$out/out" || fail "eval under mpirun: $(cat "$out/out")"
  # shellcheck disable=SC2086
  mpirun -np 2 --oversubscribe "$program" verify $model $layout >"$out/out" || fail "verify under mpirun: $(cat "$out/out")"
fi
echo "e2e layouts: all hold"
