#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The server as a user meets it: loading, answers, overload, two thousand streams, drain, a rank that stops.
# usage: scripts/e2e/serve.sh [path of the signalbox program]
set -euo pipefail
cd "$(dirname "$0")/../.."
ulimit -n "$(ulimit -Hn)"
exec python3 scripts/e2e/serve_checks.py "${1:-build/release/src/signalbox/cli/signalbox}"
