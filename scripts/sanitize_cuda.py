#!/usr/bin/env python3
"""Every kernel under compute-sanitizer, on a machine with a GPU and the CUDA toolkit.

    cmake --preset cuda && cmake --build build-cuda
    scripts/sanitize_cuda.py build-cuda [--tools memcheck,racecheck] [--only PART] [--jobs 8]

Small cases of each op, kernel test, and of whole rounds run under memcheck, racecheck, synccheck and
initcheck, and a table says for each kernel what the tools reported in it. Exit code 0: nothing.
`--coverage` counts launches with ncu instead: which runs reach which kernel. `--check`, without a
GPU, says whether a kernel in src/kernels is missing here.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
ACCESS = re.compile(r"(?:between|and) (Read|Write|Atomic) access at (.*) in (\S+?):(\d+)")
PLACE = re.compile(r"    (?:at|Device Frame:) ?(.*?)(?:\+0x[0-9a-f]+)?(?: in (\S+):(\d+))?$")

# Pairs of places that racecheck reports although they are ordered, and by what. Either kind is reported in a kernel of twenty
# lines too (docs/results/2026-11-30-h200-sanitizer.md).
LANE = "lane 0 arrives on an mbarrier for its warp, after __syncwarp"
ARRIVAL = "bar.arrive of the readers, bar.sync of the writers"
KNOWN = {
    ("bulk_copy_to_shared", "multiply_stage"): LANE,
    ("mla_clear_keys", "mla_store_weights"): LANE,
    ("mla_start_other_values", "mla_store_weights"): ARRIVAL,
    ("mla_store_weights", "mla_tail_pass"): ARRIVAL,
    ("ldmatrix_x4", "mla_store_weights"): ARRIVAL,
}


def op(name):
    """Cases of the table in whose "op name" the text is."""
    return (["ops_op_cases_test", "--gtest_filter=*AgreesWithReference/cuda"], {"COPPICE_OPS": name})


def kernel_test(name, test_filter):
    return ([name, f"--gtest_filter={test_filter}"], {})


def bench(part):
    return (["coppice", "bench", "kernels", "--device", "cuda", "--check-only", "--filter", part], {})


def rounds(test_filter):
    return (["engine_rounds_ahead_test", f"--gtest_filter={test_filter}"], {"COPPICE_TEST_DEVICE": "cuda"})


def generate(*flags):
    model, drafter = ROOT / "models/tiny-k2", ROOT / "models/tiny-k2-dflash"
    prompt = "def fibonacci(n):\n    if n < 2:\n        return n\n" * 4
    flags = flags if "ngram" in flags else (*flags, "--drafter", str(drafter))
    return (["coppice", "generate", str(model), "--device", "cuda", "--max-tokens", "8", "--enforce-eager", "--quiet", "--prompt",
             prompt, *flags], {})


RUNS = {
    "op linear": op("linear bf16"),
    **{f"op {name}": op(name) for name in (
        "embed", "rms_norm", "silu_mul", "gather_rows", "moe_route", "moe_experts", "moe_block",
        "mla_rope", "mla_queries", "mla_attention", "gqa_rope", "gqa_attention", "top_k_log_probs")},
    "top-k and greedy": kernel_test("kernels_tree_test", "*TopKAndGreedy*"),
    "trees": kernel_test("kernels_tree_test", "*TreesAndRows*:*GoldenTrees*"),
    "commit": kernel_test("kernels_tree_test", "*AcceptAndMove*"),
    "sampling": kernel_test("kernels_tree_test", "*SampledTokens*"),
    "experts": kernel_test("kernels_moe_test", "*MoeExpertsTest.AgreesWithDoublePrecision*:MoeRoute.*"),
    "peers": kernel_test("kernels_peer_exchange_test", "*PeerExchangeTest.*/0"),  # one rank: nobody to wait for
    "mla, 8k": bench("mla tp8 B=1 L=8192 T=1,mla tp8 B=8 L=8192 T=1"),
    "mla, 64 heads": bench("mla tp1 B=1 L=1024 T=17"),
    "dense, K2 shapes": bench("q_b tp8 M=17,router tp8 M=17,o_proj tp8 M=64,qkv_a tp8 M=8"),
    "rounds, tree": generate("--ddtree-budget", "16"),
    "rounds, n-gram": generate("--spec-method", "ngram"),
    "rounds, log-probabilities": rounds("*APlaceThatChangedHands*"),
}

# Where each kernel runs.
KERNELS = {
    "embed_kernel": ["op embed"],
    "rms_norm_kernel": ["op rms_norm"],
    "skinny_gemm_kernel": ["op linear", "dense, K2 shapes", "op moe_block"],
    "row_product_kernel": ["op linear"],
    "silu_mul_kernel": ["op silu_mul"],
    "gather_rows_kernel": ["op gather_rows"],
    "moe_route_kernel": ["op moe_route", "experts"],
    "moe_prepare_kernel": ["op moe_block"],
    "moe_experts_kernel": ["op moe_experts", "experts"],
    "moe_combine_kernel": ["op moe_experts", "experts"],
    "moe_single_kernel": ["op moe_experts", "experts"],
    "moe_wide_kernel": ["op moe_experts", "experts"],
    "moe_wide_list_kernel": ["op moe_experts", "experts"],
    "repack_experts_kernel": ["op moe_experts", "experts"],
    "mla_rope_kernel": ["op mla_rope"],
    "mla_queries_kernel": ["op mla_queries"],
    "mla_plan_tiles": ["op mla_attention", "mla, 8k", "mla, 64 heads"],
    "mla_plan_passes": ["op mla_attention", "mla, 8k", "mla, 64 heads"],
    "mla_attention_sm90": ["op mla_attention", "mla, 8k", "mla, 64 heads"],
    "mla_attention_single_sm90": ["op mla_attention", "mla, 8k"],
    "mla_combine": ["op mla_attention", "mla, 8k", "mla, 64 heads"],
    "mla_generic": ["op mla_attention"],
    "gqa_rope_kernel": ["op gqa_rope"],
    "gqa_attention_kernel": ["op gqa_attention", "rounds, tree"],
    "gqa_combine_kernel": ["op gqa_attention", "rounds, tree"],
    "top_k_log_probs_kernel": ["op top_k_log_probs", "top-k and greedy"],
    "merge_top_k_kernel": ["top-k and greedy"],
    "sample_greedy_kernel": ["top-k and greedy"],
    "sample_rows_kernel": ["sampling"],
    "sample_rows_cluster_kernel": ["sampling", "rounds, log-probabilities"],
    "count_history_kernel": ["sampling"],
    "choice_log_probs_kernel": ["rounds, log-probabilities"],
    "build_tree_kernel": ["trees"],
    "compile_batch_kernel": ["trees"],
    "compile_single_kernel": ["trees"],
    "accept_path_kernel": ["commit"],
    "move_kv_kernel": ["commit"],
    "one_shot_kernel": ["peers"],
    "two_shot_kernel": ["peers"],
    "tagged_kernel": ["peers"],
    "peer_gather_kernel": ["peers"],
    "peer_norm_kernel": ["peers"],
    "compile_draft_kernel": ["rounds, tree"],
    "ngram_propose_kernel": ["rounds, n-gram"],
    "write_time_kernel": ["rounds, tree"],
}
# Of the benchmark alone; they make inputs and read memory.
BENCHMARK = {"fill_uniform_kernel", "fill_bell_kernel", "fill_nibbles_kernel", "fill_scales_kernel", "read_kernel",
             "empty_kernel"}


def kernels_in_source():
    """All __global__ functions: {name: folder}."""
    names = {}
    for path in sorted((ROOT / "src/kernels").rglob("*.cu*")):
        text = re.sub(r"//[^\n]*", "", path.read_text())
        for match in re.finditer(r"__global__\s+", text):
            rest = text[match.end():]
            while attribute := re.match(r"(void\s+)?(__launch_bounds__|__cluster_dims__)\s*\(", rest):
                depth, at = 1, attribute.end()
                while depth:
                    depth += {"(": 1, ")": -1}.get(rest[at], 0)
                    at += 1
                rest = rest[at:].lstrip()
            names[re.match(r"(?:void\s+)?(\w+)\s*\(", rest).group(1)] = path.parent.name
    return names


def check_table():
    found, listed = set(kernels_in_source()), set(KERNELS) | BENCHMARK
    for name in sorted(found - listed):
        print(f"scripts/sanitize_cuda.py: kernel {name} has no row")
    for name in sorted(listed - found):
        print(f"scripts/sanitize_cuda.py: row {name} names no kernel")
    runs = {run for names in KERNELS.values() for run in names}
    for run in sorted(runs - set(RUNS)):
        print(f"scripts/sanitize_cuda.py: no run '{run}'")
    return found == listed and runs <= set(RUNS)


def binary(build, name):
    for folder in (build / "tests", build / "apps/coppice", build):
        if (folder / name).exists():
            return str(folder / name)
    sys.exit(f"{build}: no {name}; build it first")


def command_of(build, run, prefix):
    argv, env = RUNS[run]
    return [*prefix, binary(build, argv[0]), *argv[1:]], {
        **os.environ, **env, "COPPICE_SMALL_TESTS": "1", "COPPICE_SOURCE_DIR": str(ROOT),
        # One kernel at a time: racecheck reported some pairs only where kernels overlap.
        "CUDA_LAUNCH_BLOCKING": "1"}


class Result:
    """What one run under one tool gave. reports: {(what, place or pair of places): times}."""

    def __init__(self, text="", code=124, seconds=0.0):
        summary = re.findall(r"=+ ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
        self.ended = code != 124 and bool(summary) and "[  SKIPPED ]" not in text
        self.passed = code == 0
        self.summary, self.seconds = summary[-1] if summary else "no summary", seconds
        self.complaints = [] if self.passed else re.findall(r"^(?!=====).*(?:ailure|error|rror:|FAILED).*$", text, re.M)[:4]
        self.reports, self.folders = {}, set()
        first, what = None, ""
        for line in text.splitlines():
            if not line.startswith("========="):
                continue
            if access := ACCESS.search(line):
                place = f"{access[1]} {function_of(access[2])} {pathlib.Path(access[3]).name}:{access[4]}"
                self.folders.add(pathlib.Path(access[3]).parent.name)
                if "reported between" in line:
                    first, what = place, "warning" if "Warning" in line else "race"
                elif first:
                    self.add((what, f"{first} / {place}"))
            elif re.match(r"========= Program hit", line):
                self.add((line[10:].strip()[:120], "host"))
            elif re.match(r"========= (Invalid|Misaligned|Uninitialized|Barrier error|Error)", line):
                first, what = None, line[10:].strip()
            elif what not in ("", "race", "warning") and (place := PLACE.search(line)):
                self.folders.add(pathlib.Path(place[2] or "").parent.name)
                self.add((what, f"{function_of(place[1])} {pathlib.Path(place[2] or '').name}:{place[3]}"))
                what = ""
        if self.ended and not self.reports and not re.search(r" 0 (errors|hazards)", self.summary):
            self.add((self.summary, "?"))

    def add(self, report):
        self.reports[report] = self.reports.get(report, 0) + 1

    def unknown(self):
        return {report: count for report, count in self.reports.items() if not known_reason(report)}


def function_of(text):
    """The bare name of a function as the tools print it."""
    plain = text.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    names = re.split(r"[<(]", plain)[0].split("::")[-1].split()
    return names[-1] if names else plain[:40]


def known_reason(report):
    names = tuple(sorted(set(re.findall(r"(?:Read|Write|Atomic) (\w+)", report[1]))))
    return KNOWN.get(names) if report[0] in ("race", "warning") else None


def run_tool(build, run, tool, limit, logs):
    """limit: seconds; not above zero: not run."""
    if limit <= 0:
        return Result()
    prefix = ["compute-sanitizer", "--tool", tool, "--print-limit", "1000", "--kernel-name", "kernel_substring=coppice"]
    command, env = command_of(build, run, prefix)
    start = time.time()
    try:
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit)
        text, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as late:
        text, code = (late.stdout or b"").decode(errors="replace"), 124
    name = re.sub(r"\W+", "_", f"{tool} {run}")
    (logs / f"{name}.txt").write_text(text)
    return Result(text, code, time.time() - start)


def sanitize(build, tools, runs, jobs, limit, total, logs):
    work = [(tool, run) for tool in tools for run in runs]
    end = time.time() + total
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = dict(zip(work, pool.map(
            lambda w: run_tool(build, w[1], w[0], min(limit, end - time.time()), logs), work)))
    for (tool, run), result in results.items():
        state = "" if result.ended else "NOT ENDED, "
        state += "" if result.passed or not result.ended else "the test itself FAILED, "
        print(f"{tool}, {run}: {state}{result.summary}, {result.seconds:.0f} s")
        for line in result.complaints if result.ended else []:
            print("          " + line.strip())
        for (what, places), count in sorted(result.reports.items(), key=lambda item: -item[1]):
            reason = known_reason((what, places))
            print(f"    {count:5} {what}: {places}" + (f"  (known: {reason})" if reason else ""))
    print(f"\n{'kernel':28}" + "".join(f"{tool:>12}" for tool in tools) + "  runs")
    folder_of = kernels_in_source()
    clean = True
    for kernel, names in KERNELS.items():
        own = [run for run in names if run in runs]
        if not own:
            continue
        cells = []
        for tool in tools:
            mine = [results[tool, run] for run in own]
            near = [r for r in mine if r.folders & {folder_of[kernel], "common", ""}]
            cell = "clean" if all(r.ended and r.passed for r in mine) else "not ended"
            if any(r.reports for r in near):
                cell = "REPORTS" if any(r.unknown() for r in near) else "known"
            cells.append(cell)
            clean = clean and cell in ("clean", "known")
        print(f"{kernel:28}" + "".join(f"{cell:>12}" for cell in cells) + "  " + ", ".join(own))
    return clean and not any(result.unknown() for result in results.values())


def coverage(build, runs, limit):
    """Launches of each kernel in each run, by ncu."""
    seen = {}
    for run in runs:
        prefix = ["ncu", "--metrics", "launch__thread_count", "--csv", "--print-kernel-base", "function"]
        command, env = command_of(build, run, prefix)
        try:
            text = subprocess.run(command, env=env, capture_output=True, timeout=limit).stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as late:
            text = (late.stdout or b"").decode(errors="replace")
        for line in text.splitlines():
            fields = re.findall(r'"([^"]*)"', line)
            if len(fields) > 5 and fields[0].isdigit():
                seen.setdefault(fields[4], {}).setdefault(run, 0)
                seen[fields[4]][run] += 1
    for kernel, names in KERNELS.items():
        got = seen.get(kernel, {})
        missing = [run for run in names if run in runs and run not in got]
        print(f"{kernel:28}" + ", ".join(f"{run} {count}" for run, count in got.items()) +
              (f"   NOT IN {', '.join(missing)}" if missing else ""))
    return all(run in seen.get(kernel, {}) for kernel, names in KERNELS.items() for run in names if run in runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--only", default="", help="runs whose name contains one of these, separated by commas")
    parser.add_argument("--jobs", type=int, default=4, help="runs at the same time")
    parser.add_argument("--limit", type=float, default=600, help="seconds a run")
    parser.add_argument("--total", type=float, default=7200, help="seconds in all")
    parser.add_argument("--logs", type=pathlib.Path, default=None, help="folder for the tools' output")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.check:
        return 0 if check_table() else 1
    if args.build is None:
        parser.error("name the build folder")
    tool = "ncu" if args.coverage else "compute-sanitizer"
    if shutil.which(tool) is None:
        sys.exit(f"no {tool} here")
    runs = [run for run in RUNS if any(part in run for part in args.only.split(","))]
    if args.coverage:
        return 0 if coverage(args.build, runs, args.limit) else 1
    logs = args.logs or args.build / "sanitize"
    logs.mkdir(parents=True, exist_ok=True)
    return 0 if sanitize(args.build, args.tools.split(","), runs, args.jobs, args.limit, args.total, logs) else 1


if __name__ == "__main__":
    sys.exit(main())
