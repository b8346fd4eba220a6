#!/usr/bin/env python3
"""Writes docs/next-hardware.md from what `coppice plan` predicts; --check compares instead."""
import json
import pathlib
import subprocess
import sys
import tempfile

from report import newest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "next-hardware.md"
# Whole rounds: parts as they are among others, not op by op.
ROUNDS = newest("*-h200-planner-tp8.json")[1]
GPUS = ["h200", "b200", "b300", "gb200", "gb300", "rtxpro6000"]
BATCHES = [1, 8, 64]

BUILDS = {
    "sm_90a": "measured",
    "sm_100a": "experts, top-k and sampling as on sm_90 (copy engine, mma.sync); dense products of few rows and MLA attention take the plain path; tcgen05 only where measured better",
    "sm_103a": "as sm_100a",
    "sm_120a": "as sm_100a; 99 KB of shared memory a block",
}

CHECKS = """1. `coppice bench kernels`: reads of 1 to 1024 MiB first. The plan assumes 95 % of 7.67 TB/s on B200 and 90 % of the data sheet on GDDR7; every other line follows from it.
2. Bits: `ops_op_cases_test`, row independence and the exactness tests on that GPU. On Hopper one k16 product is one fused sum whichever instruction carries it (docs/results/mla-h200.md, 1); tcgen05 has not been looked at.
3. Experts at 1 to 64 rows, then the plateau at 256 to 1024 rows against the table above.
4. Collectives at 14 KB to 1 MB inside a captured round: the largest fixed time that is not ours.
5. Captured rounds: a launch costs what on this driver; programmatic edges between all kernels of a layer.
6. Tree budgets by `coppice bench round`: the predicted best has {best} nodes, the controller finds its own.
"""


