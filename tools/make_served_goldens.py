#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logits of the random Qwen checkpoints as transformers computes them when it loads them in fp32, rotary frequencies
included: models/random/*/served_logits.safetensors, and one with YaRN for the tests of the engine. Made with
transformers 5.17.0 and torch 2.15.0, which scripts/setup.sh does not install.

usage: tools/make_served_goldens.py
"""

import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).parent.parent
YARN = {"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 64}


def write(directory, ids, path):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    tensors = dict(ids)
    for name, sequence in ids.items():
        with torch.no_grad():
            logits = model(sequence[None].long(), use_cache=False).logits[0]
        tensors[name.replace("ids", "logits")] = logits.float().contiguous()
    save_file(tensors, path)


def main():
    for directory in sorted((ROOT / "models/random").glob("qwen*")):
        reference = load_file(directory / "reference_logits.safetensors")
        ids = {name: t for name, t in reference.items() if name.startswith("ids")}
        write(directory, ids, directory / "served_logits.safetensors")
        if directory.name != "qwen3-moe":
            continue
        with tempfile.TemporaryDirectory() as folder:
            config = json.loads((directory / "config.json").read_text()) | {"rope_parameters": YARN}
            shutil.copy(directory / "model.safetensors", folder)
            pathlib.Path(folder, "config.json").write_text(json.dumps(config))
            write(folder, ids, ROOT / "src/signalbox/engine/testdata/qwen3_moe_yarn.safetensors")


if __name__ == "__main__":
    main()
