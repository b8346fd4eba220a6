#!/usr/bin/env python3
"""merge.py OUT.json IN.json ...: the peers of several programs in one file with their tensor_tflops, and the sums of peers' kernels that stand beside a block of
ours or a whole step. A sum needs all its parts: where one was not timed there is none.

    merge.py --check     the sums of made-up times
"""
import json
import sys

SHARED = ("router", "shared_gate_up", "shared_down")
BEFORE_AND_AFTER_ATTENTION = ("qkv_a", "q_b", "k_absorbed", "v_absorbed", "o_proj")
LAYERS, DENSE_LAYERS = 61, 1  # Kimi K2.6: the first layer has no routed experts


def sums():
    """key -> (name, {key of a part: how often}). Norms, rotation, cache write, the choice of experts and the sum over slots are in none of them."""
    rows_of = lambda names, rows: {f"{name} tp8 M={rows}": 1 for name in names}
    found = {}
    for rows in (1, 8, 17):
        attention = rows_of(BEFORE_AND_AFTER_ATTENTION, rows) | {f"mla tp8 B=1 L=4096 T={rows}": 1}
        routed = rows_of((*SHARED, "experts"), rows)
        found[f"attention block tp8 L=4096 M={rows}"] = "cuBLAS + FlashMLA", attention
        found[f"ffn block tp8 M={rows}"] = "cuBLAS + Marlin", routed
        step = {key: LAYERS for key in attention} | {key: LAYERS - DENSE_LAYERS for key in routed}
        step |= {key: DENSE_LAYERS for key in rows_of(("mlp_gate_up", "mlp_down"), rows)} | rows_of(("lm_head",), rows)
        found[f"step of {LAYERS} layers tp8 L=4096 B=1 M={rows}"] = "cuBLAS + FlashMLA + Marlin", step
    return found


def add_sums(peers):
    """Of each part its fastest peer."""
    for key, (name, parts) in sums().items():
        if all(peers.get(part) for part in parts):
            total = sum(times * min(peer["us"] for peer in peers[part]) for part, times in parts.items())
            peers.setdefault(key, []).append({"name": name, "us": round(total, 3)})


def merge(reports):
    merged = {"peers": {}}
    for part in reports:
        for key, peers in part.pop("peers").items():
            merged["peers"].setdefault(key, []).extend(peers)
        merged.update(part)
    add_sums(merged["peers"])
    return merged


def check():
    """Each kernel takes a time of its own; the step is the sum over its layers; without one part there is no sum."""
    timed = sorted({part for _, parts in sums().values() for part in parts})
    us = {key: 1 + i for i, key in enumerate(timed)}
    one = {"peers": {key: [{"name": "slow", "us": 1000}, {"name": "fast", "us": us[key]}] for key in timed}, "tensor_tflops": 700}
    merged = merge([json.loads(json.dumps(one)), {"peers": {"other": [{"name": "o", "us": 2}]}}])
    assert merged["tensor_tflops"] == 700 and merged["peers"]["other"][0]["us"] == 2
    got = {key: merged["peers"][key][0]["us"] for key in sums()}
    for m in (1, 8, 17):
        attention = sum(us[f"{name} tp8 M={m}"] for name in BEFORE_AND_AFTER_ATTENTION) + us[f"mla tp8 B=1 L=4096 T={m}"]
        routed = sum(us[f"{name} tp8 M={m}"] for name in ("router", "shared_gate_up", "shared_down", "experts"))
        rest = sum(us[f"{name} tp8 M={m}"] for name in ("mlp_gate_up", "mlp_down", "lm_head"))
        assert got[f"attention block tp8 L=4096 M={m}"] == attention and got[f"ffn block tp8 M={m}"] == routed
        assert got[f"step of 61 layers tp8 L=4096 B=1 M={m}"] == 61 * attention + 60 * routed + rest
    for part in timed:
        without = {key: peers for key, peers in one["peers"].items() if key != part}
        sums_left = merge([{"peers": dict(without)}])["peers"].keys() & sums().keys()
        assert sums_left == {key for key, (_, parts) in sums().items() if part not in parts}, part
    print(f"ok: {len(got)} sums of {len(timed)} kernels")


if sys.argv[1:] == ["--check"]:
    check()
else:
    with open(sys.argv[1], "w") as file:
        json.dump(merge([json.load(open(path)) for path in sys.argv[2:]]), file, indent=1)
