#!/usr/bin/env python3
"""Every kernel under compute-sanitizer, on a machine with a GPU and the CUDA toolkit.

    cmake --preset cuda && cmake --build build-cuda
    scripts/sanitize_cuda.py build-cuda [--tools memcheck,racecheck] [--only PART] [--jobs 8] [--resume]

Small cases of each op, kernel test and of whole rounds run under memcheck, racecheck, synccheck and initcheck, the cases of a run in
one process with its own time limit; under racecheck, which is slow, the op cases of one number of rows, or one test. --each: every
case in a process of its own, to see which of them a report is of. A table says for each kernel what the tools reported in it; the
output and what was read from it lie in --logs, a .txt and a .json a process. --resume keeps those there that ended. Exit code 0:
nothing found.
`--page FILE` writes the table of --logs between the marks of a page. `--coverage` counts launches instead, with a tool that lists
them (2026.4) or with ncu: which runs reach which kernel. The tool "coverage" of --tools does so beside the others, in the same run.
`--check`, without a GPU, says whether a kernel in src/kernels is missing.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from kernel_sources import folders_of, kernels_in_source
from sanitizer_output import Result

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ["memcheck", "racecheck", "synccheck", "initcheck"]
MARKS = "<!-- sanitize_cuda.py: begin -->", "<!-- sanitize_cuda.py: end -->"
ROWS = (1, 7, 17, 33, 129)  # of an op case: one of each form of the kernels


class Run:
    """Cases of one binary. kind: how they are found; focus: kernels that racecheck is kept to, all if empty; together: racecheck
    too takes all numbers of rows, or all tests, in one process; rows: of op cases."""

    def __init__(self, kind, binary, args=(), env=None, tools=TOOLS, focus=(), gpus=1, together=False, rows=ROWS):
        self.kind, self.binary, self.args, self.env = kind, binary, list(args), env or {}
        self.tools, self.focus, self.gpus, self.together, self.rows = tools, focus, gpus, together, rows


def op(*names, **options):
    """Cases of the table whose "op name" begins with one of these."""
    return Run("ops", "ops_op_cases_test", names, **options)


def kernel_test(name, test_filter, **options):
    return Run("gtest", name, [test_filter], **options)


def bench(part, **options):
    """K2's widths: too much for the tools that watch every access to shared memory, unless kept to one kernel."""
    return Run("plain", "coppice", ["bench", "kernels", "--device", "cuda", "--check-only", "--filter", part],
               **{"tools": ["memcheck", "synccheck", "initcheck"], **options})


def generate(focus, *flags, **options):
    model, drafter = ROOT / "models/tiny-k2", ROOT / "models/tiny-k2-dflash"
    flags = flags if "ngram" in flags else (*flags, "--drafter", str(drafter))
    prompt = "def f(n):\n    return n\n" * 2
    return Run("plain", "coppice", ["generate", str(model), "--device", "cuda", "--max-tokens", "6", "--enforce-eager", "--quiet",
                                    "--prompt", prompt, *flags], focus=focus, **options)


