#!/usr/bin/env python3
"""planner_page.py BINARY: writes docs/results/planner-h200.md from the rounds in docs/results/data, judged by `coppice plan`, and a table
of docs/bandwidth.md; --check compares."""
import json
import pathlib
import statistics
import subprocess
import sys

from report import newest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results" / "planner-h200.md"
BANDWIDTH = ROOT / "docs" / "bandwidth.md"
BEGIN, END = "<!-- overlap: written by scripts/planner_page.py -->", "<!-- end of overlap -->"
DATA = ROOT / "docs" / "results" / "data"
PREFIX = pathlib.Path(newest("*-h200-planner-tp8.json")[1]).name.removesuffix("tp8.json")
JUDGED = {"tp8": "One TP-8 rank of Kimi K2.6, 61 layers, no all-reduce", "tp1": "Four whole layers (TP1)"}
KERNELS = "2d08638"  # the commit whose kernels the newest rounds ran
BUILT = "The rounds of 20:47 ran from the working tree that became that commit seventy seconds later."
# Rounds of earlier kernels, at another context.
EARLIER = "2026-11-30-h200-rounds-tp8.json"
# Rounds of 20:34, of kernels without one block a multiprocessor for long products.
BEFORE = "2026-11-30-h200-rounds-20h34-"
MEMORY = {"tp8-plain": "a TP-8 rank without a drafter", "tp1-plain": "four whole layers without a drafter", "tiny": "tiny-k2 and its drafter"}
MEMORY_NOTE = """
`caches and buffers` are those of all points together, `workspaces` those of the kernels, in the pages of two megabytes that the driver hands out, `graphs` the captured rounds: 3100 bytes a launch beyond 5 MB that
the driver has at hand. Those two numbers were set with the first rounds of 2026-11-30 in view (before: 3600 and none, the graphs of a TP-8 rank 26 % too large); the pages follow from what cudaMalloc does.
Single lines may be further off than sums: {far}.
"""
TOTAL_BOUND, STAGE_BOUND, MEMORY_BOUND = 5.0, 10.0, 2.0

HEAD = """# Planner against rounds measured on one H200

Written by `scripts/planner_page.py`. Measured: `{command}`, and the same for whole layers: {runs} passes over all points, each in an order of its own,
{repeats} rounds a point and pass; medians over the passes ({machine}, {date}). Predicted: `coppice plan --judge FILE`, which calibrates on 1, 8 and 64 rows at contexts of
1k and 32k (marked `c`) and predicts the others; the experts' overlap is interpolated from the calibration's counts. Errors are signed, per cent of the measured time: + is predicted too slow.
Columns after the spread are the stages, each timed alone; the last two are with the experts that the rows of that very point were counted to choose (random weights: trees of 256 rows repeat
tokens, so that more rows meet at one expert). Spread: half of what lies between the slowest and the fastest pass, per cent of the median.

These rounds are of kernels of commit {kernels}. {built} "Which rounds tested what" says what of the model was set with which rounds in view.

The host's stage is not judged: a round is launched while the one before it runs, and what the host does hides behind that. Of these {count} rounds the time from round to round, by the host's clock, is longer than the device's by {median:.0f} us in the median, by {most:.0f} us at most
({most_share:.1f} % of that round), and shorter by up to {least:.0f} us.
"""

