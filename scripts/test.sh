#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: scripts/test.sh [fast|all]      (default: all)
#   fast  checks that need no compiler, release build, its tests: for every commit
#   all   also clang-tidy, the sanitizers, the fuzzers (FUZZ_SECONDS each, default 15) and scripts/e2e/*.sh
# Does its own set-up on Debian 12. Logs are in build/logs. The last line counts stages and tests.
set -uo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

mode=${1:-all}
[[ $# -le 1 && ($mode == fast || $mode == all) ]] || die "usage: scripts/test.sh [fast|all]"

export ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=1
# Vectors of 64 bytes have been placed wrongly in the stack frames made for that check (GCC bug 110027).
if grep -qw avx512f /proc/cpuinfo; then ASAN_OPTIONS=strict_string_checks=1:detect_stack_use_after_return=0; fi
export UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=halt_on_error=1
ASAN_SYMBOLIZER_PATH=$(command -v llvm-symbolizer-14) && export ASAN_SYMBOLIZER_PATH
if ((EUID == 0)); then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

logs=build/logs
passed=0 failed=0
mkdir -p "$logs"
# The sanitizers look at our side of it, so it is compiled once.
xgrammar=-DSIGNALBOX_XGRAMMAR_LIBRARY=$PWD/build/release/cmake/xgrammar/libxgrammar.a

log_of() { # NAME
  local name=${1//[^a-z0-9]/-}
  printf '%s/%s.log' "$logs" "${name//--/-}"
}

# Runs a command with its output in a log, and shows the end of the log if it fails.
logged() { # NAME COMMAND...
  local name=$1 log
  log=$(log_of "$name")
  shift
  printf '%-52s' "$name"
  local start=$SECONDS
  if "$@" >"$log" 2>&1 </dev/null; then
    printf '%sok%s %5d s\n' "$green" "$plain" $((SECONDS - start))
    return 0
  fi
  printf '%sFAILED%s %d s\n' "$red" "$plain" $((SECONDS - start))
  tail -n 80 "$log" | sed 's/^/  | /'
  say "  (end of $log)"
  return 1
}

stage() { # NAME COMMAND...: counts as one
  if logged "$@"; then passed=$((passed + 1)); else
    failed=$((failed + 1))
    return 1
  fi
}

build() { # PRESET [CMAKE ARGUMENT...] [-- TARGET]
  local preset=$1
  shift
  local -a options=() targets=()
  while (($#)) && [[ $1 != -- ]]; do options+=("$1") && shift; done
  if (($#)); then targets=(--target "${@:2}"); fi
  cmake --preset "$preset" "${options[@]}" && cmake --build --preset "$preset" -j "$jobs" "${targets[@]}"
}

tests() { # NAME PRESET [CTEST ARGUMENT...]: counts every test
  local name=$1 preset=$2 summary
  shift 2
  logged "$name" ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$jobs" "$@"
  # "97% tests passed, 1 tests failed out of 30"
  summary=$(grep -Eo '[0-9]+ tests failed out of [0-9]+' "$(log_of "$name")" | tail -n 1)
  if [[ -z $summary ]]; then
    failed=$((failed + 1))
    return
  fi
  local bad=${summary%% *} total=${summary##* }
  passed=$((passed + total - bad)) failed=$((failed + bad))
}

sources() { find src -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh'; }
check_format() {
  local found=$logs/format.txt
  sources | xargs clang-format-14 --dry-run -Werror >"$found" 2>&1 && return
  sed -n 's/:[0-9]*:[0-9]*: error: .*/: run clang-format-14 -i on it/p' "$found" | sort -u
  return 1
}
check_scripts() { find scripts .ci \( -name '*.sh' -o -path .ci/run \) -exec shellcheck -x {} +; }

section "Set-up"
./scripts/setup.sh build test || die "The set-up failed."
# Without them the build would leave structured output out, and its tests be green for nothing.
stage "sources of scripts/sources.txt in .deps" cmp scripts/sources.txt .deps/sources.txt

section "Checks"
stage "format (clang-format)" check_format
stage "module order" scripts/check_deps.py
stage "sizes of files and functions" scripts/check_tree.py sizes
stage "no back end by name" scripts/check_tree.py names
stage "no machine paths" scripts/check_tree.py paths
stage "nothing unfinished, licence lines" scripts/check_tree.py words
stage "tests of the scripts" python3 -m unittest discover -s scripts -p '*_test.py'
stage "shell scripts (shellcheck)" check_scripts

section "Release"
stage "build release" build release && tests "tests, release" release

if [[ $mode == all ]]; then
  section "Analysis"
  stage "clang-tidy" scripts/lint.py build/release

  section "Sanitizers"
  # Left out are the longest tests, which do many times over what others do once: plans of released sizes and of every
  # case of the reference, every contract in whole engines (a2a has every contract too), ten thousand requests.
  longest='ReleasedSizes.*:*.EveryContract/*:Determinism.*:Verify.FindsEveryFault*:*.TenThousand*:BenchSteps*RowFor*'
  longest+=':Reference.AgreesOnEveryCase'
  stage "build asan-ubsan" build asan-ubsan "$xgrammar" "-DSIGNALBOX_FUZZ_SECONDS=${FUZZ_SECONDS:-15}" &&
    GTEST_FILTER="-$longest" tests "tests, address and undefined" asan-ubsan -LE fuzz &&
    tests "fuzzers" asan-ubsan -L fuzz
  stage "build tsan" build tsan -- threaded_tests && tests "tests, threads" tsan -L threads

  section "End to end"
  for script in scripts/e2e/*.sh; do
    if [[ -x $script ]]; then stage "$script" "$script"; fi
  done
fi

say
if ((failed)); then color=$red; else color=$green; fi
printf '%s%d passed, %d failed%s\n' "$color" "$passed" "$failed" "$plain"
((failed == 0))
