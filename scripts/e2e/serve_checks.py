# SPDX-License-Identifier: Apache-2.0
"""Checks of a running server, with nothing but the standard library.

usage: scripts/e2e/serve_checks.py PROGRAM
"""

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

MODEL = "models/tiny-qwen3.5-moe-mxfp4"
LAYOUT = ["--tp", "2", "--ep", "2", "--moe-a2a-backend", "mori"]
APPLES = "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"
STREAMS = 2000


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def eventually(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, f"not within {seconds} s: {what}")
        time.sleep(0.05)


class Server:
    """`signalbox serve` in a process of its own."""

    def __init__(self, program, *flags, before=()):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [*before, program, "serve", MODEL, "--port", "0", *flags], stderr=self.log, stdout=self.log)
        eventually(lambda: self.dead() or self.address(), "an address")
        check(self.address(), f"it ended: {self.text()}")
        self.port = int(self.address().rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.dead():
            self.process.kill()
        self.process.wait()
        self.log.close()

    def text(self):
        with open(self.log.name) as log:
            return log.read()

    def address(self):
        found = re.search(r"http://[0-9.]+:[0-9]+", self.text())
        return found and found.group()

    def dead(self):
        return self.process.poll() is not None

    def ask(self, path, body=None, method=None, headers=None, timeout=60):
        """(status, headers, text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            known = {"Content-Type": "application/json"} if data else {}
            connection.request(method or ("POST" if data else "GET"), path, data, {**known, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()

    def status(self, path):
        return self.ask(path)[0]

    def wait_until_ready(self):
        eventually(lambda: self.dead() or self.status("/ready") == 200, "ready")
        check(not self.dead(), f"it ended: {self.text()}")

    def value(self, name):
        """Of a metric, all its samples added up."""
        lines = self.ask("/metrics")[2].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[{{ ]", line))


def generate(tokens, stream=False):
    return {"text": "One two", "stream": stream,
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}}


class Streaming(threading.Thread):
    """One request whose answer is read elsewhere."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body, self.result = server, body, None
        self.start()

    def run(self):
        try:
            self.result = self.server.ask("/generate", self.body, timeout=120)
        except (OSError, http.client.HTTPException) as error:
            self.result = (0, {}, repr(error))

    def wait(self, seconds=120):
        self.join(seconds)
        check(self.result is not None, f"no answer within {seconds} s")
        return self.result


def answers(program):
    with Server(program, *LAYOUT) as server:
        check(server.status("/live") == 200, "live while loading")
        server.wait_until_ready()
        check(server.value("signalbox_requests_ended_total") == 0, "requests that nobody made")
        models = json.loads(server.ask("/v1/models")[2])
        check(models["data"][0]["id"] == MODEL, models)
        status, headers, text = server.ask(
            "/v1/chat/completions", {"model": "default", "messages": [{"role": "user", "content": APPLES}]},
            headers={"X-Request-Id": "e2e-1"})
        check(status == 200 and "19" in json.loads(text)["choices"][0]["message"]["content"], text)
        check(headers["X-Request-Id"] == "e2e-1", headers)
        info = json.loads(server.ask("/server_info")[2])
        check(info["tp_size"] == 2 and info["ep_size"] == 2, info)
        check("imbalance" in server.ask("/expert_load")[2], "expert load")
        check(server.ask("/plan.svg")[2].lstrip().startswith("<"), "a picture of the plan")
        check("<html" in server.ask("/")[2], "the page")
        asyncio.run(many_streams(server))
        eventually(lambda: server.value("signalbox_requests_running") == 0, "nothing runs")


async def many_streams(server):
    """All are open at the same time, and every one is answered whole."""
    body = json.dumps(generate(4, stream=True)).encode()
    request = (b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
               b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)) + body
    connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(STREAMS)]

    async def one(reader, writer):
        writer.write(request)
        text = await reader.read(-1)
        writer.close()
        return b" 200 " in text.split(b"\r\n", 1)[0] and b"data: [DONE]" in text

    whole = await asyncio.wait_for(asyncio.gather(*(one(*c) for c in connections)), 240)
    check(all(whole), f"{whole.count(False)} of {STREAMS} streams were not answered")


def drains(program):
    with Server(program, "--shutdown-timeout", "30") as server:
        server.wait_until_ready()
        open_request = Streaming(server, generate(400, stream=True))
        eventually(lambda: server.value("signalbox_requests_running") == 1, "a running request")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.status("/ready") == 503, "draining")
        check(server.status("/live") == 200, "live while draining")
        status, headers, text = server.ask("/generate", generate(1))
        check(status == 503 and "Retry-After" in headers, text)
        status, _, text = open_request.wait()
        check(status == 200 and text.endswith("data: [DONE]\n\n") and '"length"' in text, text[-300:])
        check(server.process.wait(20) == 0, server.text())
    with Server(program) as server:
        server.wait_until_ready()
        Streaming(server, generate(3000, stream=True))
        eventually(lambda: server.value("signalbox_requests_running") == 1, "a running request")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.status("/ready") == 503, "draining")
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        check(server.process.wait(5) == 128 + signal.SIGTERM, "the second signal ends it")
        check(time.monotonic() - start < 1, "at once")


def refuses(program):
    """What cannot be served ends with its exit code, not with a server that is never ready."""
    with tempfile.TemporaryDirectory() as empty:
        for flags, code in (([empty], 5), ([MODEL, "--port", "70000"], 2), ([MODEL, "--host", "192.0.2.1"], 2),
                            ([MODEL, "--api-key-file", "/nonexistent"], 2), ([MODEL, "--tp", "3"], 3)):
            result = subprocess.run([program, "serve", "--port", "0", *flags], capture_output=True, timeout=60,
                                    check=False)
            check(result.returncode == code, f"{flags}: {result}")


def a_rank_is_lost(program):
    """Whether it stops or dies, health says so within 5 s, and what is open ends with an error."""
    if not shutil.which("mpirun"):
        return print("e2e serve: no mpirun: skipped a rank that is lost")
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    # mpirun would end all ranks with one that dies.
    mpirun = ["mpirun", "-np", "2", "--oversubscribe", "--enable-recovery"]
    for lost in (signal.SIGSTOP, signal.SIGKILL):
        with Server(program, *LAYOUT, "--rank-timeout", "3", before=mpirun) as server:
            server.wait_until_ready()
            open_request = Streaming(server, generate(3000))
            eventually(lambda: server.value("signalbox_requests_running") == 1, "a running request")
            children = subprocess.run(["pgrep", "-P", str(server.process.pid)], capture_output=True, text=True, check=True)
            for pid in map(int, children.stdout.split()):
                with open(f"/proc/{pid}/environ") as environment:
                    if "OMPI_COMM_WORLD_RANK=1" in environment.read().split("\0"):
                        os.kill(pid, lost)
            start = time.monotonic()
            eventually(lambda: server.status("/health") == 503, "health of a dead engine", 5)
            status, _, text = open_request.wait(5)
            check(status >= 500 and "failed on this request" in text, text)
            check(time.monotonic() - start < 5, "in time")
            check(server.status("/live") == 503, "nothing but a new start helps")
            check("rank 1" in server.text(), "the log says why")


def main():
    for step in (answers, drains, refuses, a_rank_is_lost):
        start = time.monotonic()
        step(sys.argv[1])
        print(f"e2e serve: {step.__name__}: {time.monotonic() - start:.1f} s")


main()
