#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: scripts/setup.sh [build|test|python|clients]...      (default: build test)
# Installs what the project needs on a Debian 12 machine, and nothing that is already there.
#   build    compiler and libraries; those of sources.txt lie in .deps, and the build does without where they
#            cannot be had
#   test     build, plus what scripts/test.sh runs
#   python   a virtual environment .venv with requirements.txt, for making goldens anew
#   clients  a virtual environment .deps/clients with requirements-clients.txt, for scripts/e2e/clients.sh
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

packages_of() { awk -v group="$1" '$1 == group {print $2}' scripts/packages.txt; }

# Prints those of its arguments that are not installed.
missing_of() {
  local package
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      printf '%s\n' "$package"
  done
}

apt_get() {
  local -a as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || die "Installing packages needs root: run as root, or install sudo."
    as_root=(sudo)
  fi
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

install_packages() {
  local -a wanted missing
  mapfile -t wanted < <(for group in "$@"; do packages_of "$group"; done | sort -u)
  if ! command -v dpkg-query >/dev/null; then
    say "This is not a Debian machine: provide the equivalents of ${wanted[*]}"
    return
  fi
  mapfile -t missing < <(missing_of "${wanted[@]}")
  if ((${#missing[@]} == 0)); then
    say "Packages: all ${#wanted[@]} are installed."
    return
  fi
  say "Packages: installing ${missing[*]}"
  local log
  log=$(mktemp)
  # The package lists are fetched only if the ones at hand do not do.
  if ! apt_get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
    say "Packages: refreshing the package lists"
    apt_get update >"$log" 2>&1 || say "Packages: some lists could not be refreshed"
    apt_get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 ||
      { tail -n 20 "$log" >&2; die "Packages could not be installed."; }
  fi
  rm -f "$log"
}

# What pip keeps of a source distribution it has first asked for its metadata, so a build backend is fetched
# too, into a folder of pip's own; nothing is built. The hashes are checked by pip.
install_sources() {
  local stamp=.deps/sources.txt work
  if cmp -s scripts/sources.txt "$stamp"; then
    say "Sources: .deps is up to date."
    return
  fi
  say "Sources: unpacking scripts/sources.txt in .deps"
  work=$(mktemp -d)
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --no-binary "$(sed -n 's/==.*//p' scripts/sources.txt | paste -sd ,)" \
    --requirement scripts/sources.txt --dest "$work" >"$work/log" 2>&1; then
    tail -n 5 "$work/log" >&2
    say "Sources: could not be fetched; the build leaves out what needs them."
    rm -rf "$work"
    return
  fi
  rm -rf .deps
  mkdir .deps
  local archive
  for archive in "$work"/*.tar.gz; do tar -xzf "$archive" -C .deps; done
  rm -rf "$work"
  cp scripts/sources.txt "$stamp"
}

# pip alone takes minutes for as many packages as the clients need; uv takes seconds.
install_python() { # ENVIRONMENT REQUIREMENTS [OPTION OF uv pip install...]
  local environment=$1 requirements=$2
  shift 2
  if cmp -s "$requirements" "$environment/requirements.txt"; then
    say "Python: $environment is up to date."
    return
  fi
  say "Python: installing $requirements into $environment"
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/python" -m pip install --quiet --disable-pip-version-check \
    "$(grep '^uv==' "$requirements")"
  "$environment/bin/uv" pip install --quiet --python "$environment/bin/python" "$@" \
    --requirement "$requirements"
  cp "$requirements" "$environment/requirements.txt"
}

groups=("$@")
((${#groups[@]})) || groups=(build test)
want_python=false want_clients=false want_sources=false
apt_groups=()
for group in "${groups[@]}"; do
  case $group in
    build) apt_groups+=(build) want_sources=true ;;
    test) apt_groups+=(build test) want_sources=true ;;
    python) apt_groups+=(python) want_python=true ;;
    clients) apt_groups+=(python) want_clients=true ;;
    *) die "usage: scripts/setup.sh [build|test|python|clients]..." ;;
  esac
done
install_packages "${apt_groups[@]}"
if $want_sources; then install_sources; fi
if $want_python; then install_python .venv scripts/requirements.txt; fi
# The list is whole: what its packages ask for beyond it is not used, and some of that is gigabytes.
if $want_clients; then install_python .deps/clients scripts/requirements-clients.txt --no-deps; fi
