# SPDX-License-Identifier: Apache-2.0
"""What becomes of requests when clients leave, too many come, or a rank dies."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import unittest

from server import Server, until

PROMPT = "6+28="
# Prompt of the request, path, and how many events hold no token yet.
ENDPOINTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3000},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 3000},
    "/generate": {"text": PROMPT, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}},
}


def long_request(path, stream=True):
    """Runs for thousands of tokens unless somebody ends it."""
    body = ENDPOINTS[path] | {"stream": stream}
    return body if path == "/generate" else body | {"ignore_eos": True}


def read_events(connection, count):
    """The data of the first events of a stream; fewer where it ends before."""
    events = []
    lines = connection.makefile("rb")
    for line in lines:
        if line.startswith(b"data: "):
            events.append(line.removeprefix(b"data: ").strip())
            if len(events) == count:
                break
    return events


class Disconnect(unittest.TestCase):
    """A client that leaves gives back all that its request held."""

    @classmethod
    def setUpClass(cls):
        # Without the prefix cache, nothing is kept for later requests.
        cls.server = cls.enterClassContext(Server("--disable-radix-cache", name="disconnect"))

    def idle(self):
        return (
            self.server.metric("sglang:num_running_reqs") == 0
            and self.server.metric("sglang:num_queue_reqs") == 0
            and self.server.metric("sglang:num_used_tokens") == 0
        )

    def generated(self):
        return self.server.metric("sglang:generation_tokens_total")

    def test_every_endpoint(self):
        for path in ENDPOINTS:
            for tokens in (0, 1, 10):
                for stream in (True, False):
                    with self.subTest(path=path, tokens=tokens, stream=stream):
                        self.assertTrue(until(self.idle, seconds=10))
                        before = self.generated()
                        with self.server.open_stream(path, long_request(path, stream)) as connection:
                            if stream and tokens > 0:
                                self.assertEqual(len(read_events(connection, tokens)), tokens)
                            else:
                                self.assertTrue(until(lambda: self.generated() >= before + tokens, seconds=10))
                        self.assertTrue(until(self.idle, seconds=3), "something is still held")
                        self.assertLess(self.generated() - before, 3000)


class Overload(unittest.TestCase):
    def test_more_than_may_wait_are_told_so(self):
        with Server("--max-running-requests", "2", "--max-queued-requests", "2", name="overload") as server:
            body = {"prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                answers = list(pool.map(lambda _: server.post("/v1/completions", body), range(12)))
            statuses = [answer.status for answer in answers]
            self.assertLessEqual(set(statuses), {200, 429})
            self.assertGreaterEqual(statuses.count(200), 4)
            self.assertGreaterEqual(statuses.count(429), 1)
            for answer in answers:
                if answer.status == 429:
                    self.assertGreater(int(answer.headers["retry-after"]), 0)
                    self.assertEqual(answer.json()["error"]["type"], "rate_limit_error")
            self.assertEqual(server.post("/v1/completions", body | {"max_tokens": 2}).status, 200)


@unittest.skipUnless(shutil.which("mpirun"), "no mpirun")
class RankDies(unittest.TestCase):
    SECONDS = 5
    # Without --enable-recovery, mpirun itself ends all ranks as soon as one dies.
    LAUNCHER = ["mpirun", "--enable-recovery", "-np", "2", "--oversubscribe"]

    def follower(self, server):
        """The process id of rank 1."""
        children = subprocess.run(["pgrep", "-P", str(server.process.pid)], stdout=subprocess.PIPE, text=True)
        for pid in children.stdout.split():
            if b"OMPI_COMM_WORLD_RANK=1" in pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return int(pid)
        raise RuntimeError("no rank 1")

    def test_requests_end_with_an_error_and_health_is_503(self):
        if os.geteuid() == 0:
            os.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        with Server("--rank-timeout", "4", launcher=self.LAUNCHER, name="rank-dies", doomed=True) as server:
            streamed = server.open_stream("/generate", long_request("/generate"))
            whole = server.open_stream("/v1/completions", long_request("/v1/completions", stream=False))
            with streamed, whole, concurrent.futures.ThreadPoolExecutor(1) as pool:
                lines = streamed.makefile("rb")
                self.assertTrue(any(line.startswith(b"data: ") for line in lines))
                answer = pool.submit(whole.makefile("rb").readline)
                start = time.monotonic()
                os.kill(self.follower(server), signal.SIGKILL)
                events = [line.removeprefix(b"data: ").strip() for line in lines if line.startswith(b"data: ")]
                self.assertRegex(answer.result(timeout=10), rb"HTTP/1.1 50[03] ")
                self.assertEqual(server.status("/health"), 503)
                self.assertLess(time.monotonic() - start, self.SECONDS)
            self.assertEqual(events[-1], b"[DONE]")
            self.assertIn("message", json.loads(events[-2])["error"])
            self.assertEqual(server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).status, 503)
