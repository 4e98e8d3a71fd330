#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds dashboards of Grafana to what a server really says.

usage: scripts/check_dashboards.py SCRAPE [DASHBOARD.json...]     (default: deploy/grafana/*.json)

SCRAPE is the text of /metrics: a file, or a URL. Every metric that a panel or a variable names must be in it,
with every label that is asked for, grouped by, or shown in a legend, and with the value that a label is compared
to. Prints what is missing and exits 1 when anything is: a dashboard is empty there, whatever it looks like.
"""

import json
import pathlib
import re
import sys
import urllib.request

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"^({NAME})(?:\{{(.*)\}})? \S+$")
LABEL = re.compile(r'([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"')
# What is a name in an expression but no metric.
WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "offset", "bool"}
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
LABEL_VALUES = re.compile(rf"label_values\(\s*({NAME})\s*(?:\{{[^}}]*\}})?,\s*(\w+)\s*\)")


def scrape_of(text):
    """{metric: [labels of each sample]}"""
    samples = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = SAMPLE.match(line)
        if not match:
            raise ValueError(f"not a sample: {line}")
        labels = {name: value for name, _, value in LABEL.findall(match.group(2) or "")}
        samples.setdefault(match.group(1), []).append(labels)
    return samples


def selectors_of(expression):
    """Yields (metric, matchers) of an expression in PromQL."""
    expression = GROUPING.sub(" ", expression)
    expression = re.sub(r"\[[^\]]*\]", " ", expression)
    for match in re.finditer(rf'({NAME})\s*(\{{(?:[^"}}]|"(?:[^"\\]|\\.)*")*\}})?(\s*\()?', expression):
        name, matchers, call = match.groups()
        if call or name in WORDS:
            continue
        yield name, LABEL.findall(matchers or "")


def faults_of_expression(expression, legend, samples):
    shown = set(LEGEND.findall(legend))
    for group in GROUPING.findall(expression):
        shown.update(label.strip() for label in group.split(",") if label.strip())
    for metric, matchers in selectors_of(expression):
        if metric not in samples:
            yield f"no metric {metric}"
            continue
        for label, operator, value in matchers:
            values = {labels.get(label) for labels in samples[metric]}
            if values == {None}:
                yield f"{metric} has no label {label}"
            elif operator == "=" and "$" not in value and value not in values:
                yield f'{metric} has no {label}="{value}"'
        shown -= {label for labels in samples[metric] for label in labels}
    for label in sorted(shown):
        yield f"no metric of {expression} has a label {label}"


def panels_of(panels):
    for panel in panels:
        yield panel
        yield from panels_of(panel.get("panels", []))


def faults_of(dashboard, samples):
    """Yields what is missing; a dashboard that asks nothing is at fault as well."""
    asked = 0
    for panel in panels_of(dashboard.get("panels", [])):
        for target in panel.get("targets", []):
            asked += 1
            for fault in faults_of_expression(target["expr"], target.get("legendFormat", ""), samples):
                yield f"panel '{panel.get('title', '')}': {fault}"
    for variable in dashboard.get("templating", {}).get("list", []):
        for metric, label in LABEL_VALUES.findall(str(variable.get("query", ""))):
            if not any(label in labels for labels in samples.get(metric, [])):
                yield f"variable '{variable['name']}': no {metric} with a label {label}"
    if not asked:
        yield "no panel asks for anything"


def read(source):
    if re.match(r"https?://", source):
        with urllib.request.urlopen(source, timeout=10) as answer:
            return answer.read().decode()
    return pathlib.Path(source).read_text()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root = pathlib.Path(__file__).resolve().parent.parent
    paths = [pathlib.Path(p) for p in sys.argv[2:]] or sorted(root.glob("deploy/grafana/*.json"))
    samples = scrape_of(read(sys.argv[1]))
    faults = [f"{path.name}: {fault}" for path in paths for fault in faults_of(json.loads(path.read_text()), samples)]
    print("\n".join(faults) if faults else f"{len(paths)} dashboards ask for nothing that is not there")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
