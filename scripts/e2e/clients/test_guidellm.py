# SPDX-License-Identifier: Apache-2.0
"""GuideLLM against a server of 2 ranks."""

import json
import unittest

from server import MODEL, Server, run_module

REQUESTS = 24
OUTPUT = 16  # tokens of each


def setUpModule():
    global server
    server = unittest.enterModuleContext(Server(name="guidellm"))


class GuideLLM(unittest.TestCase):
    def bench(self, route, body):
        with run_module(
            "guidellm", "benchmark", "run", "--target", server.url, "--processor", MODEL,
            "--data", f"prompt_tokens=32,output_tokens={OUTPUT}", "--rate-type", "concurrent", "--rate", 8,
            "--max-requests", REQUESTS, "--output-path", "report.json", "--disable-progress",
            "--backend-args", json.dumps({"extra_body": {route: body}}),
            environment={"GUIDELLM__PREFERRED_ROUTE": route},
        ) as run:  # fmt: skip
            (report,) = json.loads((run.folder / "report.json").read_text())["benchmarks"]
        requests = report["requests"]
        self.assertEqual(requests["errored"], [])
        self.assertEqual(len(requests["successful"]), REQUESTS)
        for request in requests["successful"]:
            self.assertEqual(request["output_tokens"], OUTPUT)
            self.assertTrue(request["output"])
            self.assertGreaterEqual(request["first_token_time"], request["start_time"])

    def test_completions(self):
        self.bench("text_completions", {})

    def test_chat(self):
        """Without reasoning, which this client does not read."""
        self.bench("chat_completions", {"chat_template_kwargs": {"enable_thinking": False}})
