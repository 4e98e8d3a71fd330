#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a server on two ranks says of itself: counters against usage, the dashboards against a scrape, the log.
# usage: scripts/e2e/metrics.sh [path of the signalbox program]
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 scripts/e2e/metrics_checks.py "${1:-build/release/src/signalbox/cli/signalbox}"
