#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `tiktoken` makes of mixed texts with tokenizers of the Kimi kind.

    tools/make_tiktoken_goldens.py

Needs the PyPI package `tiktoken` (the goldens in the repository: 0.14.0). Writes under
src/signalbox/text/testdata/tokenizer: kimi.texts.json, kimi_small/ (a vocabulary of our own, in which most
tokens can be split in several ways and some only be reached as a whole piece) and *.golden.json. The texts of
texts.json, which make_tokenizer_goldens.py writes, are used as well.
"""

import base64
import json
import pathlib
import random

import tiktoken

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "src/signalbox/text/testdata/tokenizer"

UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[\p{Han}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}",
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])

TEXTS = {
    "han_and_latin": "混合expert专家MoE模型 v2的GPU数量是8块，北京Beijing上海",
    "han_extensions": "〆切 々 〇 ー、。「漢字」 㐀 𠮷野家 豈 ⺀ ⼀ 〡〢 ㆐ \u3007\u3005\u303b",
    "han_after_mark": "漢\u0301字 \u0301漢 a漢\u0301b ！漢 \u3099か",
    "case": "HTMLParser camelCaseWord XMLHttpRequest iPhone ABC aBC ABc ǅungla ǅUNGLA ﬀ",
    "case_marks": "É\u0301COLE e\u0301cole ʰˢABCʰ abcʰDEF ªº",
    "contraction_tail": "they'll THEY'LL We'Ve x'S 'll don'T rock'n'roll it'ſ 日本's 漢's I'm'd",
    "numbers": "1234567 12a345 ½¾ ١٢٣٤ Ⅷ一二三 0.5e-10 １２３４",
    "letters_without_case": "สวัสดีABCชาวโลกabc नमस्तेABC가나다ABCabc",
    "punctuation_tail": "end.\r\n\n next!\n  (x)\n\n\t=> {\n}\n",
    "markers": "<|open|>message role=\"user\"<|sep|>Hi<|close|>message<|sep|><|end_of_msg|>",
    "markers_nearly": "<|open|<|open|>|> <|OPEN|> < |sep|> <|sep|[BOS] [EOS][PAD]<|reserved_token_760|>",
    "emoji_and_letters": "👍🏽x 👨\u200d👩\u200d👧漢🏳️\u200d🌈A 1️⃣",
}


def ranks_of(folder):
    lines = (folder / "tiktoken.model").read_text().splitlines()
    return {base64.b64decode(b): int(r) for b, r in map(str.split, lines)}


def encoding(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    ranks = ranks_of(folder)
    named = {int(i): t["content"] for i, t in config["added_tokens_decoder"].items()}
    special = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(ranks), max(named) + 1)}
    skipped = {i for i in special.values() if config["added_tokens_decoder"].get(str(i), {"special": True})["special"]}
    return tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special), skipped


def make_small(folder, texts):
    """Random pieces of the texts as tokens, in random order behind the bytes."""
    rng = random.Random(30)
    tokens = set()
    everything = "".join(texts).encode()
    while len(tokens) < 700:
        begin = rng.randrange(len(everything))
        token = everything[begin:begin + rng.choice([2, 2, 2, 3, 3, 4, 5, 6, 8, 12])]
        if len(token) > 1:
            tokens.add(token)
    for letter in b"ab ":
        tokens |= {bytes([letter]) * n for n in (2, 3, 5, 8)}
    order = [bytes([b]) for b in rng.sample(range(256), 256)] + rng.sample(sorted(tokens), len(tokens))
    folder.mkdir(exist_ok=True)
    model = "".join(f"{base64.b64encode(t).decode()} {rank}\n" for rank, t in enumerate(order))
    (folder / "tiktoken.model").write_text(model)
    names = ["[BOS]", "[EOS]", "<|end_of_msg|>", "<|open|>", "<|close|>", "<|sep|>"]
    decoder = {str(len(order) + i): {"content": name, "special": i < 3} for i, name in enumerate(names)}
    decoder[str(len(order) + 15)] = {"content": "[PAD]", "special": True}
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": decoder}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=0) + "\n")


def write(path, value):
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main():
    rng = random.Random(31)
    texts = dict(TEXTS)
    common = "".join(TEXTS.values()) + "aaaaaaaabbbbbb      \n\n"
    for i in range(100):
        texts[f"shuffled_{i}"] = "".join(rng.choice(common) for _ in range(rng.randrange(3, 60)))
    write(OUT / "kimi.texts.json", texts)
    make_small(OUT / "kimi_small", TEXTS.values())
    texts |= json.loads((OUT / "texts.json").read_text())
    for name, folder in {"tiny_kimi_k3": ROOT / "models/tiny-kimi-k3-mxfp4", "kimi_small": OUT / "kimi_small"}.items():
        model, skipped = encoding(folder)
        golden = {}
        for key, text in texts.items():
            ids = model.encode(text, allowed_special="all")
            plain = model.encode(text, disallowed_special=())
            golden[key] = {"ids": ids, "skip_special": model.decode([i for i in ids if i not in skipped])}
            if plain != ids:
                golden[key]["untrusted"] = plain
        write(OUT / f"{name}.golden.json", golden)


if __name__ == "__main__":
    main()
