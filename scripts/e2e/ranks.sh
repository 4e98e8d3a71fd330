#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that are processes: one that stops answering, or dies, ends the run with an error in time.
# usage: scripts/e2e/ranks.sh [path of the signalbox program]
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${1:-build/release/src/signalbox/cli/signalbox}
model=models/tiny-qwen3.5-moe-mxfp4
if ! command -v mpirun >/dev/null; then
  echo "e2e ranks: skipped: no mpirun"
  exit 0
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
out=$(mktemp -d)
run=
trap '[ -z "$run" ] || kill -KILL "$run" 2>/dev/null || true; rm -rf "$out"' EXIT
fail() { echo "e2e: $*" >&2; exit 1; }

for _ in $(seq 20); do cat $model/eval.jsonl; done >"$out/long.jsonl"

signalled() {  # signalled SIGNAL: rank 1 gets it in the middle of a run; $code, $took and $out/err tell the end
  local child='' start
  mpirun -np 2 --oversubscribe "$program" eval $model --tp 2 --data "$out/long.jsonl" --rank-timeout 3 \
    >"$out/out" 2>"$out/err" &
  run=$!
  for _ in $(seq 200); do
    grep -q 'memory of each' "$out/err" && break
    sleep 0.1
  done
  sleep 1
  for pid in $(pgrep -P $run); do
    if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx 'OMPI_COMM_WORLD_RANK=1'; then child=$pid; fi
  done
  [ -n "$child" ] || fail "no rank 1: $(cat "$out/out" "$out/err")"
  start=$(date +%s)
  kill "-$1" "$child"
  code=0
  wait $run || code=$?
  run=
  took=$(($(date +%s) - start))
}

signalled STOP
[ "$code" = 1 ] || fail "exit $code instead of 1: a rank that stopped: $(cat "$out/err")"
grep -q 'waited 3000 ms for rank 1' "$out/err" || fail "the rank that stopped is not named: $(cat "$out/err")"
[ "$took" -le 6 ] || fail "a rank that stopped was noticed after $took s"
signalled KILL
[ "$code" != 0 ] || fail "a rank that died went unnoticed"
[ "$took" -le 6 ] || fail "a rank that died was noticed after $took s"
echo "e2e ranks: all hold"