# What the test sets for ranks that share a GPU is not needed where none waits, and a process takes several times as long with it.
NOBODY_WAITS = {"CUDA_DEVICE_MAX_CONNECTIONS": "8", "CUDA_MODULE_LOADING": "LAZY"}
RUNS = {
    "op linear": op("linear bf16", "head_linear bf16", rows=(1, 7, 12, 17, 30, 33, 129)),
    **{f"op {name}": op(name + " ") for name in (
        "moe_experts int4", "moe_block", "mla_queries", "mla_attention", "gqa_attention")},
    **{f"op {name}": op(name + " ", together=True) for name in (
        "embed", "rms_norm", "add_rms_norm", "silu_mul", "gather_rows", "moe_route", "mla_rope_and_write_kv",
        "gqa_rope_and_write_kv", "top_k_log_probs", "sample_rows")},
    "top-k and greedy": kernel_test("kernels_tree_test", "*TopKAndGreedy*"),
    "trees": kernel_test("kernels_tree_test", "Tree/SmallTrees.*:*GoldenTrees*"),
    "commit": kernel_test("kernels_tree_test", "*AcceptAndMove*"),
    "sampling": kernel_test("kernels_tree_test", "Sample/SmallTrees.*-*clusters_even*:*clusters_beyond*"),
    # Some 300 barriers of one cluster, one after another: a minute each under racecheck.
    "sampling, even rows": kernel_test("kernels_tree_test", "Sample/*clusters_even*:Sample/*clusters_beyond*"),
    "experts": kernel_test("kernels_moe_test", "*MoeExpertsTest.AgreesWithDoublePrecision*:MoeRoute.*-*/5"),
    # The sizes that one row's form takes: in the other a block has two tiles of down.
    "experts, one token": kernel_test("kernels_moe_test", "*OneExpertMayTakeEveryRow/3:*OneExpertMayTakeEveryRow/5"),
    "peers": kernel_test("kernels_peer_exchange_test", "*PeerExchangeTest.*/0", env=NOBODY_WAITS),  # one rank: nobody to wait for
    # Nor here: the host has written what the others send.
    **{f"peers, one of {size}": kernel_test("kernels_peer_exchange_test", f"*RankAloneTest.*/{i}", together=True, env=NOBODY_WAITS)
       for i, size in enumerate((2, 4, 8))},
    "peers, two GPUs": kernel_test("kernels_peer_exchange_test", "*PeerExchangeTest.*/1", gpus=2, together=True),
    "mla, 8k": bench("mla tp8 B=1 L=8192 T=1,mla tp8 B=8 L=8192 T=1"),
    "mla, 64 heads": bench("mla tp1 B=1 L=1024 T=17,mla tp1 B=8 L=8192 T=17", tools=TOOLS, focus=["mla_plan_passes"]),
    "dense, K2 shapes": bench("q_b tp8 M=17,router tp8 M=17,o_proj tp8 M=64,qkv_a tp8 M=8", tools=TOOLS, focus=["skinny_gemm_kernel"]),
    "dense, tall tiles": bench("qkv_a tp8 M=64," + ",".join(f"lm_head tp8 M={rows}" for rows in (8, 17, 33, 64)),
                               tools=TOOLS, focus=["skinny_gemm_kernel"]),
    "dense, 256 rows": bench("q_b tp8 M=256,qkv_a tp8 M=256", tools=TOOLS, focus=["skinny_gemm_kernel"]),
    "rounds, tree": generate(["compile_draft_kernel", "write_time_kernel", "gqa_combine_kernel"], "--ddtree-budget", "16"),
    "rounds, n-gram": generate(["ngram_propose_kernel"], "--spec-method", "ngram"),
    "rounds, two ranks": generate([], "--ddtree-budget", "8", "--tp", "2", gpus=2, tools=["memcheck", "synccheck", "initcheck"]),
    "rounds, log-probabilities": kernel_test(
        "engine_rounds_ahead_test", "*APlaceThatChangedHands*", env={"COPPICE_TEST_DEVICE": "cuda"},
        tools=["memcheck", "synccheck", "initcheck"]),  # its rounds are captured: minutes under racecheck
}

