#!/usr/bin/env python3
"""Times torch's kernels (cuBLAS products, top-k with log-sum-exp, arg max) on the shapes of `coppice bench kernels` and writes the
JSON that its --peers reads.

    torch_peers.py OUT.json [WORD ...]     only cases whose key contains a word

Times are medians of graph replays that rotate over copies past the L2, as ours are.
"""
import json
import statistics
import sys

import torch

ROWS = (1, 8, 17, 33, 64, 256)
CACHES = 4 * 60 * 2**20


def time_us(body, copies):
    """Median microseconds of one call of body(i), i over the copies, in a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(min(copies, 3)):
            body(i)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        body(0)
        end.record()
        end.synchronize()
        estimate = max(start.elapsed_time(end) * 1000, 1)
        calls = min(max(copies, int(2000 / estimate) + 1), 200)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(calls):
                body(i % copies)
        times = []
        for _ in range(11):
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1000 / calls)
    return statistics.median(times)


def copies_of(num_bytes):
    return min(max(2, -(-CACHES // num_bytes)), 512)


def dense_cases():
    """(key, name, maker of the timed body) of every projection."""
    for ranks in (8, 1):
        heads, width, mlp = 64 // ranks, 2048 // ranks, 18432 // ranks
        products = [("qkv_a", 2112, 7168, 1), ("q_b", heads * 192, 1536, 1), ("k_absorbed", 512, 128, heads),
                    ("v_absorbed", 128, 512, heads), ("o_proj", 7168, heads * 128, 1), ("shared_gate_up", 2 * width, 7168, 1),
                    ("shared_down", 7168, width, 1), ("router", 384, 7168, 1), ("mlp_gate_up", 2 * mlp, 7168, 1),
                    ("mlp_down", 7168, mlp, 1), ("lm_head", 163840 // ranks, 7168, 1)]
        for name, outputs, inputs, num_heads in products:
            for rows in ROWS:
                yield f"{name} tp{ranks} M={rows}", (outputs, inputs, num_heads, rows)


def dense_body(outputs, inputs, num_heads, rows):
    copies = copies_of(outputs * inputs * num_heads * 2)
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    if num_heads == 1:
        weights, x = [make(outputs, inputs) * inputs**-0.5 for _ in range(copies)], make(rows, inputs)
        out = make(rows, outputs)
        return lambda i: torch.mm(x, weights[i].t(), out=out), copies
    weights, x = [make(num_heads, outputs, inputs) for _ in range(copies)], make(num_heads, rows, inputs)
    out = make(num_heads, rows, outputs)
    return lambda i: torch.bmm(x, weights[i].transpose(1, 2), out=out), copies


def vocabulary_cases():
    for rows in (7, 15, 56, 120, 448, 960):
        yield f"top_k rows={rows}", rows, torch.bfloat16, lambda x: (torch.topk(x, 64), torch.logsumexp(x, -1))
    for rows in (1, 17, 64):
        yield f"greedy rows={rows}", rows, torch.float32, lambda x: torch.argmax(x, -1)


def tensor_tflops():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b, out = torch.randn_like(a), torch.empty_like(a)
    return 2 * 8192**3 / time_us(lambda i: torch.mm(a, b, out=out), 1) * 1e-6


def main():
    words = sys.argv[2:]
    wanted = lambda key: not words or any(word in key for word in words)
    result = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "peers": {}}
    result["tensor_tflops"] = tensor_tflops()

    def note(key, name, us):
        result["peers"][key] = [{"name": name, "us": round(us, 3)}]
        print(f"{key:34} {name:12} {us:9.2f} us", flush=True)

    for key, shape in dense_cases():
        if wanted(key):
            note(key, "cuBLAS", time_us(*dense_body(*shape)))
    for key, rows, dtype, op in vocabulary_cases():
        if wanted(key):
            copies = copies_of(rows * 163840 * dtype.itemsize)
            logits = [torch.randn(rows, 163840, device="cuda", dtype=dtype) * 4 for _ in range(copies)]
            note(key, "torch", time_us(lambda i: op(logits[i]), copies))
    with open(sys.argv[1], "w") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
