#!/usr/bin/env python3
"""profile_kernels.py COPPICE_BINARY [FOLDER [GROUP...]]: what keeps the kernels of blocks, attention, experts, trees and top-k busy, by the profiler.

One call of each case of `coppice bench kernels` under ncu. It runs one kernel at a time, several times over (a kernel's counters do not fit in one pass), at clocks as found.
Cold: it empties the caches before each pass. Warm: it does not, and all passes but the first find their own inputs there. Prints a Markdown table a group, a line a kernel;
a group that fails prints why. FOLDER keeps ncu's csv; GROUP: only those. Needs an NVIDIA GPU and ncu.

    profile_kernels.py --check     reads a made-up report
"""
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

import profiler


class Group(NamedTuple):
    name: str
    cases: tuple
    kernels: str  # what ncu looks at
    first: str  # the first kernel of a case
    products: tuple = ()  # what a block's products are, in order
    warm: bool = False


EXPERTS, MLA = ("moe_", "moe_(?!combine|wide_kernel)"), ("mla_(attention|combine|generic)", "mla_(?!combine)")
# A case stands for all whose names contain it: M=1 brings 17, 128 and 1024 along, M=8 a prompt of 8192.
GROUPS = (
    Group("experts", tuple(f"experts tp8 M={rows}" for rows in (1, 8, 64, 256, 512)), *EXPERTS),
    Group("MLA 8 heads", ("mla tp8 B=1 L=8192", "mla tp8 B=8 L=32768 T=17", "mla tp8 B=8 L=131072 T=17"), *MLA),
    Group("MLA 64 heads", (*(f"mla tp1 B=1 L={context} T={rows}" for context in (32768, 131072) for rows in (17, 64)), "mla tp1 B=8 L=32768 T=17", "mla tp1 B=8 L=131072 T=17"),
          *MLA),
    Group("whole experts", ("experts tp1 M=1", "experts tp1 M=64"), *EXPERTS),
    Group("attention block", ("attention block tp8 L=4096 M=1",), "rms_norm|gemm|product|mla_(attention|combine|queries|rope|generic)", "rms_norm",
          ("q_a + kv_a", "W_UV", "o_proj")),
    Group("FFN block", ("ffn block tp8",), "rms_norm|gemm|product|moe_", "rms_norm", ("router + gate_up",)),
    Group("trees", tuple(f"trees B={batch} budget={budget}" for batch in (1, 8, 64) for budget in (16, 64)), "build_tree|compile_", "build_tree", warm=True),
    Group("top-k", tuple(f"top_k rows={rows}" for rows in (7, 15, 120, 960)), "top_k", "top_k_(cluster|log_probs)"),
)


class Column(NamedTuple):
    metrics: tuple
    digits: int = 0
    scale: float = 1


TIME, CYCLES = "gpu__time_duration.sum", "gpc__cycles_elapsed.max"
COLUMNS = {
    "MB read / written": Column(("dram__bytes_read.sum", "dram__bytes_write.sum"), 1, 1e-6),
    "SM %": Column(("sm__throughput.avg.pct_of_peak_sustained_elapsed",)),
    "DRAM %": Column(("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",)),
    "L2 %": Column(("lts__throughput.avg.pct_of_peak_sustained_elapsed",)),
    "instructions a cycle": Column(("sm__inst_executed.avg.per_cycle_active",), 2),
    "tensor pipe %": Column(("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",)),
    "logic / multiply-add / special pipe %": Column(
        ("sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active", "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
         "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active")),
    "warps": Column(("sm__warps_active.avg.per_cycle_active",), 1),
}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = ("barrier branch_resolving dispatch_stall drain gmma imc_miss lg_throttle long_scoreboard math_pipe_throttle membar mio_throttle misc no_instruction not_selected "
          "selected short_scoreboard sleeping tex_throttle wait").split()
METRICS = (TIME, CYCLES, *(metric for column in COLUMNS.values() for metric in column.metrics), *map(STALL.format, STALLS))


def known(metrics):
    """Those that this ncu has for this GPU: one that it has not would end it."""
    listed = subprocess.run(["ncu", "--query-metrics"], capture_output=True, text=True).stdout
    names = set(re.findall(r"^(\w+__\w+)", listed, re.MULTILINE))
    missing = [metric for metric in metrics if names and metric.split(".")[0] not in names]
    if missing:
        print("not counted here: " + ", ".join(missing) + "\n", flush=True)
    return [metric for metric in metrics if metric not in missing]


