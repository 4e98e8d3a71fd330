# SPDX-License-Identifier: Apache-2.0
"""What a running server says of itself, against what its clients were told.

usage: scripts/e2e/metrics_checks.py PROGRAM
"""

import concurrent.futures
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, "scripts")
import check_dashboards  # noqa: E402

MODEL = "models/tiny-qwen3.5-moe-mxfp4"
FLAGS = ["--tp", "2", "--dp", "2", "--enable-dp-attention", "--ep", "2", "--moe-a2a-backend", "mori",
         "--speculative-algorithm", "mtp", "--log-requests", "--log-format", "json"]
QUESTION = "Tom has 12 apples. Then Tom buys 7 more. How many apples does Tom have now?"
CHAT = {"model": "default", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 60}
REQUESTS = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {**CHAT, "n": 3, "temperature": 1}),
    ("/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/chat/completions", {**CHAT, "stop": [" the"]}),
    ("/v1/completions", {"model": "default", "prompt": QUESTION, "max_tokens": 17, "ignore_eos": True}),
    ("/v1/completions", {"model": "default", "prompt": [QUESTION, "Two"], "max_tokens": 5, "frob": 1}),
]


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def fetch(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "x-request-id": "metrics-check"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
        return answer.headers, answer.read().decode()


def usage_of(text):
    """Of an answer, or of the last event that has one."""
    if not text.startswith("data: "):
        return json.loads(text)["usage"]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return [event["usage"] for event in events if event.get("usage")][-1]


def scrape(url):
    headers, text = fetch(url + "/metrics")
    check(headers["Content-Type"].startswith("text/plain; version=0.0.4"), headers["Content-Type"])
    return text


def value(text, name):
    """Of a metric, all its samples added up."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if re.match(rf"{name}[{{ ]", line))


def counters_agree(url):
    before = scrape(url)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda request: fetch(url + request[0], request[1])[1], REQUESTS * 3))
    usages = [usage_of(answer) for answer in answers]
    after = scrape(url)
    for metric, field in (("generation_tokens_total", "completion_tokens"), ("prompt_tokens_total", "prompt_tokens")):
        told = sum(usage[field] for usage in usages)
        for prefix in ("signalbox_", "sglang:", "vllm:"):
            grown = value(after, prefix + metric) - value(before, prefix + metric)
            check(grown == told > 0, f"{prefix}{metric} grew by {grown}, clients were told {told}")
    check(value(after, "signalbox_ignored_fields_total") == 3, "three requests had a field that nobody knows")
    check(value(after, "signalbox_spec_accepted_tokens_total") > 0, "no draft was right")
    for name in ("requests_running", "rank_requests_running", "kv_cache_usage_ratio"):
        check(value(after, f"signalbox_{name}") == 0, f"{name} of an idle server")
    check(len(re.findall("^signalbox_rank_kv_cache_usage_ratio", after, re.MULTILINE)) == 2, "a gauge for each rank")
    load = json.loads(fetch(url + "/expert_load")[1])
    pairs = sum(sum(ranks) for ranks in load["ranks"])
    check(pairs == value(scrape(url), "signalbox_expert_pairs_total") > 0, "expert load agrees with its metric")


def dashboards_fit(url):
    samples = check_dashboards.scrape_of(scrape(url))
    for path in sorted(pathlib.Path("deploy/grafana").glob("*.json")):
        faults = list(check_dashboards.faults_of(json.loads(path.read_text()), samples))
        check(not faults, f"{path}: {faults}")


def log_is_sound(text):
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"time"')]
    requests = [line for line in lines if line["event"] == "request"]
    check(len(requests) == len(REQUESTS) * 3, f"{len(requests)} lines of requests")
    check(all(line["id"] and line["status"] == 200 and line["new_tokens"] > 0 for line in requests), requests)
    check("apples" not in text, "what a user wrote is in the log")


def main():
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        server = subprocess.Popen([sys.argv[1], "serve", MODEL, "--port", "0", *FLAGS], stdout=log, stderr=log)
        try:
            url = None
            end = time.monotonic() + 60
            while True:
                check(server.poll() is None and time.monotonic() < end, pathlib.Path(log.name).read_text())
                url = url or re.search(r"http://[0-9.]+:[0-9]+", pathlib.Path(log.name).read_text())
                try:
                    if url and fetch(url.group() + "/ready"):
                        break
                except urllib.error.URLError:
                    pass
                time.sleep(0.1)
            counters_agree(url.group())
            dashboards_fit(url.group())
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
        log_is_sound(pathlib.Path(log.name).read_text())
    print("e2e metrics: counters, dashboards and log agree with what clients were told")


main()
