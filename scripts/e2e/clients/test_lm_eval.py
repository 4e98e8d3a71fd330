# SPDX-License-Identifier: Apache-2.0
"""The `lm-eval` package against a server of 2 ranks: a generation task of the model's own problems, and
loglikelihoods against the reference logits that come with the model, which another program computed."""

import json
import pathlib
import unittest

import numpy
import safetensors.numpy
import tokenizers

from server import MODEL, Server, problems, run_module

TASKS = pathlib.Path(__file__).resolve().parent / "tasks"
CHOICES = 4
# Of a log-probability of one token; the engine and the reference agree in logits to about 1e-4.
TOLERANCE = 1e-3


def setUpModule():
    global server
    server = unittest.enterModuleContext(Server(name="lm-eval"))


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def evaluate(model, path, arguments, tasks, prepare, *flags):
    """(metrics, documents of each task with what was answered)."""
    arguments = {"base_url": server.url + path, "model": server.model(), "num_concurrent": 16, **arguments}
    with run_module(
        "lm_eval", "--model", model, "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()),
        "--include_path", TASKS, "--tasks", ",".join(tasks), "--output_path", "out", "--log_samples", *flags,
        prepare=prepare,
    ) as run:  # fmt: skip
        results = json.loads(next(run.folder.glob("out/**/results_*.json")).read_text())["results"]
        documents = {task: read_lines(next(run.folder.glob(f"out/**/samples_{task}_*.jsonl"))) for task in tasks}
    return results, documents


class Reference:
    """Sequences with the log-probability of every token after every prefix."""

    def __init__(self):
        tensors = safetensors.numpy.load_file(MODEL / "reference_logits.safetensors")
        self.tokenizer = tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json"))
        self.sequences = []
        for i in range(sum(name.startswith("ids.") for name in tensors)):
            logits = tensors[f"logits.{i}"].astype(numpy.float64)
            logits -= logits.max(axis=1, keepdims=True)
            logprobs = logits - numpy.log(numpy.exp(logits).sum(axis=1, keepdims=True))
            self.sequences.append((list(map(int, tensors[f"ids.{i}"])), logprobs))

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def keeps(self, ids):
        """Their text has these tokens."""
        return self.tokenizer.encode(self.text(ids), add_special_tokens=False).ids == ids

    def whole_answers(self):
        """The client gives spaces at the end of a context to the continuation, so these end before them."""
        for ids, logprobs in self.sequences:
            start = ids.index(self.tokenizer.token_to_id("<think>")) + 1
            total = sum(logprobs[n - 1, ids[n]] for n in range(start, len(ids)))
            yield {"context": self.text(ids[:start]), "continuation": self.text(ids[start:]), "expected": total}

    def next_tokens(self):
        for ids, logprobs in self.sequences:
            for end in range(ids.index(self.tokenizer.token_to_id("<think>")) + 1, len(ids), 3):
                likeliest = [int(token) for token in numpy.argsort(-logprobs[end - 1])[:CHOICES]]
                clear = all(self.keeps(ids[:end] + [token]) for token in likeliest)
                if clear and not self.text(ids[:end])[-1].isspace():
                    yield {
                        "context": self.text(ids[:end]),
                        "choices": [self.text([token]) for token in likeliest],
                        "likeliest": 0,
                        "expected": [float(logprobs[end - 1, token]) for token in likeliest],
                    }


class LmEval(unittest.TestCase):
    def test_generation(self):
        results, documents = evaluate(
            "local-chat-completions", "/v1/chat/completions", {}, ["word_problems"],
            lambda folder: write_lines(folder / "problems.jsonl", problems(100)), "--apply_chat_template",
        )  # fmt: skip
        self.assertEqual(len(documents["word_problems"]), 100)
        self.assertGreaterEqual(results["word_problems"]["exact_match,last_number"], 0.99)

    def test_loglikelihood(self):
        """With the tokenizer asked from the server, as the client does by itself where it is offered."""
        reference = Reference()
        answers, tokens = list(reference.whole_answers()), list(reference.next_tokens())
        self.assertGreater(len(tokens), 20)

        def prepare(folder):
            write_lines(folder / "whole_answer.jsonl", answers)
            write_lines(folder / "next_token.jsonl", tokens)

        results, documents = evaluate(
            "local-completions", "/v1/completions", {"max_length": 4096}, ["whole_answer", "next_token"], prepare
        )
        self.assertEqual(len(documents["whole_answer"]), len(answers))
        for one in documents["whole_answer"]:
            got = float(one["resps"][0][0][0])
            length = len(reference.tokenizer.encode(one["doc"]["continuation"]).ids)
            self.assertAlmostEqual(got, one["doc"]["expected"], delta=TOLERANCE * length)
        self.assertEqual(len(documents["next_token"]), len(tokens))
        for one in documents["next_token"]:
            found = [(float(value), str(greedy) == "True") for ((value, greedy),) in one["resps"]]
            for (value, _), expected in zip(found, one["doc"]["expected"], strict=True):
                self.assertAlmostEqual(value, expected, delta=TOLERANCE * max(1, -expected))
            self.assertEqual([greedy for _, greedy in found], [True] + [False] * (CHOICES - 1))
        self.assertEqual(results["next_token"]["acc,none"], 1)
