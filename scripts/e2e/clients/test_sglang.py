# SPDX-License-Identifier: Apache-2.0
"""bench_serving and few_shot_gsm8k of the `sglang` package against a server of 2 ranks."""

import json
import re
import unittest

from server import MODEL, Server, problems, run_module

PROMPTS = 48
OUTPUT = 24  # tokens of each


def setUpModule():
    global server
    server = unittest.enterModuleContext(Server(name="sglang"))


def sharegpt(path):
    """The word problems in the form that the bench reads."""
    path.write_text(
        json.dumps(
            [
                {"conversations": [{"value": one["question"]}, {"value": f"The answer is {one['answer']}."}]}
                for one in problems()
            ]
        )
    )


RANDOM = ["--dataset-name", "random-ids", "--random-input-len", 40, "--random-output-len", OUTPUT,
          "--random-range-ratio", 1]  # fmt: skip
SHAREGPT = ["--dataset-name", "sharegpt", "--dataset-path", "sharegpt.json", "--sharegpt-output-len", OUTPUT]


class BenchServing(unittest.TestCase):
    def bench(self, asked, backend, *flags):
        """What it reports of a run in which nothing failed."""
        with run_module(
            "sglang.bench_serving", "--backend", backend, "--host", asked.host, "--port", asked.port,
            "--model", MODEL, "--served-model-name", asked.model(), "--num-prompts", PROMPTS,
            "--max-concurrency", 16, "--output-file", "report.jsonl", "--output-details", *flags,
            prepare=lambda folder: sharegpt(folder / "sharegpt.json"),
        ) as run:  # fmt: skip
            report = json.loads((run.folder / "report.jsonl").read_text())
        self.assertEqual(report["completed"], PROMPTS, run.output)
        self.assertEqual([error for error in report["errors"] if error], [])
        self.assertGreater(report["mean_ttft_ms"], 0)
        self.assertGreater(report["mean_itl_ms"], 0)
        return report

    def test_native(self):
        """Counts come from the server, and each request has exactly as many tokens as were asked for."""
        report = self.bench(server, "sglang", *RANDOM, "--tokenize-prompt")
        self.assertEqual(report["output_lens"], [OUTPUT] * PROMPTS)

    def test_completions(self):
        self.assertTrue(all(self.bench(server, "sglang-oai", *RANDOM)["generated_texts"]))

    def test_chat(self):
        """Without reasoning, which this client does not read."""
        body = json.dumps({"chat_template_kwargs": {"enable_thinking": False}})
        report = self.bench(server, "sglang-oai-chat", *SHAREGPT, "--extra-request-body", body)
        self.assertTrue(all(report["generated_texts"]))

    def test_native_text_with_drafts(self):
        """And log-probabilities; the accept length reaches the report."""
        with Server("--speculative-algorithm", "mtp", name="sglang-mtp") as drafting:
            report = self.bench(drafting, "sglang", *SHAREGPT, "--return-logprob", "--flush-cache")
        self.assertEqual(report["output_lens"], [OUTPUT] * PROMPTS)
        self.assertGreater(report["accept_length"], 1)


class FewShot(unittest.TestCase):
    def test_gsm8k(self):
        """The model has not learnt the script's frame around a question, and answers nonsense in it. So the right
        answer is what the server says when it is asked the same, one by one and in the plainest way."""
        asked = {}
        for one in problems(48):
            prompt = f"Question: {one['question']}\nAnswer:"
            sampling = {"temperature": 0, "max_new_tokens": 32}
            answer = server.post("/generate", {"text": prompt, "sampling_params": sampling})
            numbers = re.findall(r"\d+", answer.json()["text"].split("Question")[0])
            if numbers:
                asked[one["question"]] = numbers[-1]
        self.assertGreater(len(asked), 24)

        def prepare(folder):
            lines = [{"question": question, "answer": number} for question, number in asked.items()]
            (folder / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

        with run_module(
            "sglang.test.few_shot_gsm8k", "--host", f"http://{server.host}", "--port", server.port,
            "--data-path", "data.jsonl", "--num-questions", len(asked), "--num-shots", 0, "--parallel", 32,
            "--max-new-tokens", 32, prepare=prepare,
        ) as run:  # fmt: skip
            accuracy = float(re.search(r"Accuracy: (\S+)", run.output).group(1))
            invalid = float(re.search(r"Invalid: (\S+)", run.output).group(1))
        self.assertEqual((accuracy, invalid), (1, 0))
