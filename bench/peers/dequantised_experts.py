#!/usr/bin/env python3
"""dequantised_experts.py [OUT.json]: routed experts of prompts on weights dequantised to bf16 beforehand, in microseconds: cuBLAS (torch.mm expert by expert)
and torch's grouped product. Whole op (gather, products, activation, weighted sum) and the products alone, TP-8 shard and whole experts, 2048 and 8192 rows; uniform
routing, medians of graph replays. Writes the JSON that `coppice bench kernels --peers` reads. Needs torch with CUDA and about 40 GB of its memory."""
import json
import statistics
import sys

import torch

EXPERTS, TOP_K, HIDDEN = 384, 8, 7168


def time_us(body, replays=5):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        body()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            body()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(replays):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times)


def bf16(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def measure(name, width, w13, w2, rows):
    x = bf16(rows, HIDDEN)
    ids = torch.rand(rows, EXPERTS, device="cuda").topk(TOP_K, -1).indices.flatten()
    order = ids.argsort(stable=True)
    sources, back = order // TOP_K, order.argsort()
    offsets = torch.bincount(ids, minlength=EXPERTS).cumsum(0).to(torch.int32)
    ends = offsets.tolist()
    begins = [0] + ends[:-1]
    weights = torch.rand(rows * TOP_K, 1, device="cuda", dtype=torch.bfloat16)
    hidden, out = torch.empty(rows * TOP_K, 2 * width, **KIND), torch.empty(rows * TOP_K, HIDDEN, **KIND)
    gathered, active = x[sources], bf16(rows * TOP_K, width)

    def activation(h):
        return torch.nn.functional.silu(h[:, :width]) * h[:, width:]

    def summed(y):
        return (y * weights)[back].view(rows, TOP_K, HIDDEN).sum(1)

    def each(inputs, a=None):
        for e in range(EXPERTS):
            torch.mm(inputs[begins[e]:ends[e]], w13[e].t(), out=hidden[begins[e]:ends[e]])
        a = activation(hidden) if a is None else a
        for e in range(EXPERTS):
            torch.mm(a[begins[e]:ends[e]], w2[e].t(), out=out[begins[e]:ends[e]])
        return out

    def grouped(inputs, a=None):
        h = torch._grouped_mm(inputs, w13.transpose(1, 2), offs=offsets)
        return torch._grouped_mm(activation(h) if a is None else a, w2.transpose(1, 2), offs=offsets)

    for peer, products in (("cuBLAS expert by expert", each), ("torch grouped", grouped)):
        whole, alone = time_us(lambda: summed(products(x[sources]))), time_us(lambda: products(gathered, active))
        print(f"{name} M={rows}: {peer} {whole:.0f}, its products alone {alone:.0f}", flush=True)
        PEERS.setdefault(f"prompt experts {name} M={rows}", []).append({"name": peer, "us": round(whole, 3)})


PEERS = {}
KIND = {"device": "cuda", "dtype": torch.bfloat16}
for shard, intermediate in (("tp8", 256), ("tp1", 2048)):
    gate_up = torch.empty(EXPERTS, 2 * intermediate, HIDDEN, **KIND).normal_(0, 0.01)
    down = torch.empty(EXPERTS, HIDDEN, intermediate, **KIND).normal_(0, 0.01)
    for tokens in (2048, 8192):
        measure(shard, intermediate, gate_up, down, tokens)
    del gate_up, down
if len(sys.argv) > 1:
    with open(sys.argv[1], "w") as file:
        json.dump({"peers": PEERS}, file, indent=1)
