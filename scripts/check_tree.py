#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that need no compiler.

usage: scripts/check_tree.py (sizes|names|paths|words)

  sizes  no file over 1,000 lines, no function over 100
  names  no back end is asked for by name outside the contract table
  paths  no path of somebody's machine
  words  no unfinished work, and the licence line on top of every source file

Prints every violation as file:line: message and exits 1 when there is one.
"""

import ast
import os
import pathlib
import re
import sys

MAX_FILE_LINES = 1000
MAX_FUNCTION_LINES = 100

CPP = {".cc", ".h", ".cu", ".cuh"}
TEXT = CPP | {".py", ".sh", ".cmake", ".md", ".txt", ".json", ".yaml", ".yml", ""}
SKIPPED_FOLDERS = {".git", ".venv", ".deps", ".cache", "build", "out", "models", "testdata", "__pycache__"}


def files(root, suffixes):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            if path.suffix in suffixes:
                yield path


# A block opens on a line that ends in "{" and, the sources being formatted, closes on the first line of the
# same indentation that begins with "}". It is a function when what opens it has parameters and is no statement.
NOT_A_FUNCTION = re.compile(
    r"^\s*(if|else|for|while|switch|do|try|catch|return|case|default|namespace|class|struct|enum|union|extern|\})\b"
)


def cpp_functions(lines):
    """Yields (first line, last line) of the outermost functions, counted from 1."""
    number = 0
    while number < len(lines):
        line = lines[number]
        first = number
        number += 1
        if not line.strip() or line.lstrip().startswith(("#", "//", "{", "}")) or NOT_A_FUNCTION.match(line):
            continue
        indent = len(line) - len(line.lstrip())
        # The declaration may go on over deeper lines until it opens a block or ends.
        opening = first
        while opening < len(lines) and not lines[opening].rstrip().endswith(("{", ";", "}", ":")):
            opening += 1
        if opening == len(lines) or not lines[opening].rstrip().endswith("{"):
            continue
        if "(" not in "".join(lines[first : opening + 1]):
            continue
        closing = re.compile(rf"^ {{{indent}}}\}}")
        last = next((n for n in range(opening + 1, len(lines)) if closing.match(lines[n])), None)
        if last is not None:
            yield first + 1, last + 1
            number = last + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno


def sizes(root):
    for path in files(root, CPP | {".py", ".sh", ".cmake"}):
        text = path.read_text()
        lines = text.splitlines()
        if len(lines) > MAX_FILE_LINES:
            yield f"{path}:1: {len(lines)} lines, at most {MAX_FILE_LINES}: split it by what it knows"
        functions = ()
        if path.suffix in CPP:
            functions = cpp_functions(lines)
        elif path.suffix == ".py":
            functions = python_functions(text)
        for first, last in functions:
            if last - first + 1 > MAX_FUNCTION_LINES:
                yield f"{path}:{first}: function of {last - first + 1} lines, at most {MAX_FUNCTION_LINES}"


BACK_END = re.compile(
    r"\b(mori|deepep|pplx|nixl|mooncake|megamoe|uccl|flashinfer|hybrid_ep|nccl_ep|(ascend_)?fuseep)(_\w+)?\b",
    re.IGNORECASE,
)
A_FLAG = re.compile(r"deepep[-_]mode")  # spelled as users of other engines know it


def names(root):
    for path in files(root / "src", CPP):
        if "contract" in path.name or re.search(r"_(test|benchmark|fuzz)\.cc$", path.name):
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            code = A_FLAG.sub("", line.split("//")[0])
            match = BACK_END.search(code)
            if match:
                yield f"{path}:{number}: names back end '{match.group()}'; ask its contract for a property"


def paths(root):
    elsewhere = re.compile(r"(?<![\w.])/(home|root|Users|work|mnt)/?\w*")
    for path in files(root, TEXT):
        if path.name.startswith("check_tree"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            match = elsewhere.search(line)
            if match:
                yield f"{path}:{number}: machine path {match.group()}"


UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def words(root):
    for path in files(root / "src", CPP):
        lines = path.read_text().splitlines()
        if not lines or "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
            yield f"{path}:1: the first line is not // SPDX-License-Identifier: Apache-2.0"
        for number, line in enumerate(lines, start=1):
            if UNFINISHED.search(line):
                yield f"{path}:{number}: unfinished: {line.strip()}"


CHECKS = {"sizes": sizes, "names": names, "paths": paths, "words": words}


def main():
    if len(sys.argv) != 2 or sys.argv[1] not in CHECKS:
        sys.exit(__doc__)
    violations = list(CHECKS[sys.argv[1]](pathlib.Path(".")))
    for violation in violations:
        print(violation)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