TESTED = """
## Which rounds tested what

No number of the model was set with the tables above in view, and none since they were seen. The reports of earlier rows are in the history of docs/results/data.

| rounds | kernels | the model | totals within 5 % | stages within 10 % |
|---|---|---|---|---|
| 2026-11-30T10:05 | 7283f94 | as it was before any of them was seen | 28 of 30 | 287 of 298 |
| 16:14 | b3e3624 | after seven changes with those of 10:05 in view, none since | 30 of 30 | 296 of 298 |
| 17:10 | 4ba446f | 125dee6, which followed that day's kernels before these rounds were seen | 28 of 30 | 283 of 298 |
| 17:08, of another job: TP-8 alone, up to 64 rows, 4k too, one pass | 4ba446f | after six changes with those of 17:10 in view | 10 of 10 | 98 of 98 |
| 20:34 | 2edcbe3 | fce25b3: since then kernels alone were followed before these rounds were seen. Products of 64 rows lost their own constants with the fault that those described, the plan is as measured alone. Worst total 2.7 %; beyond: commit of 256 rows at 32k of TP-8, -10.3 % of 61.3 us ("Commits", places) | 30 of 30 | 297 of 298 |
| {date}: the tables above | {kernels} | the same; few long blocks have a multiprocessor each since, and the model asks the kernels' own function for tiles | {now} |
| 20:53, of another job (`docs/results/data/2026-11-30-h200-whole-rounds-tp8.json`): TP-8 alone, up to 64 rows, 4k too, one pass | {kernels} | the same | 10 of 10 | 98 of 98 |

After the rounds of 16:14 and before the next were seen:

- the share of a merge is 0.24 instead of 0.27, where the fit to the points marked `c` of both networks is best (0.022 relative; 0.024 at 0.20, 0.023 at 0.27), which leaves attention of 256 rows at 1k of TP-8 6 % too fast instead of 10;
- tiles of products are those of b4d5280, asked for as before ([dense products](gemm-h200.md)): of 65 rows and more they are taller, of 12 to 64 rows more push their sums;
- rows 33 to 64 of a product count a fifth each: five products alone grow by 3.1 us from 8 to 33 rows and by 1.6 from 33 to 64 (there, "Whole stores"), of which more than the latter is already counted as sums. Dense parts of 32 rows were 5 to 7 % too fast in all rounds so far;
- `mla_queries` of 9 to 24 rows take 2.4 us more than of eight (one pass) instead of 2.5 or 5: the attention block with 12, 17 and 24 rows lost 0.5, 2.3 and 3.4 us by it ([attention block](attention-block-h200.md));
- commits are fitted to the mean of the passes, not their median, which jumped between two times.

What 125dee6 said of the rounds of 17:10: totals of 256 rows of TP-8 at 1k and 8k 6.1 and 6.0 % too slow; beyond 10 % dense parts of 17 and 32 rows of TP1 (12 to 14 % too slow, at every context), norms of 256 rows of TP-8 (11 and 12 %), trees of 32 rows of TP1 (12 and 13 %) and of 256 (TP-8 -10, TP1 +12 and
+19 %), of one row at 8k (+10) and compiling one of 256 (-10). After they were seen:

- memory is read 12 % more slowly by products of one segment that leave multiprocessors free and of which two blocks find room on one: o_proj of TP1 took 33.4 us alone with 8 rows and 29.8 with 17, where a block is alone, the dense layer's down 74.4 and 67.1 (these two have a multiprocessor for each block since: [dense products](gemm-h200.md));
- what a round takes beside its parts is interpolated up to 64 rows and nothing beyond, where it was that of 64 rows;
- norms grow from 15 to 110 rows, where it was 13 to 132, and copies of rows read at 0.37 of the read rate instead of 0.4. A fit;
- a node of a tree takes 0.135 us in either form (2.7 steps; what a small tree and one of 63 nodes differ by, 2.7 and 3.4, was fitted to each network, though a tree knows nothing of the network); 255 nodes take 27 us instead of 25.5, compiling them 2.3 instead of 2;
- trees are fitted to their fastest pass. A tree of one row of TP1 took 4.5 to 6.0 us in the four passes that stood behind points of 256 rows, 3.8 and 4.2 behind 64 rows, 3.5 to 3.6 else: rounds of a few milliseconds were warmed up for less than the 20 ms that low clocks last. `bench round` warms up for 40 ms since:
  half of what lies between the passes of TP1 with 1 to 17 rows was up to 12.5 % of the median before, and is at most 2.1 % in the tables above.

The model of today on the rounds of 20:34:

"""

