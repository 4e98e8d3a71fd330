#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library as others use it: installed, found by CMake from a project of its own, built against, run.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
fail() { echo "e2e: $*" >&2; exit 1; }

cmake --install build/release --prefix "$out/installed"
cmake -S examples/library -B "$out/build" -D CMAKE_PREFIX_PATH="$out/installed"
cmake --build "$out/build"
"$out/build/ask" models/tiny-qwen3.5-moe-mxfp4 \
  "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?" \
  "Tom has 12 apples. Then Tom buys 5 more. How many apples does Tom have now?" >"$out/answers"
cat "$out/answers"
grep -q 19 "$out/answers" || fail "no 19 in the answers"
grep -q 17 "$out/answers" || fail "no 17 in the answers"
grep -q '^2 answers' "$out/answers" || fail "not two answers"
status=0
"$out/build/ask" /nowhere "Hello?" 2>"$out/err" || status=$?
if [[ $status != 1 ]] || ! grep -q BAD_CHECKPOINT "$out/err"; then
  fail "a missing model: $status $(cat "$out/err")"
fi
"$out/installed/bin/signalbox" version