def waits(kernel):
    """The three largest reasons for which a warp did not issue, of all its cycles."""
    cycles = {reason: kernel.get(STALL.format(reason), 0) for reason in STALLS}
    total = sum(cycles.values()) or 1
    reasons = sorted((reason for reason in STALLS if reason != "selected"), key=lambda reason: -cycles[reason])[:3]
    return ", ".join(f"{reason.replace('_', ' ')} {100 * cycles[reason] / total:.0f} %" for reason in reasons if cycles[reason] > 0) or "-"


def line(case, name, kernel):
    us = kernel.get(TIME, 0)
    cells = [" / ".join(f"{kernel[metric] * column.scale:.{column.digits}f}" if metric in kernel else "-" for metric in column.metrics) for column in COLUMNS.values()]
    clock = f"{kernel[CYCLES] / us / 1e3:.2f}" if us and CYCLES in kernel else "-"
    return "| " + " | ".join([case, name, f"{us:.1f}", str(kernel["blocks"]), *cells, clock, waits(kernel)]) + " |"


def table(group, cases, kernels):
    lines = ["| case | kernel | us | blocks | " + " | ".join(COLUMNS) + " | GHz | of its warps' cycles |", "|---" * (6 + len(COLUMNS)) + "|"]
    ops = profiler.by_op(kernels, group.first)
    if len(ops) != len(cases):
        lines.insert(0, f"{len(cases)} cases, but {len(ops)} groups of kernels:\n")
    for i, op in enumerate(ops):
        case, products = cases[i]["key"] if len(ops) == len(cases) else f"? {i}", list(group.products)
        for kernel in op:
            name = products.pop(0) if products and re.search("gemm|product", kernel["name"]) else kernel["name"]
            lines.append(line(case, name, kernel))
    return "\n".join(lines)


def check():
    text = '"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
    values = ((TIME, "us", "2.5"), (CYCLES, "cycle", "4,000"), (COLUMNS["SM %"].metrics[0], "%", "12.6"), (COLUMNS["DRAM %"].metrics[0], "%", "n/a"),
              ("dram__bytes_read.sum", "Mbyte", "25.04"), (STALL.format("long_scoreboard"), "inst", "6"),
              (STALL.format("selected"), "inst", "1"), (STALL.format("wait"), "inst", "3"))
    for i, name in enumerate(("rms_norm_kernel", "skinny_gemm_kernel", "mla_combine", "skinny_gemm_kernel")):
        text += "".join(f'"{i}","void coppice::kernels::{name}<4>(int)","(66, 2, 1)","{metric}","{unit}","{value}"\n' for metric, unit, value in values)
    kernels, block = profiler.launches(text), next(group for group in GROUPS if group.products)
    got = table(block, [{"key": "a"}], kernels).splitlines()
    assert got[2] == "| a | rms_norm_kernel | 2.5 | 132 | 25.0 / - | 13 | - | - | - | - | - / - / - | - | 1.60 | long scoreboard 60 %, wait 30 % |", got[2]
    assert [row.split(" | ")[1] for row in got[3:]] == ["q_a + kv_a", "mla_combine", "W_UV"], got
    assert "2 cases, but 1 groups" in table(block, [{"key": "a"}, {"key": "b"}], kernels)
    print("ok: a line a kernel, products by what they are")


def main():
    groups = [group for group in GROUPS if group.name in sys.argv[3:] or not sys.argv[3:]]
    metrics = known(METRICS)
    for group in groups:
        keep = pathlib.Path(sys.argv[2], group.name.replace(" ", "_") + ".csv") if len(sys.argv) > 2 else None
        print(f"{group.name}, {'warm' if group.warm else 'cold'}:\n")
        try:
            cases, kernels = profiler.profile(sys.argv[1], group.cases, group.kernels, metrics, ("--cache-control", "none" if group.warm else "all"), keep, seconds=30)
            print(table(group, cases, kernels) + "\n", flush=True)
        except (RuntimeError, OSError) as fault:
            print(f"{fault}\n", flush=True)


check() if sys.argv[1:] == ["--check"] else main()