# Where each kernel runs.
EXPERTS = ["op moe_experts int4", "experts"]
MLA = ["op mla_attention", "mla, 8k", "mla, 64 heads"]
PEERS = ["peers", "peers, one of 2", "peers, one of 4", "peers, one of 8", "peers, two GPUs", "rounds, two ranks"]
KERNELS = {
    "embed_kernel": ["op embed"],
    "rms_norm_kernel": ["op rms_norm", "op add_rms_norm"],
    "skinny_gemm_kernel": ["op linear", "dense, K2 shapes", "dense, tall tiles", "dense, 256 rows", "op moe_block"],
    "row_product_kernel": ["op linear"],
    "silu_mul_kernel": ["op silu_mul"],
    "gather_rows_kernel": ["op gather_rows"],
    "moe_route_kernel": ["op moe_route", "experts"],
    "moe_prepare_kernel": ["op moe_block"],
    **{name: EXPERTS for name in ("moe_wide_kernel", "moe_wide_list_kernel", "repack_experts_kernel")},
    **{name: ["op moe_experts int4", "op moe_block"] for name in ("moe_experts_kernel", "moe_combine_kernel")},
    "moe_single_kernel": ["experts, one token"],
    "mla_rope_kernel": ["op mla_rope_and_write_kv"],
    "mla_queries_kernel": ["op mla_queries"],
    **{name: MLA for name in ("mla_plan_tiles", "mla_attention_sm90", "mla_combine")},
    "mla_plan_passes": ["mla, 64 heads"],  # of more than 2048 rows times heads
    "mla_attention_single_sm90": ["op mla_attention", "mla, 8k"],
    "mla_generic": ["op mla_attention"],
    "gqa_rope_kernel": ["op gqa_rope_and_write_kv"],
    "gqa_attention_kernel": ["op gqa_attention"],
    "gqa_rows_kernel": ["op gqa_attention"],
    "gqa_combine_kernel": ["op gqa_attention", "rounds, tree"],
    "top_k_log_probs_kernel": ["op top_k_log_probs", "top-k and greedy"],
    "top_k_cluster_kernel": ["op top_k_log_probs", "top-k and greedy"],
    "merge_top_k_kernel": ["top-k and greedy"],
    "sample_greedy_kernel": ["op sample_rows", "top-k and greedy"],
    "sample_rows_kernel": ["sampling"],
    "sample_rows_cluster_kernel": ["sampling", "sampling, even rows", "rounds, log-probabilities"],
    "count_history_kernel": ["sampling"],
    "choice_log_probs_kernel": ["op sample_rows", "rounds, log-probabilities"],
    "build_tree_kernel": ["trees"],
    "build_tree_rounds_kernel": ["trees"],
    "compile_batch_kernel": ["trees"],
    "compile_single_kernel": ["trees"],
    "accept_path_kernel": ["commit"],
    "move_kv_kernel": ["commit"],
    **{name: PEERS for name in ("one_shot_kernel", "two_shot_kernel", "tagged_kernel", "peer_gather_kernel", "peer_norm_kernel")},
    "compile_draft_kernel": ["rounds, tree"],
    "ngram_propose_kernel": ["rounds, n-gram"],
    "write_time_kernel": ["rounds, tree"],
}
# Functions, by how their names begin, of one kernel alone, and the files that name them: for reports that name no kernel.
OWNERS = {
    "multiply_stage": ("moe_experts_kernel", {"moe_multiply.cuh", "moe_experts.cuh"}),
    "mla_single_s": ("mla_attention_single_sm90", {"mla_single.cuh"}),
    "mla_single_clear": ("mla_attention_single_sm90", {"mla_single.cuh"}),
}
# Of the benchmark alone; they make inputs and read memory.
BENCHMARK = {"fill_uniform_kernel", "fill_bell_kernel", "fill_nibbles_kernel", "fill_scales_kernel", "read_kernel",
             "empty_kernel"}


def check_table():
    found, listed = set(kernels_in_source()), set(KERNELS) | BENCHMARK
    for name in sorted(found - listed):
        print(f"scripts/sanitize_cuda.py: kernel {name} has no row")
    for name in sorted(listed - found):
        print(f"scripts/sanitize_cuda.py: row {name} names no kernel")
    runs = {run for names in KERNELS.values() for run in names}
    for run in sorted(runs - set(RUNS)):
        print(f"scripts/sanitize_cuda.py: no run '{run}'")
    elsewhere = 0
    for name, (kernel, files) in OWNERS.items():
        named = {path.name for path in (ROOT / "src/kernels").rglob("*.cu*") if re.search(rf"\b{name}", path.read_text())}
        for file in sorted(named - files):
            elsewhere += 1
            print(f"scripts/sanitize_cuda.py: {file} names {name} too: is it still of {kernel} alone?")
    return found == listed and runs <= set(RUNS) and not elsewhere


