#!/usr/bin/env python3
"""dram_bytes.py COPPICE_BINARY: bytes that `coppice bench kernels` counts beside those that the profiler saw pass between the GPU and its memory.

One call of each case under ncu, which empties the caches before each kernel: what a kernel hands to the one behind it (partial sums, which a real step finds in the
L2) is read from memory here, so the two have columns of their own. Prints a Markdown table. Needs an NVIDIA GPU and ncu.

    dram_bytes.py --check     reads a made-up report
"""
import sys

import profiler

CASES = ("experts tp8 M=17", "experts tp8 M=64", "experts tp8 M=256", "experts tp1 M=17", "mla tp8 B=1 L=32768 T=17", "mla tp8 B=8 L=32768", "mla tp8 B=1 L=131072 T=1",
         "qkv_a tp8 M=17", "mlp_gate_up tp8 M=17", "o_proj tp1 M=17", "shared_gate_up tp1 M=17", "lm_head tp8 M=8", "lm_head tp1 M=17")
KERNELS = "moe_|gemm|product|mla_"
# The first kernel of an op; others of its name follow.
FIRST = r"moe_(?!combine|wide_kernel)|gemm|product|mla_(?!combine|plan)"
READ, WRITTEN, TIME = "dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum"


def table(cases, kernels):
    groups = profiler.by_op(kernels, FIRST)
    if len(groups) != len(cases):
        return f"{len(cases)} cases, {len(groups)} groups of kernels: " + "; ".join(" + ".join(k["name"] for k in g) for g in groups)
    lines = ["| case | counted MB | read by its kernel MB | read / counted | read by the kernel behind it MB | written MB | kernels |", "|---" * 7 + "|"]
    for case, group in zip(cases, groups):
        main, written = max(kernel[READ] for kernel in group), sum(kernel[WRITTEN] for kernel in group)
        behind, counted = sum(kernel[READ] for kernel in group) - main, case["first_call_bytes"]
        lines.append(f"| {case['key']} | {counted / 1e6:.1f} | {main / 1e6:.1f} | {main / counted:.3f} | {behind / 1e6:.1f} | {written / 1e6:.1f} | "
                     f"{', '.join(kernel['name'] for kernel in group)} |")
    return "\n".join(lines)


def check():
    text = '==PROF== x\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
    rows = (("mla_plan_passes(int)", 5), ("void coppice::kernels::moe_wide_list_kernel<4>(coppice::kernels::Args)", 1), ("moe_wide_kernel", 2),
            ("skinny_gemm_kernel", 10))
    for i, (name, read) in enumerate(rows):
        text += f'"{i}","{name}","{READ}","Mbyte","{read}"\n"{i}","{name}","{WRITTEN}","Kbyte","1,000"\n"{i}","{name}","{TIME}","us","3"\n'
    kernels = profiler.launches(text)
    got = table([{"key": "a", "first_call_bytes": 2e6}, {"key": "b", "first_call_bytes": 11e6}], kernels)
    assert "| a | 2.0 | 2.0 | 1.000 | 1.0 | 2.0 | moe_wide_list_kernel, moe_wide_kernel |" in got and "| b | 11.0 | 10.0 | 0.909 | 0.0 | 1.0 |" in got, got
    assert "1 cases, 2 groups" in table([{"key": "a", "first_call_bytes": 1}], kernels)
    print("ok: launches are summed by op")


check() if sys.argv[1:] == ["--check"] else print(table(*profiler.profile(sys.argv[1], CASES, KERNELS, (READ, WRITTEN, TIME))))
