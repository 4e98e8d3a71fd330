#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Qwen MoE families (Qwen2-MoE, Qwen3-MoE, Qwen3-Next, Qwen3.5-MoE) in numpy and float64, token by token: an
independent reading of the models for shapes and formats that no checkpoint with a reference has.

usage: tools/reference/qwen_numpy.py MODEL_DIR IDS OUT.safetensors [--rope bf16]     (IDS: comma separated)
       tools/reference/qwen_numpy.py MODEL_DIR compare REFERENCE.safetensors [--rope bf16]
"""

import json
import struct
import sys

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3():
    """The 256 values of E4M3: bias 7, no infinity, 0x7f and 0xff not a number."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    size[code & 127 == 127] = np.nan
    return np.where(code < 128, size, -size)


class Weights:
    def __init__(self, path):
        raw = open(path, "rb").read()
        size = struct.unpack("<Q", raw[:8])[0]
        self.header = json.loads(raw[8 : 8 + size])
        self.data = raw[8 + size :]

    def array(self, name):
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        kind = {"BF16": "<u2", "U8": "u1", "F8_E4M3": "u1", "F32": "<f4", "I32": "<i4"}[entry["dtype"]]
        values = np.frombuffer(self.data[begin:end], kind).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values

    def __call__(self, name):
        values = self.array(name)
        if name + "_scale" in self.header and values.dtype == np.uint8:
            codes = np.empty((values.shape[0], values.shape[1] * 2))
            codes[:, 0::2], codes[:, 1::2] = E2M1[values & 15], E2M1[values >> 4]
            scale = np.ldexp(1.0, self.array(name + "_scale").astype(np.int32) - 127)
            return codes * np.repeat(scale, 32, axis=1)
        if name + "_scale_inv" in self.header:
            scale = self.array(name + "_scale_inv").astype(np.float64).repeat(128, 0).repeat(128, 1)
            return e4m3()[values] * scale[: values.shape[0], : values.shape[1]]
        return values.astype(np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


class Norm:
    """RMS norm; Qwen3-Next and later store weights as the offset from one."""

    offset, eps = 1, 1e-6


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + Norm.eps) * (Norm.offset + weight)


def bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32).astype(np.float64)