MODEL = """## How a stage is predicted

A part of a round is `launches x fixed + row x spread + merge x merges + stream x bytes + step x longest chain + arithmetic` (src/planner/cost_fit.h), fitted to the calibration's rounds; what is left
there is interpolated, but not between one row of attention and more, nor between eight rows of products and more: those are other forms of the kernels. What grows with rows and context is asked of the functions that the launchers ask (src/planner/kernel_schedule.cpp):
the tiles and waves of products, the units of rows and their columns that experts are cut into, the candidates a lane holds while a tree grows, the launches that fused blocks save.

Attention is the longest chain of one multiprocessor and the merges behind it:

- The planning kernel's own search says which chunks a fragment has. Its chain counts 3400 clocks a step of 64 keys (3200 to 3600 in mla-h200.md, 5), 2.2 steps for a chunk's result that is merged with the one before it (normalised, merged,
  stored: 6100 of 2775 clocks a step in mla-h200.md, 6), three steps for the pass over a tree's own nodes, which has a fragment of its own or follows other chunks (then 4.5), 0.06 for the queries of eight rows.
  Keys come while others are multiplied; only where more streams run than memory feeds does a step wait.
- A single token with few keys runs in clusters: 1.3 steps for all of a chunk (mla-h200.md, 7), and all keys at once, four ninths of them twice.
- In the merging kernel one of eight warps (of sixteen, for one or two octets of rows) takes a run of chunks, one after the other, then come three (four) merges in pairs. A block that shares a multiprocessor takes 0.24 of a merge from the others. Blocks that find no room while attention
  runs start late, by 1.5 launches.
- The plan takes 8.1 us and 0.1 a tile for single tokens, 8.3 and 0.27 a tile for trees of up to 32 full tiles, 15.5 and 0.025 a tile for larger ones: within 12 % of 29 of 38 plans of 8 and 64 heads, 1 to 64 sequences of 1 to 64 rows,
  measured alone (2026-11-30 20:25, kernels of 8c6571e; of the others single tokens of 5 to 8 sequences are told up to 28 % too short, no plan of one sequence more than 16 % too long or 7 % too short).

Products that are split over blocks exchange their sums for 0.5 us where those are not pushed (attention-block-h200.md, "Pushed sums"); an INT4 weight takes 1.75 instructions on its way into a product.

What no in-kernel clock gives lies in what fits to rounds of 1, 8 and 64 rows at 1k and 32k alone allowed, of both networks and of kernels of two ages (f527b5d and 03:03 of 2026-11-30) together: 2.9 to 3.1 (3), 4.2 to 4.9 (4.5), 0.05 to 0.07 (0.06), 1.3 to 2.7 (1.5). Which terms there are was found with all rounds in view.

Calibration points reach neither trees of more than 64 nodes nor the experts' form for more than 96 rows nor `mla_queries` with 9 to 24 rows: what one step of those forms costs beside the small forms is a
constant of the model, set from the same kernels measured alone (docs/results/moe-h200.md, attention-block-h200.md). The form of the model was mended on rounds of 2026-11-29 and of kernels of f527b5d, judged points included.
For kernels of 7283f94, before their rounds: sixteen merging warps, pushed sums, nibbles, units of 24 rows, the plan's search, trees by rounds. A tree by rounds takes what its draft asks for: 22 to 28.5 us at 255 nodes in eight drafts
measured alone (tree-h200.md), 28 to 33 behind rounds, 27 in the model; `bench round` says what it drafted (`draft_log_probs`).

Untouched since before the rounds of 10:05 (kernels of 7283f94), the model had 28 of their 30 judged totals within 5 % and 287 of 298 stages within 10 %. After they were seen:

- experts of 256 rows were 5 to 6 % too slow (and so the totals at 1k and 8k 5.9 and 5.2 %): a product takes 4.4 clocks instead of 4.9 where a block is alone, with which the model, fitted to the kernel alone at 1, 8, 17 and 64 rows, finds it at 128, 256 and 512 rows to 0.5 % (2026-11-30-h200-whole-kernels.json; to 2.4 % with 4.5, to 1.1 % with 4.3);
- norms of 256 rows of TP-8 were 10 to 11 % too slow: growth begins behind 12 rows instead of 16. A fit: `add_norm` alone (1.7, 1.8, 2.2, 3.2 us at 1, 17, 64, 256 rows) leaves 256 rows 8 to 9 % too fast with either, the rounds 8 to 9 % too slow;
- attention of 256 rows at 1k was 11.7 % too fast: the share of a merge is 0.27 instead of a third, where the fit to 1, 8 and 64 rows at 1k and 32k of TP-8 is best (0.013 relative; 0.025 at 0.20, 0.020 at 0.33);
- lm_head of 256 rows of TP1 was 9 to 12 % too fast: in rounds the same product takes 1.04 to 1.08 times what it takes alone (965 to 1005 of 929 us; TP-8 134 to 135 of 130), where the model without a factor has it to 0.1 %. Clocks sink; 0.95 is the mean of the six;
- sampling 32 rows of TP1 was 11 to 14 % too fast: the L2 cache reads 1.4 times as fast as memory, 6.5 TB/s, instead of 1.8 times. First that was a number of the logits' own; now it is one for all that is found there, and
  partial results of attention, which were counted written and read, are counted as the merging kernel reads them: their writing is behind others' steps. Two numbers fewer; the worst totals went from 4.7 to 4.1 % (TP-8) and from 3.8 to 3.6 % (TP1),
  attention of 64 rows at 4k of the earlier kernels from 6.3 to under 6 %, attention of 256 rows at 1k of TP-8 from -6.9 to -8.6 %. No kernel measured the cache's rate alone;
- compiling trees of 31 nodes was up to 12 % too slow: a step for each node besides the passes over the paths.

Rounds of one row draft nothing; their tree and commit are other kernels and calibrate only themselves.

## Commits

Rounds of 10:05 and 16:14 had commits of 256 rows (TP1) 11 % slower than predicted, and others that did the same work in 212 or in 225 us. Four questions, each measured by itself on one H200 (16:13 to 16:35 of 2026-11-30, kernels of b3e3624):

- Committed tokens: one in every point. They are not it.
- Clocks. 128 commits in a row, with a kernel of 20000 clocks behind each: behind rounds, and behind most parts alone, they take 223 to 228 us. Behind all parts in a row (attention, experts, dense, lm_head of 256 rows, then norms and sampling), as they were timed until
  then, the clock is at about 1440 MHz instead of 1980 for 20 to 25 ms and comes back by steps; commits take 233 to 250 us in that time and 224 to 230 after it. What draws so much is lm_head: behind it alone the clock falls 5 ms later. All passes agreed because all
  timed the commit behind the same parts. This page said that clocks had been ruled out; what it argued with, a TP-8 rank's commits, hardly feels them (52 to 55 us). Since then parts that draw little are timed directly behind the rounds, at the clocks of rounds,
  and products of many rows last (`kOrder` in src/benchmark/point_bench.cpp). That mends `sample` of 256 rows as well: 47 us behind lm_head, 42 behind rounds.
- Places. One point's commit took 52 or 58 us (TP-8 rank; 37 and 53 of 90 passes) or 214 or 225 us (TP1), another time in the next place, and kept it for all replays of a place. All of it was the product over features: 112 blocks, launched while the kernels
  before it still held multiprocessors of which two blocks find room on one, 137 or 151 us (TP1). With one block a multiprocessor (2d08638, [dense products](gemm-h200.md)) commits take 47.6 to 51.0 us (TP-8) and 176 to 181 (TP1) at every point above.
- Rows: accepting goes over the nodes of a tree, 4.8 us with 4 rows, 5.1 with 64, 6.2 with 256, out of a cold cache.

## Without a calibration

`coppice plan` without `--calibration` adds up kernels measured alone (src/planner/h200_kernels.cpp), none of them in a round, and is not fitted to any line above: of these 42 rounds its totals are within 9 % (`JudgeTest.KernelsAlonePredictRoundsWithinNinePercent`), TP-8 -3.3 to +7.3 %, TP1 -4.4 to +0.8 %, but for one row
of TP-8 at 1k and 8k, +10.9 and +9.3 %: there the dense products of 61 layers take 1450 us alone and 1214 in a row, where the next one's weights come under this one's end. It misses most there (norms too: 278 us of 219) and where no kernel was measured: the product over a draft's features (commits of TP1 -8 %), a draft's own attention (drafts -4 to -8 %).
"""


