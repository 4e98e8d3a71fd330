#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fills in the expected results of the Jinja tests with the reference implementation.

Needs jinja2 (pip install jinja2==3.1.6). Two kinds of file under src/signalbox/text/testdata/jinja:

  *.cases          small templates. Each case is
                       == name
                       the template, one or more lines
                       -- {"a": "context"}        (optional)
                       >> "the output as a JSON string"      or      !! the error
                   and this program rewrites the last line.
  conversations/*.json, templates/*.jinja and the model's own chat template
                   every conversation through every template gives golden/TEMPLATE.txt, one line
                   per conversation: its name, then >> or !! as above.

With --check nothing is written and the exit status says whether a file would change.
"""
import argparse
import datetime
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "src/signalbox/text/testdata/jinja"
MODEL_TEMPLATE = ROOT / "models/tiny-qwen3.5-moe-mxfp4/chat_template.jinja"
NOW = datetime.datetime(2025, 3, 7, 14, 5, 9)  # a Friday; jinja_golden_test.cc has the same


class Generation(jinja2.ext.Extension):
    """{% generation %}: renders its body in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def outcome(env, template, context):
    try:
        return ">> " + json.dumps(env.from_string(template).render(**context), ensure_ascii=False)
    except Exception as e:  # any failure of the template is a result here
        return "!! " + f"{type(e).__name__}: {e}".splitlines()[0]


def update_cases(env, text):
    out, template, context, state = [], [], [], "between"
    for line in text.split("\n"):
        if state == "between":
            if line.startswith("== "):
                template, context, state = [], [], "template"
        elif line.startswith((">>", "!!")):
            source = "\n".join(template)
            line = outcome(env, source, json.loads("\n".join(context) or "{}"))
            state = "between"
        elif state == "template" and line.startswith("-- "):
            context, state = [line[3:]], "context"
        elif state == "context":
            context.append(line)
        else:
            template.append(line)
        out.append(line)
    if state != "between":
        raise SystemExit("a case has no result line; write a bare >> there")
    return "\n".join(out)


def results():
    env = environment()
    for path in sorted(DATA.glob("*.cases")):
        yield path, update_cases(env, path.read_text(encoding="utf-8"))
    conversations = []
    for path in sorted(DATA.glob("conversations/*.json")):
        conversations += json.loads(path.read_text(encoding="utf-8"))
    for path in sorted(DATA.glob("templates/*.jinja")) + [MODEL_TEMPLATE]:
        template = path.read_text(encoding="utf-8")
        name = "model" if path == MODEL_TEMPLATE else path.stem
        lines = [f"{c['name']} {outcome(env, template, c['context'])}\n" for c in conversations]
        yield DATA / "golden" / f"{name}.txt", "".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 on differences")
    check = parser.parse_args().check
    stale = []
    for path, text in results():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if not check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(("stale: " if check else "wrote ") + str(path.relative_to(ROOT)))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
