# SPDX-License-Identifier: Apache-2.0
"""Clients that cannot be installed without an engine of their own, or that need a machine for themselves: the
requests they send (goldens.json), and what they read of the answers."""

import json
import pathlib
import unittest

from server import Server

GOLDENS = json.loads((pathlib.Path(__file__).parent / "goldens.json").read_text())
OPENAI = [golden for golden in GOLDENS if golden["path"].startswith("/v1/")]
TOKENS = 24  # asked for by every request


def setUpModule():
    global server
    # The first event of a request must show one token also when drafts give it several at a time.
    server = unittest.enterModuleContext(Server("--speculative-algorithm", "mtp", name="goldens"))


def ask(golden):
    """The answer, and its events without the last, which must be [DONE]."""
    body = json.loads(json.dumps(golden["body"]).replace('"MODEL"', json.dumps(server.model())))
    answer = server.post(golden["path"], body, headers=golden["headers"])
    lines = answer.body.decode().split("\n")
    if answer.status != 200 or lines[-3:] != ["data: [DONE]", "", ""]:
        raise AssertionError(f"{golden['client']}: {answer.status} {lines[-3:]}")
    # Each event is one line and an empty one: some clients read line by line, others split at empty lines.
    if any(line for line in lines[1::2]) or not all(line.startswith("data: {") for line in lines[0:-3:2]):
        raise AssertionError(f"{golden['client']}: not an event, then an empty line: {answer.body[:400]}")
    return answer, [json.loads(line.removeprefix("data: ")) for line in lines[0:-3:2]]


class Goldens(unittest.TestCase):
    def test_streams_of_the_openai_dialect(self):
        for golden in OPENAI:
            with self.subTest(client=golden["client"]):
                answer, events = ask(golden)
                self.assertEqual(answer.headers["content-type"].split(";")[0], "text/event-stream")
                if "x-request-id" in golden["headers"]:
                    self.assertEqual(answer.headers["x-request-id"], golden["headers"]["x-request-id"])
                chat = "chat" in golden["path"]
                self.assertEqual(
                    {event["object"] for event in events}, {"chat.completion.chunk" if chat else "text_completion"}
                )
                # A role alone, sent early, would be taken for the first token.
                first = events[0]["choices"][0]
                self.assertTrue(first["delta"]["role"] == "assistant" if chat else first["text"])
                usage = events[-1]
                self.assertEqual((usage["choices"], usage["usage"]["completion_tokens"]), ([], TOKENS))
                self.assertGreater(usage["usage"]["prompt_tokens"], 0)
                finishes = [event["choices"][0]["finish_reason"] for event in events[:-1]]
                self.assertEqual(finishes, [None] * (len(finishes) - 1) + ["length"])

    def test_a_batch_of_the_native_dialect(self):
        (golden,) = (golden for golden in GOLDENS if golden not in OPENAI)
        before = server.metric("sglang:prompt_tokens_total"), server.metric("sglang:cached_tokens_total")
        _, events = ask(golden)
        for index in range(len(golden["body"]["input_ids"])):
            mine = [event for event in events if event["index"] == index]
            counts = [event["meta_info"]["completion_tokens"] for event in mine]
            self.assertEqual((counts[0], counts[-1], counts), (1, TOKENS, sorted(counts)))
            for event, later in zip(mine, mine[1:]):
                self.assertTrue(later["text"].startswith(event["text"]))
            self.assertEqual({event["meta_info"]["finish_reason"] is None for event in mine[:-1]}, {True})
            self.assertEqual(mine[-1]["meta_info"]["finish_reason"]["type"], "length")
        asked = sum(map(len, golden["body"]["input_ids"]))
        self.assertEqual(server.metric("sglang:prompt_tokens_total") - before[0], asked)
        self.assertGreaterEqual(server.metric("sglang:cached_tokens_total"), before[1])

    def test_server_info(self):
        info = server.get("/get_server_info").json()
        self.assertEqual(info["dp_size"], 1)
        self.assertTrue(pathlib.Path(info["tokenizer_path"]).name)
        (state,) = info["internal_states"]
        self.assertGreater(state["effective_max_running_requests_per_dp"], 0)
        self.assertGreater(state["memory_usage"]["token_capacity"], 0)
        self.assertIn("last_gen_throughput", state)
        self.assertIn("avg_spec_accept_length", state)
        self.assertEqual(server.post("/flush_cache", b"").status, 200)