def run(binary, *arguments):
    return subprocess.run([binary, "plan", *arguments], check=True, capture_output=True, text=True).stdout


def rows_of(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines() if not line.startswith("|---")]


def reading(name, table, spread):
    """What is beyond the bounds, in sentences; (totals within theirs, totals, stages within theirs, stages)."""
    head, *rows = rows_of(table)
    _, *spreads = rows_of(spread)
    stages = head[6:-2]  # the last two are not judged
    totals, beyond_total, beyond, count = [], [], [], 0
    for row, measured in zip(rows, spreads):
        if row[1].endswith("c"):
            continue
        at = f"{row[1]} rows at {int(row[0]) // 1024}k"
        totals.append(abs(float(row[4])))
        if abs(float(row[4])) > TOTAL_BOUND:
            beyond_total.append(f"{at} {row[4]} % (spread {row[5]} %)")
        for i, stage in enumerate(stages):
            if row[6 + i] == "-":
                continue
            count += 1
            if abs(float(row[6 + i])) > STAGE_BOUND:
                line = f"{stage}, {at}: {row[6 + i]} % of {measured[2 + 2 * i]} us (spread {measured[3 + 2 * i]} %)"
                others = [s[2 + 2 * i] for s in spreads if s[1] == measured[1] and s[0] != measured[0]]
                if stage not in ("attention", "draft"):
                    line += "; the same work at other contexts took " + " and ".join(others) + " us"
                beyond.append(line)
    inside = len(totals) - len(beyond_total)
    counts = (inside, len(totals), count - len(beyond), count)
    text = f"{name}: {inside} of {len(totals)} judged totals are within {TOTAL_BOUND:.0f} %, the worst {max(totals):.1f} %"
    text += "; beyond: " + ", ".join(beyond_total) if beyond_total else ""
    text += f". {count - len(beyond)} of {count} judged stages are within {STAGE_BOUND:.0f} %"
    if not beyond:
        return text + ".\n", counts
    return text + "; beyond:\n\n" + "\n".join("- " + line for line in beyond) + "\n", counts