# ------------------------------------------------------------------------------------------ cases


def binary(build, name):
    for folder in (build / "tests", build / "apps/coppice", build):
        if (folder / name).exists():
            return str(folder / name)
    sys.exit(f"{build}: no {name}; build it first")


def num_gpus():
    """What nvidia-smi lists; 1 where there is none."""
    if shutil.which("nvidia-smi") is None:
        return 1
    listed = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return max(1, listed.stdout.count(b"GPU "))


def environment(run, more):
    return {**os.environ, **run.env, **more, "COPPICE_SMALL_TESTS": "1", "COPPICE_SOURCE_DIR": str(ROOT)}


def names_in(build, run):
    """The op cases, or tests, that the run's binary says it has."""
    ask = ["--gtest_filter=OpTableTest.NamesPickOneCase"] if run.kind == "ops" else [
        "--gtest_list_tests", "--gtest_filter=" + run.args[0]]
    text = subprocess.run([binary(build, run.binary), *ask], env=environment(run, {}), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, timeout=60).stdout.decode(errors="replace")
    if run.kind == "ops":
        return [name for name in re.findall(r"^case (.*)$", text, re.M) if name.startswith(tuple(run.args))]
    suite, names = "", []
    for line in text.splitlines():
        if re.match(r"^\S+\.( |$)", line):
            suite = line.split()[0]
        elif line.startswith("  "):
            names.append(suite + line.split()[0])
    return names


def cases_of(build, tool, name, each=False):
    """(case, arguments, environment) for every process of a run under a tool."""
    run = RUNS[name]
    if tool not in run.tools and tool != "coverage":
        return []
    if run.kind == "plain":
        return [(name, run.args, {})]
    names = names_in(build, run)
    if not names:
        sys.exit(f"{run.binary}: has no case of '{name}'")
    apart = tool == "racecheck" and not run.together
    if run.kind == "gtest":
        if each or apart or len(names) == 1:
            return [(test, ["--gtest_filter=" + test], {}) for test in names]
        return [(f"{len(names)} tests", ["--gtest_filter=" + run.args[0]], {})]
    sizes = [str(rows) for rows in run.rows] if apart else [",".join(map(str, run.rows))]
    groups = [(f"{len(names)} cases", ";".join(names))] if len(names) > 1 and not each else [(case, case) for case in names]
    return [(f"{label}, {rows} rows", ["--gtest_filter=*AgreesWithReference/cuda"], {"COPPICE_OPS": group, "COPPICE_ROWS": rows})
            for label, group in groups for rows in sizes]


# -------------------------------------------------------------------------------------------- runs


def without_cublas(logs):
    """A library path on which cuBLASLt does not load, so that prompts take our kernels: racecheck reports cuBLASLt's, and to
    initcheck what a kernel that it does not watch has written is not written."""
    folder = (logs / "no_cublas").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "libcublasLt.so.13").write_bytes(b"")
    return f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"


def end(process):
    """The tool, and what it has started: ended as a group, first asked to."""
    for what, wait in ((signal.SIGTERM, 2), (signal.SIGKILL, 10)):
        try:
            os.killpg(process.pid, what)
            process.wait(wait)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def flags_of(tool, run):
    """Those of the sanitizer; the tool "coverage" lists launches and watches none."""
    if tool == "coverage":
        return ["--tool", "memcheck", "--dump-kernel-launches", "--num-callers-host", "1", "--print-limit", "0",
                "--kernel-name", "kernel_substring=no_such_kernel"]
    flags = ["--tool", tool, "--print-limit", "5000"]
    for part in run.focus if tool == "racecheck" and run.focus else ["coppice"]:
        flags += ["--kernel-name", "kernel_substring=" + part]
    # One kernel at a time: the tool's memory is that of one launch, and no launch goes untracked. Ranks wait for each other's.
    return flags + (["--force-blocking-launches"] if run.gpus == 1 else [])


