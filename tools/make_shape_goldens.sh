#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Logits of synthetic models of unusual shapes and formats (the lines of engine/testdata/shapes/cases.txt), by the numpy
# reference.
# usage: tools/make_shape_goldens.sh PATH_OF_SIGNALBOX
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."
shapes=src/signalbox/engine/testdata/shapes
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
while read -r config format; do
  "$program" synth "$shapes/$config.json" "$work/$config" --format "$format" --seed 3 --quiet
  python3 tools/reference/qwen_numpy.py "$work/$config" 5,7,250,31,31,0,99,128,17,5,4,3 \
    "$shapes/$config.$format.safetensors"
done < $shapes/cases.txt
