#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks tools/reference/algebra.py for verdicts on layouts, one JSON object a line.

    tools/make_algebra_cases.py --mutants 400 src/signalbox/plan/testdata/algebra_cases.jsonl
    tools/make_algebra_cases.py --mutants 10000 build/algebra_cases.jsonl
    SIGNALBOX_ALGEBRA_CASES=build/algebra_cases.jsonl build/dev/src/signalbox/plan/plan_test \\
        --gtest_filter='Reference*'

CTest does the last two as plan_reference_cases and plan_reference_test. The cases are the
reference's golden plans, its faults and the first N mutants of its own fuzzer (seed 0). The verdict
is "typed" with the final value and the warnings, "refused" with the message, or "malformed" for a
list of steps that is not even a plan. Messages and values are in the words of plan/check.h, which
says the same things with other names; plans stay in the reference's steps. Needs only the standard
library: the reference uses numpy to simulate, which is not asked for here.
"""

import argparse
import importlib.util
import json
import math
import pathlib
import re
import sys
import types

HERE = pathlib.Path(__file__).resolve().parent

NAMES = {
    "residual": "residual",
    "attn": "mixer",
    "routed": "routed experts",
    "shared": "shared expert",
    "y": "normed input",
}
PHASES = {
    "attention norm": "mixer norm",
    "norm": "feed-forward norm",
    "latent norm": "latent norm",
    "layer exit": "layer exit",
}


def load_reference():
    try:
        import numpy  # noqa: F401
    except ImportError:
        sys.modules["numpy"] = types.SimpleNamespace(prod=math.prod)
    spec = importlib.util.spec_from_file_location("algebra", HERE / "reference" / "algebra.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["algebra"] = module
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------------ expressions
def parse_sum(text, at=0):
    """'x+f(y)' from `at` -> ([(name, inner sum or None)], position behind it)."""
    addends = []
    while True:
        name = re.compile(r"[a-z]+").match(text, at)
        at = name.end()
        inner = None
        if text[at : at + 1] == "(":
            inner, at = parse_sum(text, at + 1)
            at += 1
        addends.append((name.group(), inner))
        if text[at : at + 1] != "+":
            return addends, at
        at += 1


def in_our_words(addends):
    def one(name, inner):
        if inner is None:
            return name
        rows = in_our_words(inner)
        return {
            "attn": f"mixer(mixer_norm({rows}))",
            "norm": f"feed-forward_norm({rows})",
            "experts": f"experts({rows})",
            "shared": f"shared({rows})",
            "latent": f"latent_norm({rows})",
        }[name]

    return " + ".join(sorted(one(*a) for a in addends))


FEED_FORWARD_INPUT = "feed-forward_norm(mixer(mixer_norm(x)) + x)"


def expression(text):
    return in_our_words(parse_sum(text.replace(" ", ""))[0]).replace(FEED_FORWARD_INPUT, "y")


# --------------------------------------------------------------------------------------- messages
def coefficient(text):
    num, _, den = text.partition("/")
    value = int(num) / int(den or 1)
    return text if value * 10000 != int(value * 10000) else f"{value:g}"


def owes(name, axes):
    return f"{NAMES[name]} " + ("complete" if axes == "complete" else f"partial over {axes}")


def message(text):
    """-> (what, found or None); None where our detail says more than the reference."""
    rules = [
        (r"(all_reduce|reduce_scatter) over .* adds (.*)", lambda verb, rest: (f"{verb.replace('_', '-')} adds {rest}", "")),
        (r"(\w+) counted (\d+) times: it is whole on every rank of (\S+) but summed over it", lambda n, k, a: (f"{NAMES[n]} counted {k} times: it is replicated over {a} but summed over {a}", "")),
        (r"gather over (\S+): rows are not sharded over it", lambda a: (f"gathers rows over {a}, which does not shard them", "")),
        (r"gathers rows of which (\w+) still owes a sum over (\S+)", lambda n, a: (f"gathers rows that still owe a sum over {a}", None)),
        (r"(rows are sharded over \S+ already)", lambda rest: (f"slices rows that {rest[5:]}", "")),
        (r"add of rows sharded over (\S+) and over (\S+)", lambda a, b: ("adds rows of different tokens", f"rows sharded over {a} and rows sharded over {b}")),
        (r"(adds a complete and a partial value): (.*)", lambda what, parts: (what, ", ".join(owes(*p.split(":")) for p in parts.split(" | ")))),
        (r"(.*) before the sum of (\w+) over (\S+) is complete", lambda p, n, a: (f"{PHASES[p]} before the sum over {a} is complete", owes(n, a))),
        (r"(router weights applied twice): (.*)", lambda what, who: (what, who)),
        (r"(\w+): coefficient (\S+) at layer exit", lambda n, c: (f"{NAMES[n]}: coefficient {coefficient(c)} at layer exit", "")),
        (r"(with the layout erased the plan computes) (.*), the model (.*)", lambda what, a, b: (f"{what} {expression(a)}, the model {expression(b)}", "y = " + FEED_FORWARD_INPUT)),
        (r"(router weights are not applied|attention needs the whole sequence: .*|shared expert sliced over .*|masked experts need all rows: .*|experts sliced over .*)", lambda what: (what, "")),
    ]
    for pattern, say in rules:
        match = re.fullmatch(pattern, text)
        if match:
            return say(*match.groups())
    raise SystemExit(f"no words for: {text}")


def final_value(value):
    assert not value.cols and all(t.coef == 1 and not t.part for _, t in value.terms)
    rows = "+".join(sorted(value.rows)) or "all"
    return f"rows: {rows} | " + " + ".join(NAMES[n] for n, _ in value.terms)


# ------------------------------------------------------------------------------------------ cases
def case(algebra, name, steps, mesh, latent):
    result = {"name": name, "mesh": mesh, "latent": int(latent), "steps": steps}
    try:
        value, warnings = algebra.check(steps, mesh, latent)
        # An axis of one rank repeats nothing; only the reference warns of it.
        warnings = [w for w in warnings if "dispatched 1 times" not in w]
        result |= {"verdict": "typed", "final": final_value(value), "warnings": warnings}
    except algebra.Refused as refusal:
        what, found = message(str(refusal))
        result |= {"verdict": "refused", "what": what}
        if found is not None:
            result["found"] = found
    except (KeyError, IndexError):
        result["verdict"] = "malformed"
    return result


def mutants(algebra, count):
    """What the reference's fuzzer tries, caught on its way into check()."""
    tried = []
    check, simulate, say = algebra.check, algebra.simulate, print

    def record(steps, mesh, latent=False):
        tried.append((steps, dict(mesh), latent))
        return check(steps, mesh, latent)

    algebra.check, algebra.simulate = record, lambda *a, **k: 0.0
    algebra.print = lambda *a: None
    try:
        algebra.fuzz(count, seed=0)
    finally:
        algebra.check, algebra.simulate, algebra.print = check, simulate, say
    return tried


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--mutants", type=int, default=10000)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()

    algebra = load_reference()
    plans = [(f"golden {n}", st, mesh, lat) for n, (mesh, lat, st) in algebra.G.items()]
    for name, (mesh, lat, _, st) in algebra.B.items():
        plans.append(("fault " + re.sub(r" \(the .* fault\)", "", name), st, mesh, lat))
    plans += [(f"mutant {i}", *m) for i, m in enumerate(mutants(algebra, arguments.mutants))]
    counts = {}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", encoding="utf-8") as out:
        for plan in plans:
            result = case(algebra, *plan)
            counts[result["verdict"]] = counts.get(result["verdict"], 0) + 1
            out.write(json.dumps(result, separators=(",", ":")) + "\n")
    print(f"{arguments.out}: {len(plans)} plans, {counts}")


if __name__ == "__main__":
    main()
