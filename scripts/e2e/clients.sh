#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The clients of the field, unmodified, against servers of 2 ranks, then what no client would do: docs/clients.md.
# usage: scripts/e2e/clients.sh [-k PART OF A TEST'S NAME]...     PROGRAM is the path of signalbox, if not the release's
set -euo pipefail
cd "$(dirname "$0")/../.."
./scripts/setup.sh clients
exec .deps/clients/bin/python -m unittest discover -v -s scripts/e2e/clients "$@"
