# SPDX-License-Identifier: Apache-2.0
"""Layout algebra: an executable reference of the typing rules in design/layout.md.

Two independent readings of the same list of steps:
  check(steps, mesh)    types it: which rows, which columns, who owes which sum, which coefficient;
  simulate(steps, mesh) runs it with numpy on every rank of the mesh and compares with one rank.
A plan that type-checks must simulate to the one-rank result; each faulty plan must be refused, and nearly all
of them also differ in value (wasteful but right ones are warnings, not errors). Run: python3 algebra.py [fuzz [N]]

Mesh: named base axes with sizes. A group is a set of base axes, so attn_tp={'a','b'}, moe_ep={'a'}, moe_tp={'b'} is
ep 2 x moe_tp 2 under attention TP 4. One reduce over {'a','b'} completes a value that is partial over both.
"""
from dataclasses import dataclass, field, replace
from fractions import Fraction
import itertools
import numpy as np

# ---------------------------------------------------------------- values
@dataclass(frozen=True)
class Term:
    coef: Fraction = Fraction(1)      # how often the addend is contained in the completed value
    part: frozenset = frozenset()     # axes whose ranks each hold a share of it

@dataclass(frozen=True)
class Value:
    rows: frozenset = frozenset()     # axes that shard the tokens
    cols: frozenset = frozenset()     # axes that shard the features
    terms: tuple = ()                 # ((name, Term), ...)
    weighted: bool = True             # router weights applied to the routed term
    expr: tuple = ()                  # what is computed once the layout is erased: sorted addends, each a string
    def __str__(self):
        t = " + ".join(f"{'' if t.coef == 1 else str(t.coef) + '*'}{n}" + (f"/part{sorted(t.part)}" if t.part else "") for n, t in self.terms)
        return f"rows{sorted(self.rows)} cols{sorted(self.cols)} {t}"

class Refused(Exception):
    pass

def need(ok, msg):
    if not ok: raise Refused(msg)

S = lambda axes: frozenset(axes)
names = lambda axes: "+".join(sorted(axes))

# ---------------------------------------------------------------- typing rules; registers: x residual, h, routed, shared
def reduce_terms(v, g, mesh, verb):
    need(not (g & v.rows), f"{verb} over {names(g)} adds different tokens: rows are sharded over {names(g & v.rows)}")
    out = []
    for n, t in v.terms:
        for a in sorted(g):
            if a in t.part: t = replace(t, part=t.part - {a})
            else:
                need(False, f"{n} counted {mesh[a]} times: it is whole on every rank of {a} but summed over it")
        out.append((n, t))
    return tuple(out)

def complete(v, what):
    for n, t in v.terms:
        need(not t.part, f"{what} before the sum of {n} over {names(t.part)} is complete")
    need(not v.cols, f"{what} on features sharded over {names(v.cols)}")

def program(latent):
    """The model's own one-rank computation, as an expression: erasing the layout from a plan must give exactly this."""
    h = "+".join(sorted(("x", "attn(x)"))); y = f"norm({h})"; r = f"experts({y})"
    return tuple(sorted(("x", "attn(x)", f"latent({r})" if latent else r, f"shared({y})")))