def run_case(args, tool, name, case, limit):
    """One process; its Result, written to the logs. limit: seconds."""
    case_name, arguments, more = case
    run = RUNS[name]
    command = [args.sanitizer, *flags_of(tool, run), *args.tool_flags.split(), binary(args.build, run.binary), *arguments]
    env = environment(run, more)
    if tool not in ("memcheck", "coverage"):
        env["LD_LIBRARY_PATH"] = without_cublas(args.logs)
    base = log_of(args.logs, tool, name, case_name)
    base.parent.mkdir(parents=True, exist_ok=True)
    start = time.time()
    with open(base.with_suffix(".txt"), "wb") as out:
        process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = 124
        end(process)
    text = base.with_suffix(".txt").read_text(errors="replace")
    result = Result(tool, name, case_name, text, code, time.time() - start).as_json()
    result["watched"] = list(run.focus) if tool == "racecheck" else []
    base.with_suffix(".json").write_text(json.dumps(result, indent=1))
    return result


def log_of(logs, tool, name, case):
    return logs / tool / re.sub(r"\W+", "_", f"{name}__{case}")[:150]


def sanitize(args, tools, runs):
    """Runs what is wanted; whether every process was begun."""
    work = []
    for tool in tools:
        for name in runs:
            for case in cases_of(args.build, tool, name, args.each):
                log = log_of(args.logs, tool, name, case[0]).with_suffix(".json")
                if args.resume and log.exists() and json.loads(log.read_text())["state"] not in ("did not end", "not tracked"):
                    continue
                work.append((tool, name, case))
    last, unstarted = time.time() + args.total, []

    def one(item):
        tool, name, case = item
        left = last - time.time()
        if left < 1:
            unstarted.append(item)
            return
        result = run_case(args, tool, name, case, min(args.limit, left))
        print(f"{tool}, {name}, {case[0]}: {result['state']}, {result['seconds']:.0f} s; {result['summary']}", flush=True)
        for line in result["complaints"]:
            print("          " + line.strip()[:200])
        for record in result["records"]:
            print(f"    {record['count']:5} {record['what']}: {' / '.join(record['places'])}"
                  + (f"  (known: {record['known']})" if record["known"] else ""), flush=True)

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, work))
    if unstarted:
        print(f"{len(unstarted)} of {len(work)} processes were not begun; --resume goes on with them")
    return not unstarted


# ------------------------------------------------------------------------------------------- table


def whole(result):
    """A result with the fields that older ones lack. What a run that is kept to some kernels was kept to then is not known."""
    focus = RUNS[result["run"]].focus if result["run"] in RUNS and result["tool"] == "racecheck" else []
    return {"watched": ["not known"] if focus else [], "unprinted": 0, "launches": {}, "variants": {}, "foreign": 0, **result}


def results_in(logs):
    """All results that lie there, by tool."""
    results = {}
    for path in sorted(logs.glob("*/*.json")):
        result = whole(json.loads(path.read_text()))
        results.setdefault(result["tool"], []).append(result)
    return results


def is_in(record, kernel, folders):
    """Whether a record may be of that kernel: by a kernel's name in its text, else by a function of one kernel, else by the folder
    of its files."""
    named = [name for name in folders if re.search(rf"\b{name}\b", record["text"])]
    named = named or [owner for name, (owner, _) in OWNERS.items() if any(f" {name}" in " " + place for place in record["places"])]
    if named:
        return kernel in named
    files = {folder for name in record["files"] for folder in folders_of(name)} - {"common"}
    return not files or folders[kernel] in files


def reached(kernel, results):
    """In how many launches the coverage of its runs has seen it: "12", "0", "at least 12", "not listed", "" if none has run."""
    mine = [r for r in results.get("coverage", []) if r["run"] in KERNELS[kernel]]
    seen = sum(r["launches"].get(kernel, 0) for r in mine)
    if not mine:
        return ""
    if all(r["state"] == "clean" for r in mine):
        return str(seen)
    return f"at least {seen}" if seen else "not listed"