def shares(counts):
    """Cells of totals and stages within their bounds, of several sets of rounds together."""
    totals, of_totals, stages, of_stages = (sum(column) for column in zip(*counts))
    return f"{totals} of {of_totals} | {stages} of {of_stages}"


def beside_device(reports):
    """What rounds take by the host's clock beside the device's: fields of HEAD."""
    left = [(r["wall_us"] - r["total_us"], r["total_us"]) for report in reports for r in report["rounds"]]
    most, total = max(left)
    return {"count": len(left), "median": statistics.median(us for us, _ in left), "most": most, "most_share": 100 * most / total, "least": -min(left)[0]}


def far_lines(memories):
    """Lines of memory beyond two per cent, of {name: table}."""
    far = [(abs(float(cells[3])), f"{cells[0]} of {name} {cells[3]} % of {1000 * float(cells[2]):.0f} MB")
           for name, table in memories.items() for cells in rows_of(table)[1:] if cells[3] != "-"]
    return "; ".join(text for off, text in sorted(far, reverse=True) if off > MEMORY_BOUND)


def page(binary):
    reports = [json.loads((DATA / f"{PREFIX}{key}.json").read_text()) for key in JUDGED]
    first = reports[0]
    out = HEAD.format(command=first["command"], runs=first["rounds"][0]["runs"], repeats=first["rounds"][0]["repeats"],
                      machine=first["device"]["name"], date=first["date"], kernels=KERNELS, built=BUILT, **beside_device(reports))
    readings, tested, before, memories = [], [], [], {}
    for key, title in JUDGED.items():
        table, memory, spread = run(binary, "--judge", str(DATA / f"{PREFIX}{key}.json")).strip().split("\n\n")
        memories["a TP-8 rank" if key == "tp8" else "four whole layers"] = memory
        text, counts = reading(title, table, spread)
        readings.append(text)
        tested.append(counts)
        then, _, then_spread = run(binary, "--judge", str(DATA / f"{BEFORE}{key}.json")).strip().split("\n\n")
        before.append(reading(title, then, then_spread))
        out += f"\n## {title}\n\n{table}\n\n{memory}\n\nWhat was measured:\n\n{spread}\n"
    later = json.loads((DATA / EARLIER).read_text())
    table, _, spread = run(binary, "--judge", str(DATA / EARLIER)).strip().split("\n\n")
    readings.append(reading("Earlier kernels", table, spread)[0])
    out += f"\n## The same rank with kernels of 03:03\n\n`{later['command']}` ({later['date']}): one pass, seven rounds a point, other contexts and rows; trees were not built by rounds then, and sums, merges and nibbles took longer.\n\n{table}\n"
    out += "\n## Memory of other networks\n"
    for key, title in MEMORY.items():
        if not (DATA / f"{PREFIX}{key}.json").exists():
            continue
        memories[title] = run(binary, "--judge-memory", str(DATA / f"{PREFIX}{key}.json"))
        out += f"\n{title[0].upper() + title[1:]}:\n\n" + memories[title]
    out += MEMORY_NOTE.format(far=far_lines(memories))
    out += "\n## Reading\n\n" + "\n".join(readings) + "\n"
    out += TESTED.format(now=shares(tested), kernels=KERNELS, date=first["date"])
    return out + "\n".join(text for text, _ in before) + "\n" + MODEL


def with_overlap(text):
    """docs/bandwidth.md with the table of measured distinct experts."""
    report = json.loads((DATA / "2026-11-30-tiny-k2-overlap.json").read_text())
    table = "| rows | distinct experts | independent | overlap |\n|---|---|---|---|\n"
    for point in report["points"]:
        table += f"| {point['rows']} | {point['distinct']:.1f} | {point['uniform']:.1f} | {point['overlap']:.2f} |\n"
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n\n" + table + "\n" + END + rest.split(END)[1]


def main():
    pages = {PAGE: page(sys.argv[1]), BANDWIDTH: with_overlap(BANDWIDTH.read_text())}
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what scripts/planner_page.py writes")
        return 1 if stale else 0
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