def check(steps, mesh, latent=False):
    """Returns (final residual value, warnings) or raises Refused."""
    warn, reg = [], {}
    ex = lambda r: "+".join(reg[r].expr)
    for s in steps:
        op, a = s[0], s[1:]
        if op == "input": reg["x"] = Value(rows=S(a[0]), terms=(("residual", Term()),), expr=("x",))
        elif op == "attn":                         # norm + attention with heads over axes a[0] + row-parallel o_proj
            complete(reg["x"], "attention norm")
            need(not (reg["x"].rows & S(a[0])), f"attention needs the whole sequence: rows are sharded over {names(reg['x'].rows & S(a[0]))}")
            reg["h"] = Value(rows=reg["x"].rows, terms=(("attn", Term(part=S(a[0]))),), expr=(f"attn({ex('x')})",))
        elif op in ("all_reduce", "reduce_scatter"):
            r, g = a[0], S(a[1]); v = reg[r]
            t = reduce_terms(v, g, mesh, op)
            reg[r] = replace(v, terms=t, rows=v.rows | (g if op == "reduce_scatter" else S([])))
        elif op == "all_gather":
            r, g = a[0], S(a[1]); v = reg[r]
            need(g <= v.rows, f"gather over {names(g - v.rows)}: rows are not sharded over it")
            for n, t in v.terms: need(not (t.part & g), f"gathers rows of which {n} still owes a sum over {names(t.part & g)}")
            reg[r] = replace(v, rows=v.rows - g)
        elif op == "slice":                        # keep only this rank's rows of a replicated value
            r, g = a[0], S(a[1]); v = reg[r]
            need(not (g & v.rows), f"rows are sharded over {names(g & v.rows)} already"); reg[r] = replace(v, rows=v.rows | g)
        elif op == "add":                          # add(dst, src)
            d, s_ = reg[a[0]], reg[a[1]]
            need(d.rows == s_.rows, f"add of rows sharded over {names(d.rows) or 'nothing'} and over {names(s_.rows) or 'nothing'}")
            pd = {t.part for _, t in d.terms}; ps = {t.part for _, t in s_.terms}
            need(len(pd | ps) == 1, "adds a complete and a partial value: " + " | ".join(f"{n}:{names(t.part) or 'complete'}" for n, t in d.terms + s_.terms))
            need(s_.weighted, "router weights are not applied")
            reg[a[0]] = replace(d, terms=d.terms + s_.terms, expr=tuple(sorted(d.expr + s_.expr)))
        elif op == "norm": complete(reg[a[0]], "norm"); reg["y"] = Value(rows=reg[a[0]].rows, terms=(("y", Term()),), expr=(f"norm({ex(a[0])})",))
        elif op == "shared":                       # shared expert, width sliced over axes a[0]
            need(not (reg["y"].rows & S(a[0])), f"shared expert sliced over {names(S(a[0]) & reg['y'].rows)} whose ranks hold different rows")
            reg["shared"] = Value(rows=reg["y"].rows, terms=(("shared", Term(part=S(a[0]))),), expr=(f"shared({ex('y')})",))
        elif op == "experts_masked":               # every rank of ep sees all rows, runs its own experts, width over tp
            ep, tp = S(a[0]), S(a[1])
            need(not (reg["y"].rows & (ep | tp)), f"masked experts need all rows: they are sharded over {names(reg['y'].rows & (ep | tp))}")
            reg["routed"] = Value(rows=reg["y"].rows, terms=(("routed", Term(part=ep | tp)),), expr=(f"experts({ex('y')})",))
        elif op == "experts_a2a":                  # dispatch over ep, runner, combine; who applies the router weight
            ep, tp, who = S(a[0]), S(a[1]), a[2]
            rep = ep - reg["y"].rows
            if rep: warn.append(f"each row is dispatched {int(np.prod([mesh[q] for q in rep]))} times: rows are the same over {names(rep)}")
            need(not (tp & reg["y"].rows), f"experts sliced over {names(tp & reg['y'].rows)} whose ranks hold different rows")
            need(len(who) <= 1, "router weights applied twice: by " + " and by ".join(who))
            reg["routed"] = Value(rows=reg["y"].rows, terms=(("routed", Term(part=tp)),), weighted=len(who) == 1, expr=(f"experts({ex('y')})",))
        elif op == "latent_norm": complete(reg["routed"], "latent norm"); reg["routed"] = replace(reg["routed"], expr=(f"latent({ex('routed')})",))
        elif op == "scale": r, c = a; reg[r] = replace(reg[r], terms=tuple((n, replace(t, coef=t.coef * Fraction(c))) for n, t in reg[r].terms))
        else: raise ValueError(op)
    x = reg["x"]; complete(x, "layer exit")
    seen = {}
    for n, t in x.terms: seen[n] = seen.get(n, 0) + t.coef
    for n in ("residual", "attn", "routed", "shared"): need(seen.get(n, 0) == 1, f"{n}: coefficient {seen.get(n, 0)} at layer exit")
    need(x.expr == program(latent), f"with the layout erased the plan computes {' + '.join(x.expr)}, the model {' + '.join(program(latent))}")
    return x, warn

