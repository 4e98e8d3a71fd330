#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Logits of synthetic models of unusual shapes (engine/testdata/shapes/*.json), by the numpy reference.
# usage: tools/make_shape_goldens.sh PATH_OF_SIGNALBOX
set -euo pipefail
program=$(realpath "$1")
cd "$(dirname "$0")/.."
shapes=src/signalbox/engine/testdata/shapes
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for config in $shapes/*.json; do
  name=$(basename "$config" .json)
  "$program" synth "$config" "$work/$name" --format mxfp4 --seed 3 --quiet
  python3 tools/reference/qwen_numpy.py "$work/$name" 5,7,250,31,31,0,99,128,17,5,4,3 "$shapes/$name.safetensors"
done
