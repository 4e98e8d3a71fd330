#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs clang-tidy over the sources, two runs at once, and remembers what was clean.

usage: scripts/lint.py BUILD_DIR [FILE...]      (FILE: only sources whose path contains one of these)

A file is clean as long as its text, the project files it reaches, its compile command and the configuration
of clang-tidy are what they were when clang-tidy last found nothing. Prints diagnostics and exits 1 when there are any.
Where a build compiles files together, so are they read here: most of the time goes into headers.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

TIDY = "clang-tidy-14"
# In a test neither speed nor the width of small products matters, a toy may be used whole, and tables of long
# literals are no missing commas.
TEST_CHECKS = "--checks=" + ",".join(
    [
        "-performance-*",
        "-bugprone-implicit-widening-of-multiplication-result",
        "-bugprone-suspicious-missing-comma",
        "-google-build-using-namespace",
    ]
)
ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "signalbox-lint"
INCLUDE = re.compile(rb'^\s*#\s*include\s*"((?:signalbox|/)[^"]+)"', re.MULTILINE)


@functools.cache
def content(path):
    return path.read_bytes()


def reached(path):
    """`path` and the project's files it includes, directly or not."""
    seen, todo = {path}, [path]
    while todo:
        for name in INCLUDE.findall(content(todo.pop())):
            header = ROOT / "src" / name.decode()  # an absolute name stays one
            if header not in seen and header.exists():
                seen.add(header)
                todo.append(header)
    return sorted(seen)


def configs_of(path):
    folders = [folder for folder in path.parents if folder.is_relative_to(ROOT)]
    return [folder / ".clang-tidy" for folder in folders if (folder / ".clang-tidy").exists()]


def options_of(entry):
    options = ["--quiet", "--extra-arg=-Wno-unknown-warning-option"]
    if re.search(r"_(test|benchmark|fuzz)(_main)?(\.cc$|\.dir/)", entry["file"]):
        options.append(TEST_CHECKS)
    return options


def key_of(entry):
    digest = hashlib.sha256(" ".join([TIDY, *options_of(entry)]).encode())
    command = entry.get("command") or " ".join(entry["arguments"])
    digest.update(re.sub(r"\s-[oc]\s\S+", "", command).replace(str(ROOT), "").encode())
    file = pathlib.Path(entry["file"])
    for path in [*configs_of(file), *reached(file)]:
        digest.update(f"\0{path.relative_to(ROOT)}\0".encode())
        digest.update(content(path).replace(bytes(ROOT), b""))
    return digest.hexdigest()


def lint(entry, build_dir):
    """Returns the diagnostics of one file, or None when it was clean before."""
    mark = CACHE / key_of(entry)
    if mark.exists():
        return None
    command = [TIDY, "-p", build_dir, *options_of(entry), entry["file"]]
    run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if run.returncode == 0 and "warning:" not in run.stdout:
        mark.touch()
        return ""
    return run.stdout or run.stderr


def separate(text):
    """Splits clang-tidy's output into diagnostics, each with its excerpt."""
    return re.split(r"^(?=\S+:\d+:\d+: (?:error|warning):)", text.replace(f"{ROOT}/", ""), flags=re.MULTILINE)


def main():
    build_dir, wanted = sys.argv[1], sys.argv[2:]
    entries = {e["file"]: e for e in json.loads(pathlib.Path(build_dir, "compile_commands.json").read_text())}
    entries = [e for f, e in sorted(entries.items()) if not wanted or any(w in f for w in wanted)]
    CACHE.mkdir(parents=True, exist_ok=True)
    clean_before, faulty, shown = 0, 0, set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for output in pool.map(lambda e: lint(e, build_dir), entries):
            clean_before += output is None
            faulty += bool(output)
            # A header's diagnostics come again with every file that includes it.
            for diagnostic in separate(output or ""):
                if diagnostic not in shown:
                    print(diagnostic, end="", flush=True)
                    shown.add(diagnostic)
    print(f"{len(entries)} files, {clean_before} unchanged since last found clean, {faulty} with diagnostics")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