def rotary(c, dim, rope_bf16):
    """Rotated dims, frequencies and the factor on cosines and sines."""
    rope = c.get("rope_parameters") or {}
    scaling = rope if "rope_type" in rope else c.get("rope_scaling") or {}
    default = 0.25 if Norm.offset == 1 else 1.0
    size = int(dim * rope.get("partial_rotary_factor", c.get("partial_rotary_factor", default)))
    theta = rope.get("rope_theta", c.get("rope_theta"))
    freq, factor = theta ** (-np.arange(0, size, 2) / size), 1.0
    if scaling.get("rope_type", scaling.get("type", "default")) == "yarn":
        span, stretch = scaling["original_max_position_embeddings"], scaling["factor"]

        def dim_that_turns(times):
            return size * np.log(span / (times * 2 * np.pi)) / (2 * np.log(theta))

        low = max(np.floor(dim_that_turns(scaling.get("beta_fast", 32))), 0)
        high = min(np.ceil(dim_that_turns(scaling.get("beta_slow", 1))), size - 1)
        ramp = np.clip((np.arange(size // 2) - low) / max(high - low, 0.001), 0, 1)
        freq = freq / stretch * ramp + freq * (1 - ramp)
        factor = scaling.get("attention_factor") or 0.1 * np.log(stretch) + 1
    return size, bf16(freq) if rope_bf16 else freq, factor


def attention(c, w, p, x):
    tokens, heads, kv = len(x), c["num_attention_heads"], c["num_key_value_heads"]
    dim = c.get("head_dim") or c["hidden_size"] // heads

    def project(name):
        y = x @ w(p + name + ".weight").T
        return y + w(p + name + ".bias") if p + name + ".bias" in w.header else y

    q = project("q_proj").reshape(tokens, heads, -1)
    q, gate = q[..., :dim], q[..., dim:]
    k = project("k_proj").reshape(tokens, kv, dim)
    v = project("v_proj").reshape(tokens, kv, dim)
    size, freq, factor = rotary(c, dim, c["rope_bf16"])
    angles = np.arange(tokens)[:, None, None] * freq

    def turn(a):
        low, high, rest = a[..., : size // 2], a[..., size // 2 : size], a[..., size:]
        cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
        return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], -1)

    if p + "q_norm.weight" in w.header:
        q, k = norm(q, w(p + "q_norm.weight")), norm(k, w(p + "k_norm.weight"))
    q, k = turn(q), turn(k)
    out = np.zeros((tokens, heads, dim))
    for h in range(heads):
        g = h // (heads // kv)
        for t in range(tokens):
            s = k[: t + 1, g] @ q[t, h] / np.sqrt(dim)
            s = np.exp(s - s.max())
            out[t, h] = (s / s.sum()) @ v[: t + 1, g]
    if gate.size:
        out = out * sigmoid(gate)
    return out.reshape(tokens, -1) @ w(p + "o_proj.weight").T


def delta_net(c, w, p, x):
    tokens = len(x)
    hk, hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    if p + "in_proj_qkvz.weight" in w.header:  # Qwen3-Next: every key head with its value heads
        r = hv // hk
        both = (x @ w(p + "in_proj_qkvz.weight").T).reshape(tokens, hk, -1)
        parts = np.split(both, np.cumsum([dk, dk, r * dv]), -1)
        *qkv, z = [part.reshape(tokens, -1) for part in parts]
        u = np.concatenate(qkv, -1)
        ba = (x @ w(p + "in_proj_ba.weight").T).reshape(tokens, hk, 2, r)
        b, a = ba[:, :, 0].reshape(tokens, hv), ba[:, :, 1].reshape(tokens, hv)
    else:
        u, z, b, a = [x @ w(f"{p}in_proj_{name}.weight").T for name in ("qkv", "z", "b", "a")]
    taps = w(p + "conv1d.weight")[:, 0]
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, u.shape[1])), u])
    y = silu(np.stack([(padded[t : t + taps.shape[1]] * taps.T).sum(0) for t in range(tokens)]))
    q, k, v = np.split(y, [hk * dk, 2 * hk * dk], -1)
    q, k, v = q.reshape(tokens, hk, dk), k.reshape(tokens, hk, dk), v.reshape(tokens, hv, dv)
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / np.sqrt(dk)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    beta = sigmoid(b)
    g = -np.exp(w(p + "A_log")) * np.log1p(np.exp(a + w(p + "dt_bias")))
    z = z.reshape(tokens, hv, dv)
    out = np.zeros((tokens, hv, dv))
    for h in range(hv):
        state, key = np.zeros((dk, dv)), h // (hv // hk)
        for t in range(tokens):
            state *= np.exp(g[t, h])
            delta = beta[t, h] * (v[t, h] - state.T @ k[t, key])
            state += np.outer(k[t, key], delta)
            out[t, h] = state.T @ q[t, key]
    out = out / np.sqrt((out * out).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w(p + "norm.weight") * silu(z)
    return out.reshape(tokens, -1) @ w(p + "out_proj.weight").T


def mlp(w, p, x):
    gate, up = x @ w(p + "gate_proj.weight").T, x @ w(p + "up_proj.weight").T
    return (silu(gate) * up) @ w(p + "down_proj.weight").T


def expert(w, p, e, x):
    if p + "experts.gate_up_proj" not in w.header:
        return mlp(w, f"{p}experts.{e}.", x)
    gate, up = np.split(x @ w(p + "experts.gate_up_proj")[e].T, 2, -1)
    return (silu(gate) * up) @ w(p + "experts.down_proj")[e].T


def moe(c, w, p, x):
    logits = x @ w(p + "gate.weight").T
    prob = np.exp(logits - logits.max(-1, keepdims=True))
    prob /= prob.sum(-1, keepdims=True)
    out = np.zeros_like(x)
    if p + "shared_expert.up_proj.weight" in w.header:
        out = sigmoid(x @ w(p + "shared_expert_gate.weight").T) * mlp(w, p + "shared_expert.", x)
    renormalise = c["model_type"].startswith("qwen3_5") or c["norm_topk_prob"]
    for t in range(len(x)):
        chosen = np.argsort(-prob[t], kind="stable")[: c["num_experts_per_tok"]]
        for e in chosen:
            weight = prob[t, e] / (prob[t, chosen].sum() if renormalise else 1)
            out[t] += weight * expert(w, p, e, x[t : t + 1])[0]
    return out


def is_full_attention(c, layer):
    if c["model_type"] in ("qwen2_moe", "qwen3_moe"):
        return True
    if "layer_types" in c:
        return c["layer_types"][layer] == "full_attention"
    return (layer + 1) % c.get("full_attention_interval", 4) == 0


def is_moe(c, layer):
    return layer not in c.get("mlp_only_layers", []) and (layer + 1) % c.get("decoder_sparse_step", 1) == 0


def forward(directory, ids, rope_bf16=False):
    config = json.load(open(directory + "/config.json"))
    c = config.get("text_config", config) | {"rope_bf16": rope_bf16}
    w = Weights(directory + "/model.safetensors")
    Norm.offset, Norm.eps = int(c["model_type"] not in ("qwen2_moe", "qwen3_moe")), c["rms_norm_eps"]
    root = "model.language_model." if "model.language_model.norm.weight" in w.header else "model."
    x = w(root + "embed_tokens.weight")[ids]
    for layer in range(c["num_hidden_layers"]):
        p = f"{root}layers.{layer}."
        y = norm(x, w(p + "input_layernorm.weight"))
        if is_full_attention(c, layer):
            x = x + attention(c, w, p + "self_attn.", y)
        else:
            x = x + delta_net(c, w, p + "linear_attn.", y)
        y = norm(x, w(p + "post_attention_layernorm.weight"))
        x = x + (moe(c, w, p + "mlp.", y) if is_moe(c, layer) else mlp(w, p + "mlp.", y))
    x = norm(x, w(root + "norm.weight"))
    return x @ w("lm_head.weight" if "lm_head.weight" in w.header else root + "embed_tokens.weight").T


def compare(directory, path, rope_bf16):
    reference = Weights(path)
    n = 0
    while f"ids.{n}" in reference.header:
        want = reference(f"logits.{n}")
        got = forward(directory, reference.array(f"ids.{n}"), rope_bf16)
        print(f"sequence {n}: relative error {np.linalg.norm(got - want) / np.linalg.norm(want):.1e}")
        n += 1


def main():
    arguments = [a for a in sys.argv[1:] if a not in ("--rope", "bf16")]
    rope_bf16 = len(arguments) < len(sys.argv) - 1
    directory, ids, out = arguments
    if ids == "compare":
        compare(directory, out, rope_bf16)
        return
    ids = np.array([int(i) for i in ids.split(",")], np.int32)
    logits = forward(directory, ids, rope_bf16).astype(np.float32)
    header = json.dumps({
        "ids.0": {"dtype": "I32", "shape": list(ids.shape), "data_offsets": [0, ids.nbytes]},
        "logits.0": {"dtype": "F32", "shape": list(logits.shape), "data_offsets": [ids.nbytes, ids.nbytes + logits.nbytes]},
    }).encode()
    header += b" " * (-len(header) % 8)
    with open(out, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + ids.tobytes() + logits.tobytes())


if __name__ == "__main__":
    main()
