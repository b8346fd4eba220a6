#!/usr/bin/env python3
"""shipped_kernels.py [REPORT...]: writes src/planner/h200_kernels.cpp, the kernel times that plans without --calibration rest on.
REPORT: JSON of `coppice bench kernels --json`, of which the first that has a case is taken; without any, those in docs/results/data, newest first.
--check compares instead."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "results" / "data"
SOURCE = ROOT / "src" / "planner" / "h200_kernels.cpp"

# What no report holds yet, from pages: (fields, us); measured on PAGES_DATE.
PAGES_DATE = "2026-11-29"
PAGES = {
    "docs/results/mla-h200.md: attention at 4k, of eight sequences at 1k, of 8 x 64 rows": [
        ({"op": "mla_attention", "rows": batch * tree, "heads": 8, "sequences": batch, "context": context}, us)
        for batch, context, times in [
            (1, 4096, {1: 10.4, 17: 15.9, 33: 19.5, 64: 32.6}), (8, 1024, {1: 11.0, 17: 28.7, 64: 55.1}), (8, 8192, {64: 198}),
            (8, 32768, {64: 647}), (8, 131072, {64: 2424})]
        for tree, us in times.items()],
    "docs/results/tree-h200.md: greedy choices of many rows": [
        ({"op": "sample_rows", "rows": 256, "inputs": 163840}, 43), ({"op": "sample_rows", "rows": 1024, "inputs": 163840}, 157)],
}

# Products by the names that keys have: outputs of a head, inputs, heads.
PRODUCTS = {"qkv_a tp8": (2112, 7168, 1), "q_b tp8": (1536, 1536, 1), "k_absorbed tp8": (512, 128, 8), "v_absorbed tp8": (128, 512, 8),
            "o_proj tp8": (7168, 1024, 1), "shared_gate_up tp8": (512, 7168, 1), "shared_down tp8": (7168, 256, 1), "router tp8": (384, 7168, 1),
            "mlp_gate_up tp8": (4608, 7168, 1), "mlp_down tp8": (7168, 2304, 1), "lm_head tp8": (20480, 7168, 1), "q_b tp1": (12288, 1536, 1),
            "k_absorbed tp1": (512, 128, 64), "v_absorbed tp1": (128, 512, 64), "o_proj tp1": (7168, 8192, 1), "shared_gate_up tp1": (4096, 7168, 1),
            "shared_down tp1": (7168, 2048, 1), "mlp_gate_up tp1": (36864, 7168, 1), "mlp_down tp1": (7168, 18432, 1), "lm_head tp1": (163840, 7168, 1),
            "qkv_a tp1": (2112, 7168, 1), "router tp1": (384, 7168, 1)}
ROWS = {"add_norm tp8": "add_rms_norm", "rope_write tp8": "mla_rope_and_write_kv", "route tp8": "moe_route", "silu tp8": "silu_mul"}
EXPERTS = {"tp8": 256, "tp1": 2048}
HEADS = {"tp8": 8, "tp1": 64}


def kernels_of(key, us):
    """MeasuredKernels (src/planner/kernel_shape.h) of one case; none for blocks, plans and choices with filters."""
    words = [w for w in key.split() if "=" not in w]
    at = {k: int(v) for k, v in (w.split("=") for w in key.split() if "=" in w)}
    name = " ".join(words)
    if words[0] == "experts" and len(words) == 2:
        return [({"op": "moe_experts", "rows": at["M"], "outputs": EXPERTS[words[1]]}, us)]
    if name in PRODUCTS:
        outputs, inputs, heads = PRODUCTS[name]
        return [({"op": "linear" if heads == 1 else "head_linear", "rows": at["M"], "outputs": outputs * heads, "inputs": inputs, "heads": heads}, us)]
    if name in ROWS:
        return [({"op": ROWS[name], "rows": at["M"]}, us)]
    if words[0] == "mla" and words[1] in HEADS:
        return [({"op": "mla_attention", "rows": at["B"] * at["T"], "heads": HEADS[words[1]], "sequences": at["B"], "context": at["L"]}, us)]
    if name == "top_k":
        return [({"op": "top_k_log_probs", "rows": at["rows"], "outputs": 64, "inputs": 163840}, us)]
    if name == "greedy":
        return [({"op": "sample_rows", "rows": at["rows"], "inputs": 163840}, us)]
    if name in ("tree build", "trees"):
        return [({"op": "build_tree" if name == "tree build" else "trees", "rows": at["budget"], "sequences": at["B"]}, us)]
    if name == "commit":
        return [({"op": op, "rows": at["B"], "sequences": at["B"]}, us / 2) for op in ("accept_path", "move_kv")]
    return []


def read(paths):
    """[(fields, us)] without repeats, and [(report, its date)] of those that gave some."""
    found, used = {}, []
    for path in paths:
        report = json.loads(pathlib.Path(path).read_text())
        gave = False
        for case in report["cases"]:
            if case.get("us") is None or case.get("wrong"):
                continue
            for fields, us in kernels_of(case["key"], case["us"]):
                gave |= found.setdefault(json.dumps(fields), us) == us
        if gave:
            used.append((pathlib.Path(path).name, report["date"][:10]))
    pages = []
    for page, kernels in PAGES.items():
        new = [(fields, us) for fields, us in kernels if json.dumps(fields) not in found]
        if new:
            pages.append(page)
        found.update((json.dumps(fields), us) for fields, us in new)
    # Compiling takes what is left of the pair.
    kernels = []
    for key, us in found.items():
        fields = json.loads(key)
        if fields["op"] == "trees":
            fields["op"] = "build_tree"
            us -= found[json.dumps(fields)]
            fields["op"] = "compile_tree"
        kernels.append((fields, us))
    order = ["moe_experts", "linear", "head_linear", "mla_attention"]
    kernels.sort(key=lambda k: (order.index(k[0]["op"]) if k[0]["op"] in order else len(order), k[0]["op"], k[0].get("outputs", 0),
                                k[0].get("inputs", 0), k[0].get("heads", 0), k[0].get("sequences", 0), k[0].get("context", 0), k[0]["rows"]))
    return kernels, used, pages


def newest_first(paths):
    """Reports by the time that they were written at, which their names only begin with."""
    return sorted(paths, key=lambda path: (json.loads(path.read_text())["date"], path.name), reverse=True)


def source(paths):
    kernels, used, pages = read(paths)
    rows = []
    for fields, us in kernels:
        f = {k: fields.get(k, 0) for k in ("rows", "outputs", "inputs", "heads", "sequences", "context")}
        if fields["op"] == "mla_attention":
            f.update(outputs=512, inputs=576)
        experts, top_k = (384, 8) if fields["op"] == "moe_experts" else (0, 0)
        if experts:
            f["inputs"] = 7168
        rows.append(f'    {{"{fields["op"]}", {f["rows"]}, {f["outputs"]}, {f["inputs"]}, {f["heads"]}, {f["sequences"]}, {f["context"]}, {experts}, {top_k}, {us:.4g}}},')
    dates = sorted({date for _, date in used} | ({PAGES_DATE} if pages else set()))
    said = f"{len(rows)} kernels measured alone on one H200, {' and '.join(dates)} (docs/results)"
    made_of = "".join(f"//   docs/results/data/{name}\n" for name, _ in used) + "".join(f"//   {page}\n" for page in pages)
    return f"""// clang-format off
