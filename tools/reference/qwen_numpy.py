#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Qwen3.5-MoE in numpy and float64, token by token: an independent reading of the model for shapes that no
released checkpoint has.

usage: tools/reference/qwen_numpy.py MODEL_DIR IDS OUT.safetensors      (IDS: comma separated)
"""

import json
import struct
import sys

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Weights:
    def __init__(self, path):
        raw = open(path, "rb").read()
        size = struct.unpack("<Q", raw[:8])[0]
        self.header = json.loads(raw[8 : 8 + size])
        self.data = raw[8 + size :]

    def array(self, name):
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        kind = {"BF16": "<u2", "U8": "u1", "F32": "<f4"}[entry["dtype"]]
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
        return values.astype(np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 + weight)


def attention(c, w, p, x):
    tokens, heads, kv, dim = len(x), c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    rope = c["rope_parameters"]
    rotary = int(dim * rope["partial_rotary_factor"])
    q = (x @ w(p + "q_proj.weight").T).reshape(tokens, heads, 2 * dim)
    q, gate = q[..., :dim], q[..., dim:]
    k = (x @ w(p + "k_proj.weight").T).reshape(tokens, kv, dim)
    v = (x @ w(p + "v_proj.weight").T).reshape(tokens, kv, dim)
    angles = np.arange(tokens)[:, None, None] * rope["rope_theta"] ** (-np.arange(0, rotary, 2) / rotary)

    def turn(a):
        low, high, rest = a[..., : rotary // 2], a[..., rotary // 2 : rotary], a[..., rotary:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin, rest], -1)

    q = turn(norm(q, w(p + "q_norm.weight"), c["rms_norm_eps"]))
    k = turn(norm(k, w(p + "k_norm.weight"), c["rms_norm_eps"]))
    out = np.zeros((tokens, heads, dim))
    for h in range(heads):
        g = h // (heads // kv)
        for t in range(tokens):
            s = k[: t + 1, g] @ q[t, h] / np.sqrt(dim)
            s = np.exp(s - s.max())
            out[t, h] = (s / s.sum()) @ v[: t + 1, g]
    return (out * sigmoid(gate)).reshape(tokens, -1) @ w(p + "o_proj.weight").T


def delta_net(c, w, p, x):
    tokens = len(x)
    hk, hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    u = x @ w(p + "in_proj_qkv.weight").T
    taps = w(p + "conv1d.weight")[:, 0]
    padded = np.concatenate([np.zeros((taps.shape[1] - 1, u.shape[1])), u])
    y = silu(np.stack([(padded[t : t + taps.shape[1]] * taps.T).sum(0) for t in range(tokens)]))
    q, k, v = np.split(y, [hk * dk, 2 * hk * dk], -1)
    q, k, v = q.reshape(tokens, hk, dk), k.reshape(tokens, hk, dk), v.reshape(tokens, hv, dv)
    q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6) / np.sqrt(dk)
    k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
    beta = sigmoid(x @ w(p + "in_proj_b.weight").T)
    g = -np.exp(w(p + "A_log")) * np.log1p(np.exp(x @ w(p + "in_proj_a.weight").T + w(p + "dt_bias")))
    z = (x @ w(p + "in_proj_z.weight").T).reshape(tokens, hv, dv)
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


def moe(c, w, p, x):
    def mlp(q, rows):
        gate, up = rows @ w(q + "gate_proj.weight").T, rows @ w(q + "up_proj.weight").T
        return (silu(gate) * up) @ w(q + "down_proj.weight").T

    logits = x @ w(p + "gate.weight").T
    prob = np.exp(logits - logits.max(-1, keepdims=True))
    prob /= prob.sum(-1, keepdims=True)
    out = sigmoid(x @ w(p + "shared_expert_gate.weight").T) * mlp(p + "shared_expert.", x)
    for t in range(len(x)):
        chosen = np.argsort(-prob[t], kind="stable")[: c["num_experts_per_tok"]]
        for e in chosen:
            out[t] += prob[t, e] / prob[t, chosen].sum() * mlp(f"{p}experts.{e}.", x[t : t + 1])[0]
    return out


def forward(directory, ids):
    config = json.load(open(directory + "/config.json"))
    c = config.get("text_config", config)
    w = Weights(directory + "/model.safetensors")
    root = "model.language_model." if "model.language_model.norm.weight" in w.header else "model."
    x = w(root + "embed_tokens.weight")[ids]
    for layer, kind in enumerate(c["layer_types"]):
        p = f"{root}layers.{layer}."
        y = norm(x, w(p + "input_layernorm.weight"), c["rms_norm_eps"])
        mixer = attention if kind == "full_attention" else delta_net
        x = x + mixer(c, w, p + ("self_attn." if kind == "full_attention" else "linear_attn."), y)
        x = x + moe(c, w, p + "mlp.", norm(x, w(p + "post_attention_layernorm.weight"), c["rms_norm_eps"]))
    x = norm(x, w(root + "norm.weight"), c["rms_norm_eps"])
    return x @ w("lm_head.weight" if "lm_head.weight" in w.header else root + "embed_tokens.weight").T


def main():
    directory, ids, out = sys.argv[1:]
    ids = np.array([int(i) for i in ids.split(",")], np.int32)
    logits = forward(directory, ids).astype(np.float32)
    header = json.dumps({
        "ids.0": {"dtype": "I32", "shape": list(ids.shape), "data_offsets": [0, ids.nbytes]},
        "logits.0": {"dtype": "F32", "shape": list(logits.shape), "data_offsets": [ids.nbytes, ids.nbytes + logits.nbytes]},
    }).encode()
    header += b" " * (-len(header) % 8)
    with open(out, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + ids.tobytes() + logits.tobytes())


if __name__ == "__main__":
    main()