# ---------------------------------------------------------------- numeric simulation
T, H, F, E, K, FS = 12, 8, 12, 8, 2, 12
class Layer:
    def __init__(s, seed):
        r = np.random.default_rng(seed)
        s.wa = r.normal(size=(H, H, 12)) / 4         # attention stand-in: 12 heads, each an H x H map of the causal mean
        s.g = r.normal(size=(E, H)); s.w1 = r.normal(size=(E, F, H)); s.w2 = r.normal(size=(E, H, F))
        s.s1 = r.normal(size=(FS, H)); s.s2 = r.normal(size=(H, FS)); s.lat = r.normal(size=(H, H)) / 3
    norm = staticmethod(lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6))
    def attn(s, x, share, n):
        heads = [h for h in range(12) if h * n // 12 == share]
        c = np.cumsum(s.norm(x), 0) / np.arange(1, len(x) + 1)[:, None]
        return sum(np.tanh(c @ s.wa[:, :, h].T) for h in heads)
    def route(s, y):
        p = np.exp(y @ s.g.T); p /= p.sum(-1, keepdims=True); ids = np.argsort(-p, -1)[:, :K]; w = np.take_along_axis(p, ids, -1)
        return ids, w / w.sum(-1, keepdims=True)
    def expert(s, e, y, sl=slice(None)): return np.tanh(y @ s.w1[e, sl].T) @ s.w2[e][:, sl].T
    def shared(s, y, sl=slice(None)): return np.tanh(y @ s.s1[sl].T) @ s.s2[:, sl].T

def simulate(steps, mesh, seed=0, latent=False):
    """Runs the steps on every rank; returns the largest relative error of any rank against one rank."""
    L = Layer(seed); x0 = np.random.default_rng(seed + 1).normal(size=(2, T, H))      # two sequences
    axes = sorted(mesh); ranks = list(itertools.product(*[range(mesh[a]) for a in axes])); at = {r: dict(zip(axes, r)) for r in ranks}
    pos = lambda r, g: int(np.ravel_multi_index([at[r][a] for a in sorted(g)], [mesh[a] for a in sorted(g)])) if g else 0
    size = lambda g: int(np.prod([mesh[a] for a in g])) if g else 1
    peers = lambda r, g: [q for q in ranks if all(at[q][a] == at[r][a] for a in axes if a not in g)]
    # one rank
    h = x0 + np.stack([L.attn(s, 0, 1) for s in x0]); y = L.norm(h.reshape(-1, H)); ids, w = L.route(y)
    routed = sum(w[:, [k]] * np.stack([L.expert(ids[t, k], y[t]) for t in range(len(y))]) for k in range(K))
    fin = (lambda z: L.norm(z) @ L.lat) if latent else (lambda z: z)
    want = h.reshape(-1, H) + fin(routed) + L.shared(y)
    tok = np.arange(2 * T)
    reg = {r: {} for r in ranks}                                                       # name -> (token ids, rows)
    def split(v, g, r): n = size(g); t, a = v; k = len(t) // n; p = pos(r, g); return t[p * k:(p + 1) * k], a[p * k:(p + 1) * k]
    def sl(width, g, r): n = size(g); p = pos(r, g); return slice(p * width // n, (p + 1) * width // n)
    for s in steps:
        op, a = s[0], s[1:]; new = {}
        for r in ranks:
            R = reg[r]
            if op == "input": new[r] = ("x", split((tok, x0.reshape(-1, H)), S(a[0]), r))
            elif op == "attn":
                t, v = R["x"]; seqs = [v[t // T == q] for q in np.unique(t // T)]
                new[r] = ("h", (t, np.concatenate([L.attn(q, pos(r, S(a[0])), size(S(a[0]))) for q in seqs])))
            elif op in ("all_reduce", "reduce_scatter"):
                g = S(a[1]); t = R[a[0]][0]; tot = sum(reg[q][a[0]][1] for q in peers(r, g))      # adds whatever is there: that is the bug
                new[r] = (a[0], (t, tot) if op == "all_reduce" else split((t, tot), g, r))
            elif op == "all_gather":
                ps = sorted(peers(r, S(a[1])), key=lambda q: pos(q, S(a[1]))); new[r] = (a[0], tuple(np.concatenate([reg[q][a[0]][i] for q in ps]) for i in (0, 1)))
            elif op == "slice": new[r] = (a[0], split(R[a[0]], S(a[1]), r))
            elif op == "add": new[r] = (a[0], (R[a[0]][0], R[a[0]][1] + R[a[1]][1]))
            elif op == "norm": new[r] = ("y", (R[a[0]][0], L.norm(R[a[0]][1])))
            elif op == "shared": new[r] = ("shared", (R["y"][0], L.shared(R["y"][1], sl(FS, S(a[0]), r))))
            elif op in ("experts_masked", "experts_a2a"):
                ep, tp = S(a[0]), S(a[1]); t, y_ = R["y"]; i_, w_ = L.route(y_); o = np.zeros_like(y_)
                for n in range(len(t)):
                    for k in range(K):
                        e = i_[n, k]; mine = e * size(ep) // E == pos(r, ep)
                        if op == "experts_a2a" or mine:
                            wt = w_[n, k] ** len(a[2]) if op == "experts_a2a" else w_[n, k]
                            o[n] += wt * L.expert(e, y_[n], sl(F, tp, r))
                new[r] = ("routed", (t, o))
            elif op == "latent_norm": new[r] = ("routed", (R["routed"][0], fin(R["routed"][1])))
            elif op == "scale": new[r] = (a[0], (R[a[0]][0], R[a[0]][1] * float(Fraction(a[1]))))
        for r in ranks: reg[r][new[r][0]] = new[r][1]
    return max(np.abs(v - want[t]).max() for t, v in (reg[r]["x"] for r in ranks)) / np.abs(want).max()

# ---------------------------------------------------------------- golden plans and faults
A, D, AD = ["a"], ["d"], ["a", "d"]
attn_ar = [("attn", A), ("all_reduce", "h", A), ("add", "x", "h"), ("norm", "x")]
attn_rs = [("attn", A), ("reduce_scatter", "h", A), ("slice", "x", A), ("add", "x", "h"), ("norm", "x")]
join = [("add", "routed", "shared"), ("add", "x", "routed")]
out_ar = [("add", "routed", "shared"), ("all_reduce", "routed", A), ("add", "x", "routed")]
G = {  # name: (mesh, latent, steps)
 "1 one rank": ({"a": 1}, 0, [("input", [])] + [("attn", []), ("add", "x", "h"), ("norm", "x"), ("experts_masked", [], []), ("shared", [])] + join),
 "2 none tp2": ({"a": 2}, 0, [("input", [])] + attn_ar + [("experts_masked", [], A), ("shared", A)] + out_ar),
 "3 none tp2 ep2": ({"a": 2}, 0, [("input", [])] + attn_ar + [("experts_masked", A, []), ("shared", A)] + out_ar),
 "5 a2a tp2 ep2 (sequence-parallel rows)": ({"a": 2}, 0, [("input", [])] + attn_rs + [("experts_a2a", A, [], ["runner"]), ("shared", [])] + join + [("all_gather", "x", A)]),
 "5b a2a, weights by the library": ({"a": 2}, 0, [("input", [])] + attn_rs + [("experts_a2a", A, [], ["library"]), ("shared", [])] + join + [("all_gather", "x", A)]),
 "6 a2a tp4 dp2": ({"a": 2, "d": 2}, 0, [("input", D)] + attn_rs + [("experts_a2a", AD, [], ["runner"]), ("shared", [])] + join + [("all_gather", "x", A)]),
 "7 none tp4 dp2 (gather, reduce-scatter)": ({"a": 2, "d": 2}, 0, [("input", D)] + attn_ar + [("all_gather", "y", D), ("experts_masked", D, A), ("shared", AD), ("add", "routed", "shared"),
      ("reduce_scatter", "routed", D), ("all_reduce", "routed", A), ("add", "x", "routed")]),
 "8 latent, none tp2": ({"a": 2}, 1, [("input", [])] + attn_ar + [("experts_masked", [], A), ("shared", A), ("all_reduce", "routed", A), ("all_reduce", "shared", A), ("latent_norm",)] + join),
 "9 latent, a2a tp2 ep2": ({"a": 2}, 1, [("input", [])] + attn_rs + [("experts_a2a", A, [], ["runner"]), ("latent_norm",), ("shared", [])] + join + [("all_gather", "x", A)]),
 "ep2 x moe_tp2 under tp4": ({"a": 2, "b": 2}, 0, [("input", []), ("attn", ["a", "b"]), ("all_reduce", "h", ["a", "b"]), ("add", "x", "h"), ("norm", "x"), ("experts_masked", A, ["b"]), ("shared", ["a", "b"]),
      ("add", "routed", "shared"), ("all_reduce", "routed", ["a", "b"]), ("add", "x", "routed")]),
 "a2a without scattering (right, wasteful)": ({"a": 2}, 0, [("input", [])] + attn_ar + [("experts_a2a", A, [], ["runner"]), ("shared", [])] + join),
}
B = {  # faults: refused; the second entry says whether the value must differ too
 "TP reduction over scattered rows (the MoRI fault)": ({"a": 2}, 0, 1, [("input", [])] + attn_rs + [("experts_a2a", A, [], ["runner"]), ("shared", A), ("add", "routed", "shared"), ("all_reduce", "routed", A), ("add", "x", "routed"), ("all_gather", "x", A)]),
 "all-reduce after a complete combine": ({"a": 2}, 0, 1, [("input", [])] + attn_ar + [("experts_a2a", A, [], ["runner"]), ("shared", [])] + out_ar),
 "shared expert halved": ({"a": 2}, 0, 1, [("input", [])] + attn_rs + [("experts_a2a", A, [], ["runner"]), ("shared", A)] + join + [("all_gather", "x", A)]),
 "shared expert once per rank": ({"a": 2}, 0, 1, [("input", [])] + attn_ar + [("experts_masked", A, []), ("shared", [])] + out_ar),
 "routed sum never reduced": ({"a": 2}, 0, 1, [("input", [])] + attn_ar + [("experts_masked", A, []), ("shared", A)] + join),
 "router weights twice": ({"a": 2}, 0, 1, [("input", [])] + attn_rs + [("experts_a2a", A, [], ["runner", "library"]), ("shared", [])] + join + [("all_gather", "x", A)]),
 "router weights never": ({"a": 2}, 0, 1, [("input", [])] + attn_rs + [("experts_a2a", A, [], []), ("shared", [])] + join + [("all_gather", "x", A)]),
 "scaling factor in two places": ({"a": 2}, 0, 1, [("input", [])] + attn_rs + [("experts_a2a", A, [], ["runner"]), ("scale", "routed", "5/2"), ("shared", [])] + join + [("all_gather", "x", A)]),
 "latent norm before the sum": ({"a": 2}, 1, 1, [("input", [])] + attn_ar + [("experts_masked", [], A), ("shared", A), ("latent_norm",)] + out_ar),
 "masked experts on scattered rows": ({"a": 2}, 0, 1, [("input", [])] + attn_rs + [("experts_masked", A, []), ("shared", [])] + join + [("all_gather", "x", A)]),
 "norm on a partial attention output": ({"a": 2}, 0, 1, [("input", []), ("attn", A), ("add", "x", "h"), ("norm", "x"), ("experts_masked", [], []), ("shared", [])] + join),
 "reduce over the wrong group (dp)": ({"a": 2, "d": 2}, 0, 1, [("input", D), ("attn", A), ("all_reduce", "h", D), ("add", "x", "h"), ("norm", "x"), ("experts_a2a", AD, [], ["runner"]), ("shared", [])] + join),
}
def main():
    bad = 0
    for n, (mesh, lat, st) in G.items():
        try: v, w = check(st, mesh, lat); e = simulate(st, mesh, latent=lat); ok = e < 1e-9
        except Refused as r: ok, w, e, v = False, [str(r)], 0, None
        bad += not ok; print(f"{'ok  ' if ok else 'FAIL'} {n}: error {e:.1e} {w or ''}")
    for n, (mesh, lat, differs, st) in B.items():
        try: check(st, mesh, lat); msg = None
        except Refused as r: msg = str(r)
        e = simulate(st, mesh, latent=lat); ok = msg is not None and (e > 1e-3) == bool(differs)
        bad += not ok; print(f"{'ok  ' if ok else 'FAIL'} fault {n}: refused: {msg}; value differs by {e:.2f}")
    print("all hold" if not bad else f"{bad} do not hold"); return bad

def fuzz(n=3000, seed=0):
    """Mutates golden plans at random; a mutant that type-checks must still compute the one-rank result (soundness)."""
    import random
    rng = random.Random(seed); pool = list(G.values()); ok = refused = broken = 0; holes = []
    steps_of = {0: [], 1: []}
    for mesh, lat, st in pool: steps_of[lat] += st
    while ok + refused + broken < n:
        mesh, lat, st = rng.choice(pool); st = list(st)
        for _ in range(rng.randint(1, 3)):
            i = rng.randrange(1, len(st)); k = rng.randrange(4)
            if k == 0 and len(st) > 3: del st[i]
            elif k == 1: st.insert(i, rng.choice(steps_of[lat][1:]))
            elif k == 2: j = rng.randrange(1, len(st)); st[i], st[j] = st[j], st[i]
            else: st[i] = tuple(([a for a in p if rng.random() < .7] if isinstance(p, list) and p and p[0] in mesh else p) for p in st[i])
        st = [tuple([a for a in p if a in mesh] if isinstance(p, list) and any(q in "ab d" for q in p) else p for p in s) for s in st]
        try: check(st, mesh, lat)
        except Refused: refused += 1; continue
        except (KeyError, IndexError): broken += 1; continue
        try: e = simulate(st, mesh, latent=lat)
        except (KeyError, ValueError, IndexError) as x: e = float("inf")
        ok += 1
        if e > 1e-9: holes.append((e, mesh, lat, st))
    print(f"{n} mutants: {refused} refused, {broken} not even a plan, {ok} typed, {len(holes)} of them wrong")
    for h in holes[:5]: print(h)
    return len(holes)
if __name__ == "__main__":
    import sys
    raise SystemExit(fuzz(int(sys.argv[2]) if len(sys.argv) > 2 else 3000) if sys.argv[1:2] == ["fuzz"] else main())