// Written by scripts/shipped_kernels.py: kernels measured on one H200, what plans rest on until a
// report is given with --calibration. Made of
{made_of}#include "planner/kernel_times.h"

namespace coppice {{
namespace {{

// Fields of MeasuredKernel.
struct Row {{
  const char* op;
  std::int64_t rows, outputs, inputs, heads, sequences, context, num_experts, top_k;
  double us;
}};

constexpr Row kMeasured[] = {{
{chr(10).join(rows)}
}};

}}  // namespace

const KernelTimes& KernelTimes::shipped() {{
  static const KernelTimes times = [] {{
    std::vector<MeasuredKernel> kernels;
    for (const Row& r : kMeasured)
      kernels.push_back({{r.op, r.rows, r.outputs, r.inputs, r.heads, r.sequences, r.context,
                         r.num_experts, r.top_k, r.us}});
    return KernelTimes(std::move(kernels), find_device("h200"),
                       "{said}");
  }}();
  return times;
}}

}}  // namespace coppice
"""


def main():
    paths = [a for a in sys.argv[1:] if a.endswith(".json")] or newest_first(DATA.glob("*-h200-*kernels*.json"))
    text = source(paths)
    if "--check" not in sys.argv:
        SOURCE.write_text(text)
        return 0
    if SOURCE.read_text() == text:
        return 0
    print("src/planner/h200_kernels.cpp is not what scripts/shipped_kernels.py writes")
    return 1


if __name__ == "__main__":
    sys.exit(main())
