# SPDX-License-Identifier: Apache-2.0
"""A server for tests, and the plainest possible way to talk to it.

    with Server("--max-running-requests", "4") as server:
        answer = server.post("/v1/completions", {"prompt": "2+2=", "max_tokens": 4})
        print(answer.status, answer.json())
"""

import contextlib
import dataclasses
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
MODEL = ROOT / "models/tiny-qwen3.5-moe-mxfp4"
PROGRAM = pathlib.Path(os.environ.get("PROGRAM", "build/release/src/signalbox/cli/signalbox"))
LAYOUT = ["--tp", "2", "--ep", "2", "--moe-a2a-backend", "mori"]
LOGS = ROOT / "build/logs"
# The clients find everything on this machine, and say no more than they must.
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1", "NO_COLOR": "1"}


@dataclasses.dataclass
class Answer:
    status: int
    headers: dict  # names in lower case
    body: bytes

    def json(self):
        return json.loads(self.body)


def problems(count=None):
    """The word problems that come with the model: dicts with question, answer and the whole prompt."""
    lines = (MODEL / "eval.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[:count]]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, seconds, step=0.05):
    """Whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(step)
    return condition()


@dataclasses.dataclass
class Run:
    folder: pathlib.Path  # in which it ran
    output: str


@contextlib.contextmanager
def run_module(module, *arguments, prepare=lambda folder: None, environment=None, seconds=240):
    """Runs a client as users do, `python -m MODULE`, in a folder of its own. Fails as the client does."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        prepare(folder)
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=folder, env=os.environ | ENVIRONMENT | {"HF_HOME": name} | (environment or {}),
            timeout=seconds, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{module} exited with {done.returncode}: {done.stdout[-4000:]}")
        yield Run(folder, done.stdout)


class Server:
    """Ready when the block begins; when it ends, the server is drained and has exited with 0. `doomed` ones
    are killed instead."""

    def __init__(self, *flags, launcher=(), name="serve", doomed=False):
        self.doomed = doomed
        self.host, self.port = "127.0.0.1", free_port()
        self.url = f"http://{self.host}:{self.port}"
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"e2e-clients-{name}.log"
        command = [*launcher, ROOT / PROGRAM, "serve", MODEL, *LAYOUT, "--port", str(self.port), *flags]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT, cwd=ROOT)

    def __enter__(self):
        if not until(lambda: self.process.poll() is not None or self.status("/health") == 200, seconds=90):
            self.process.kill()
        if self.process.poll() is not None:
            raise RuntimeError(f"the server did not start: {self.log.read_text()[-2000:]}")
        return self

    def __exit__(self, *unused):
        if self.doomed:
            self.process.kill()
            self.process.wait()
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        if code != 0:
            raise RuntimeError(f"the server exited with {code}: {self.log.read_text()[-2000:]}")

    def request(self, method, path, body=None, headers=None, timeout=120):
        """`body`: bytes, or what becomes JSON."""
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body, **options):
        return self.request("POST", path, body, **options)

    def status(self, path):
        """Of a GET; None: nobody answers."""
        try:
            return self.get(path, timeout=5).status
        except OSError:
            return None

    def model(self):
        return self.get("/v1/models").json()["data"][0]["id"]

    def metric(self, name):
        """The sum of a metric's samples, whatever their labels are."""
        text = self.get("/metrics").body.decode()
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        if not values:
            raise KeyError(name)
        return sum(map(float, values))

    def open_stream(self, path, body):
        """A POST whose answer is not read yet: a socket, at its end after the answer."""
        data = json.dumps(body).encode()
        connection = socket.create_connection((self.host, self.port), timeout=60)
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        return connection
