# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Sourced by the scripts beside it: goes to the project's root and says what is going on.
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

jobs=$(nproc)
# Compilations are shared between clones: paths under the root are hashed relative to it.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=true

bold='' green='' red='' plain=''
if [[ -t 1 && -z ${NO_COLOR:-} && ${TERM:-dumb} != dumb ]]; then
  bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
fi

section() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
say() { printf '%s\n' "$*"; }
die() {
  printf '%s%s%s\n' "$red" "$*" "$plain" >&2
  exit 1
}