def plan(binary, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.json"
        subprocess.run([str(binary), "plan", "kimi-k2", "--gpu", ",".join(GPUS), "-tp", "8", "--calibration", ROUNDS, "--json", str(path), *arguments],
                       check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        return json.loads(path.read_text())


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def rounds_of(device, batch):
    point = next(p for p in device["points"] if p["batch"] == batch)
    return point, {r["budget"]: r for r in point["rounds"]}


def speeds(devices):
    rows = []
    for device in devices:
        for batch in BATCHES:
            point, rounds = rounds_of(device, batch)
            best, plain = rounds[point["best_budget"]], rounds[0]
            rows.append([device["title"], str(batch), f"{plain['total']['us'] / 1000:.2f}", f"{plain['tokens_per_s_user']:.0f}",
                         str(point["best_budget"]), f"{best['total']['us'] / 1000:.2f}", f"{best['tokens_per_s_user']:.0f}",
                         f"{best['tokens_per_s']:.0f}", best["total"]["limit"]])
    return table(["GPU (8)", "batch", "plain ms", "tok/s", "best budget", "round ms", "tok/s", "total tok/s", "limited by"], rows)


def budgets(devices):
    wanted = [3, 7, 15, 23, 31, 63]
    rows = []
    for device in devices:
        for batch in BATCHES[:2]:
            _, rounds = rounds_of(device, batch)
            rows.append([device["title"], str(batch)] + [f"{rounds[n]['tokens_per_s'] / rounds[0]['tokens_per_s']:.2f}" for n in wanted])
    return table(["GPU (8)", "batch"] + [str(n) for n in wanted], rows)


def plateau(devices):
    rows = []
    for device in devices:
        row = [device["title"]]
        for batch in (64, 256, 1024):
            _, rounds = rounds_of(device, batch)
            row.append(f"{rounds[0]['parts']['experts']['us'] / 60:.0f}")
        rows.append(row)
    return table(["GPU", "64 rows", "256", "1024"], rows)


def gains(devices, first):
    """What each change is worth on the first Blackwell, at one stream and at eight, largest first."""
    device = next(d for d in devices if d["name"] == first)
    found = {}
    for batch in BATCHES[:2]:
        point, rounds = rounds_of(device, batch)
        now = rounds[point["best_budget"]]["total"]["us"]
        for change in point["what_would_change_it"]:
            if not change["what"].startswith(("memory 4.5", "all of it")):
                found.setdefault(change["what"], []).append(now / change["us"])
    ordered = sorted(found.items(), key=lambda item: -max(item[1]))
    return device["title"], table(["change", "batch 1", "batch 8"], [[what] + [f"{g:.2f}x" for g in g_of] for what, g_of in ordered])


def measured_sums(devices):
    return " and ".join(f"{d['sums_measured_ranks']} {d['title']}" for d in devices if d["sums_measured_ranks"])


def all_reduce(devices):
    rows = []
    for device in devices:
        _, rounds = rounds_of(device, 1)
        plain, eight = rounds[0], rounds[7]
        rows.append([device["title"]] + [f"{r['parts']['all-reduce']['us'] / 1000:.2f} ({100 * r['parts']['all-reduce']['us'] / r['total']['us']:.0f} %)"
                                         for r in (plain, eight)])
    return table(["GPU (8)", "plain, ms a round", "tree of 7"], rows)


def page(binary):
    trees = plan(binary, "--drafter", "kimi-k2-dflash", "--batch", ",".join(map(str, BATCHES)), "--context", "8192")
    wide = plan(binary, "--batch", "64,256,1024", "--context", "1024")
    devices = trees["devices"]
    title, worth = gains(devices, "b200")
    best = sorted({point["best_budget"] for device in devices for point in device["points"]})
    arches = {}
    for device in devices:
        arches.setdefault(device["arch"], []).append(device["title"])
    return f"""# The next GPUs

Written by `scripts/next_hardware.py` from the planner's own output; a test compares. Everything here is **predicted** but for the times that it rests on: rounds of one TP-8 rank on an H200, [{ROUNDS.split('/')[-1]}]({ROUNDS[5:]}).
Kimi K2 (61 layers, INT4 experts) on eight GPUs, context 8192, drafter {trees['drafter']}, acceptance {trees['acceptance']['name']}: {trees['acceptance']['source']}.
Rows choose experts independently.

## Builds

{table(["target", "GPUs", "state"], [[arch, ", ".join(names), BUILDS[arch]] for arch, names in arches.items()])}
`make cuda-all` compiles for every target (last 2026-11-30 21:06, commit af69ca6: no error). Only sm_90a has run. What follows scales the times of the sm_90a kernels: where a target takes the plain path ([architecture](architecture.md)), it is slower until it has a form of its own.

## What to expect

{speeds(devices)}
## In order of predicted gain, {title}

{worth}
Fixed time leads at one stream: fewer kernels a layer, weights prefetched before the dependency, collectives fused with the norm. Memory catches up as the batch grows. A card with faster memory gains
little more until the fixed time falls.

## The plateau: routed experts, us a layer of a TP-8 rank

{plateau(wide['devices'])}
## Collectives: 122 all-reduces a step

Measured on {measured_sums(devices)}: a row of 7168 takes 2.7 us, eight 3.3 ([results](results/2026-11-30-h200-tensor-parallel.md)). Eight ranks are predicted: as many trips, seven times the bytes; other GPUs are assumed as far away, at the rates of their links.

{all_reduce(devices)}
## Budgets: speed over plain decoding by nodes of the tree

{budgets(devices)}
## What to validate again, in this order

{CHECKS.format(best=" or ".join(map(str, best)))}"""


def main():
    binary = pathlib.Path(sys.argv[1]).resolve()
    text = page(binary)
    if "--check" not in sys.argv:
        PAGE.write_text(text)
        return 0
    if PAGE.read_text() == text:
        return 0
    here, now = PAGE.read_text().splitlines(), text.splitlines()
    line = next((i for i, (a, b) in enumerate(zip(here, now)) if a != b), min(len(here), len(now)))
    print(f"docs/next-hardware.md: line {line + 1} is not what scripts/next_hardware.py writes")
    for side in (here, now):
        print("  " + (side[line] if line < len(side) else "(end)"))
    return 1


if __name__ == "__main__":
    sys.exit(main())
