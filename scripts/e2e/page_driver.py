#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Uses the page of a running server as a person would, in headless Chromium, and photographs it.

usage: scripts/e2e/page_driver.py URL MODEL PICTURES KEY

Gives the KEY that the server wants, asks the first question of MODEL/eval.jsonl and waits for its answer; looks
at the live numbers, the map of expert load and the plan; stops an answer half way. Fails on an error in the
console, other than of asking before the server was ready or had the key, and on a request to anybody but URL.
Speaks the WebDriver protocol, which is JSON over HTTP, with chromedriver itself.
"""

import atexit
import base64
import json
import pathlib
import re
import subprocess
import sys
import time
import urllib.request


class Browser:
    def __init__(self):
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
        atexit.register(self.driver.wait)
        atexit.register(self.driver.terminate)  # the last one registered comes first
        for line in self.driver.stdout:
            if "started successfully on port" in line:
                self.base = f"http://127.0.0.1:{line.rsplit(' ', 1)[1].strip().rstrip('.')}/session"
                break
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self.base += "/" + self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["value"]

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, element):
        return self.run("return document.getElementById(arguments[0]).textContent", element)

    def type(self, element, keys):
        found = self.call("POST", "/element", {"using": "css selector", "value": f"#{element}"})
        self.call("POST", f"/element/{next(iter(found.values()))}/value", {"text": keys})

    def wait(self, what, script, *arguments, limit=60):
        end = time.monotonic() + limit
        while not (value := self.run(script, *arguments)):
            if time.monotonic() > end:
                sys.exit(f"page: {what}: not within {limit} s")
            time.sleep(0.05)
        return value

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show(self, width, height, colours, phone=False):
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        features = [{"name": "prefers-color-scheme", "value": colours}]
        self.devtools("Emulation.setEmulatedMedia", features=features)

    def photograph(self, path):
        time.sleep(0.4)  # what moves has come to rest
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def close(self):
        self.call("DELETE", "")


def check(holds, what):
    if not holds:
        sys.exit(f"page: {what}")


DASH = "–"
READY = "return document.documentElement.dataset.state === 'ready'"
ANSWERED = "return document.querySelectorAll('.answer:not([aria-busy])').length === arguments[0]"


ENTER = "\ue007"
# What the console says of asking while the model is loading, or without the key.
BEFORE_READY = re.compile("/health .* status of 503|/metrics .* status of 401")


def unlock(browser, key):
    browser.wait("the word that a key is needed", "return document.documentElement.dataset.state === 'locked'")
    check(browser.run("return document.getElementById('settings').open"), "the field for the key is hidden")
    browser.type("key", key + ENTER)
    browser.run("document.getElementById('settings').open = false")
    browser.wait("ready", READY)
    check(browser.run("return sessionStorage.getItem('key')") == key, "the key is not kept for this tab")


def ask(browser, question, answers):
    """Types it, and waits until there are so many answers; returns the last one's text."""
    browser.type("question", question + ENTER)
    browser.wait("an answer", ANSWERED, answers)
    return browser.run("return [...document.querySelectorAll('.answer')].pop().children[1].textContent")


def chat(browser, problem):
    # How long the conversation was each time that it changed: an answer that streams comes in pieces.
    browser.run(
        "window.lengths = new Set(); const log = document.getElementById('log');"
        "new MutationObserver(() => lengths.add(log.textContent.length))"
        ".observe(log, {subtree: true, childList: true, characterData: true})"
    )
    answer = ask(browser, problem["question"], answers=1)
    check(str(problem["answer"]) in answer, f"no {problem['answer']} in the answer: {answer}")
    check(browser.run("return lengths.size") > 4, "the answer came in one piece")
    check(
        browser.run("const d = document.querySelector('.thoughts'); return !d.hidden && !d.open"),
        "the thinking is not folded",
    )
    check("tok/s" in browser.run("return document.querySelector('.answer footer').textContent"), "no speed")


def live_numbers(browser):
    browser.wait("tokens per second", "return parseFloat(document.getElementById('peak').textContent) > 0")
    for element in ("model", "layout", "version", "speed", "running", "waiting", "accept", "kv", "slots"):
        check(browser.text(element) not in ("", DASH), f"nothing shown for {element}")
    for bar in ("kv-bar", "slots-bar"):
        check(
            browser.run("return document.getElementById(arguments[0]).parentNode.ariaValueNow", bar),
            f"{bar} has no value",
        )