def cell(kernel, tool, results, folders):
    """What a tool said of a kernel, in the results of its runs."""
    mine = [r for r in results if r["run"] in KERNELS[kernel] and kernel in (r["watched"] or [kernel])]
    if not mine:
        return "not covered"
    near = [[x for x in r["records"] if is_in(x, kernel, folders)] for r in mine]
    errors = sum(x["count"] for records in near for x in records
                 if not x["known"] and x["kind"] not in ("untracked", "application"))
    if errors:
        return f"{errors} error" + ("s" if errors > 1 else "")
    for state in ("did not end", "not tracked", "test failed", "skipped"):
        # A case with reports of other kernels that did not end either has state "errors".
        count = sum(r["state"] == state or (state == "did not end" and r["code"] == 124) for r in mine)
        if count:
            return f"{state} ({count} of {len(mine)})"
    known = sum(x["count"] for records in near for x in records)
    if unprinted := sum(r["unprinted"] for r in mine):
        return f"{known} known, {unprinted} not printed"
    wanted = sum(tool in RUNS[run].tools and (tool != "racecheck" or kernel in (RUNS[run].focus or [kernel]))
                 for run in KERNELS[kernel])
    part = len({r["run"] for r in mine})
    return (f"{known} known" if known else "clean") + (f" in {part} of {wanted} runs" if part < wanted else "")


def table_of(results, tools):
    """[(kernels, cells)]: kernels of the same cells share a row. A kernel that no run has reached is not called clean."""
    folders, rows = kernels_in_source(), {}
    for kernel in KERNELS:
        cells = tuple("not reached" if reached(kernel, results) == "0" else cell(kernel, tool, results.get(tool, []), folders)
                      for tool in tools)
        rows.setdefault(cells, []).append(kernel)
    return [(kernels, cells) for cells, kernels in rows.items()]


def page_of(results, tools):
    lines = ["| kernels | " + " | ".join(tools) + " |", "|---" * (len(tools) + 1) + "|"]
    for kernels, cells in table_of(results, tools):
        lines.append("| " + ", ".join(f"`{kernel}`" for kernel in kernels) + " | " + " | ".join(cells) + " |")
    if results.get("coverage"):
        lines += ["", "Launches in these runs: " + ", ".join(
            f"`{kernel}` {count}" for kernel in KERNELS if (count := reached(kernel, results))) + "."]
    total = {}
    for tool in tools:
        for result in results.get(tool, []):
            for record in result["records"]:
                key = tool, record["what"], " / ".join(record["places"]), record["known"]
                total[key] = total.get(key, 0) + record["count"]
    if total:
        lines += ["", "| tool | report | where | times | |", "|---|---|---|---|---|"]
        lines += [f"| {tool} | {what} | {where} | {count} | {known} |"
                  for (tool, what, where, known), count in sorted(total.items(), key=lambda item: -item[1])[:40]]
    return "\n".join(lines)


def write_page(path, text):
    page = path.read_text()
    if any(page.count(mark) != 1 for mark in MARKS):
        sys.exit(f"{path}: wants {MARKS[0]} and {MARKS[1]}, once each")
    before, after = page.split(MARKS[0])[0], page.split(MARKS[1])[1]
    path.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}")


def print_table(results, tools):
    print(f"\n{'kernel':28}" + "".join(f"{tool:>22}" for tool in tools))
    for kernels, cells in table_of(results, tools):
        for kernel in kernels:
            print(f"{kernel:28}" + "".join(f"{text:>22}" for text in cells))


def launches_by_ncu(args, name):
    """{kernel: launches} of a run."""
    run, seen = RUNS[name], {}
    arguments = run.args if run.kind == "plain" else [
        "--gtest_filter=" + ("*AgreesWithReference/cuda" if run.kind == "ops" else run.args[0])]
    more = {"COPPICE_OPS": run.args[0], "COPPICE_ROWS": ",".join(map(str, run.rows))} if run.kind == "ops" else {}
    prefix = ["ncu", "--metrics", "launch__thread_count", "--csv", "--print-kernel-base", "function"]
    try:
        text = subprocess.run([*prefix, binary(args.build, run.binary), *arguments], env=environment(run, more),
                              capture_output=True, timeout=args.limit).stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace")
    for line in text.splitlines():
        fields = re.findall(r'"([^"]*)"', line)
        if len(fields) > 5 and fields[0].isdigit():
            seen[fields[4]] = seen.get(fields[4], 0) + 1
    return seen


def print_coverage(seen, runs):
    """seen: {kernel: {run: launches}}. Whether each of these runs reaches its kernels."""
    complete = True
    for kernel, names in KERNELS.items():
        got = seen.get(kernel, {})
        missing = [run for run in names if run in runs and run not in got]
        complete = complete and not missing
        print(f"{kernel:28}" + ", ".join(f"{run} {count}" for run, count in got.items()) +
              (f"   NOT IN {', '.join(missing)}" if missing else ""))
    return complete


def launches_in(results):
    """{kernel: {run: launches}} of the tool "coverage"."""
    seen = {}
    for result in results.get("coverage", []):
        for kernel, count in result["launches"].items():
            by_run = seen.setdefault(kernel, {})
            by_run[result["run"]] = by_run.get(result["run"], 0) + count
    return seen


def coverage(args, runs):
    """Launches of each kernel in each run."""
    flags = subprocess.run([args.sanitizer, "--help"], capture_output=True).stdout if shutil.which(args.sanitizer) else b""
    if b"dump-kernel-launches" in flags:
        sanitize(args, ["coverage"], runs)
        return print_coverage(launches_in(results_in(args.logs)), runs)
    seen = {}
    for name in runs:
        for kernel, count in launches_by_ncu(args, name).items():
            seen.setdefault(kernel, {})[name] = count
    return print_coverage(seen, runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path)
    parser.add_argument("--tools", default=",".join(TOOLS))
    parser.add_argument("--only", default="", help="runs whose name contains one of these, separated by semicolons")
    parser.add_argument("--jobs", type=int, default=4, help="processes at the same time")
    parser.add_argument("--limit", type=float, default=300, help="seconds a process")
    parser.add_argument("--total", type=float, default=7200, help="seconds in all")
    parser.add_argument("--logs", type=pathlib.Path, default=None, help="folder for the tools' output and the results")
    parser.add_argument("--resume", action="store_true", help="keep the cases there that ended")
    parser.add_argument("--each", action="store_true", help="a process for each case")
    parser.add_argument("--sanitizer", default="compute-sanitizer", help="the tool, if another than that on the path")
    parser.add_argument("--tool-flags", default="", help="more flags for it")
    parser.add_argument("--page", type=pathlib.Path, default=None, help="write the table of --logs into this page; runs nothing")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    wanted = args.tools.split(",")
    tools = [tool for tool in wanted if tool != "coverage"]
    if args.check:
        return 0 if check_table() else 1
    args.logs = args.logs or (args.build / "sanitize" if args.build else None)
    if args.page:
        write_page(args.page, page_of(results_in(args.logs), tools))
        return 0
    if args.build is None:
        parser.error("name the build folder")
    if shutil.which(args.sanitizer) is None and not (args.coverage and shutil.which("ncu")):
        sys.exit(f"no {args.sanitizer} here")
    runs = [run for run in RUNS if any(part in run for part in args.only.split(";")) and RUNS[run].gpus <= num_gpus()]
    args.logs.mkdir(parents=True, exist_ok=True)
    if args.coverage:
        return 0 if coverage(args, runs) else 1
    done = sanitize(args, wanted, runs)
    results = {tool: [r for r in results_in(args.logs).get(tool, []) if r["run"] in runs] for tool in wanted}
    if "coverage" in wanted:
        done = print_coverage(launches_in(results), runs) and done
    print_table(results, tools)
    states = {r["state"] for some in results.values() for r in some}
    return 0 if done and states <= {"clean", "known"} else 1


if __name__ == "__main__":
    sys.exit(main())