def expert_map(browser, config):
    experts, layers = config["num_experts"], config["num_hidden_layers"] + config["mtp_num_hidden_layers"]
    cells = "const map = document.getElementById('heat'); return [map.height, map.width]"
    browser.wait("the map of expert load", f"{cells}[1] > 1")
    rows, columns = browser.run(cells)
    check([rows, columns] == [layers, experts], f"a map of {rows} x {columns}, not {layers} x {experts}")
    colours = browser.run(
        "const map = document.getElementById('heat');"
        "const bytes = map.getContext('2d').getImageData(0, 0, map.width, map.height).data;"
        "return new Set(new Uint32Array(bytes.buffer)).size"
    )
    check(colours > 10, f"the map has only {colours} colours")
    browser.run("document.querySelector('[data-columns=ranks]').click()")
    check(browser.run(cells)[1] == 2, "the map of ranks has not two columns")
    browser.run("document.querySelector('[data-columns=experts]').click()")


def plan(browser):
    browser.wait("the plan", "return document.getElementById('plan-small').naturalWidth > 100")
    browser.run("document.getElementById('plan').click()")
    check(browser.run("return document.getElementById('large').open"), "the plan does not open")
    browser.run("document.getElementById('large').close()")


def stop(browser, question):
    """Presses Stop, from within the page, when the first text of the second answer is there."""
    browser.run(
        "const seen = new MutationObserver(() => {"
        "  if (!document.querySelectorAll('.answer')[1]?.textContent.includes('token')) return;"
        "  seen.disconnect(); document.getElementById('send').click(); });"
        "seen.observe(document.getElementById('log'), {subtree: true, childList: true})"
    )
    ask(browser, question, answers=2)
    said = browser.run("return document.querySelectorAll('.answer footer')[1].textContent")
    check(said.endswith("stopped"), f"the second answer was not stopped: {said}")
    browser.wait("nothing running", "return document.getElementById('running').textContent === '0'")


def still(browser):
    moved = browser.run("return shifts.reduce((sum, shift) => sum + shift, 0)")
    check(moved < 0.02, f"the page moved under the reader: a layout shift of {moved}")


def names(browser):
    for node in browser.devtools("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value")
        if role in ("button", "textbox", "checkbox", "spinbutton", "meter", "dialog"):
            check(node.get("name", {}).get("value"), f"a {role} without a name: {node}")


def quiet(browser, url):
    for entry in browser.log("browser"):
        check(BEFORE_READY.search(entry["message"]) or entry["level"] not in ("SEVERE", "WARNING"), f"in the console: {entry['message']}")
    for entry in browser.log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            asked = event["params"]["request"]["url"]
            check(asked.startswith((url, "data:", "blob:")), f"the page asked {asked}")


def photographs(browser, pictures):
    for name, width, height, colours in (("light", 1440, 900, "light"), ("dark", 1440, 900, "dark")):
        browser.show(width, height, colours)
        browser.photograph(pictures / f"{name}.png")
    browser.show(390, 844, "light", phone=True)
    browser.photograph(pictures / "narrow.png")
    browser.run("document.querySelector('[data-view=live]').click()")
    browser.photograph(pictures / "narrow-live.png")
    wide = browser.run("return document.documentElement.scrollWidth")
    check(wide <= 390, f"{wide} pixels wide on a telephone of 390")
    browser.run("document.querySelector('[data-view=chat]').click()")


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    url, key = sys.argv[1] + "/", sys.argv[4]
    model, pictures = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    problems = [json.loads(line) for line in (model / "eval.jsonl").open()]
    config = json.loads((model / "config.json").read_text())["text_config"]
    pictures.mkdir(parents=True, exist_ok=True)
    browser = Browser()
    try:
        browser.show(1440, 900, "light")
        browser.open(url)
        browser.run(
            "window.shifts = []; new PerformanceObserver((seen) => seen.getEntries().forEach((entry) => {"
            "if (!entry.hadRecentInput) shifts.push(entry.value); })).observe({type: 'layout-shift', buffered: true})"
        )
        unlock(browser, key)
        chat(browser, problems[0])
        live_numbers(browser)
        expert_map(browser, config)
        plan(browser)
        still(browser)
        names(browser)
        photographs(browser, pictures)
        stop(browser, problems[1]["question"])
        quiet(browser, url)
    finally:
        browser.close()
    print(f"page: all holds; look at {pictures}/*.png")


if __name__ == "__main__":
    main()
