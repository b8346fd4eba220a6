#!/usr/bin/env python3
"""result_pages.py [FOLDER ...]: the tables of docs/results between their markers, from docs/results/data; each FOLDER, an output of scripts/accept_cuda.sh, gives
its reports to docs/results/data first, in place of those of earlier days. Then scripts/recalibrate.sh makes what follows from measured kernels, README's table among it.

  scripts/result_pages.py --check       compares the pages with their data; writes nothing
  scripts/result_pages.py --self-test   outputs of made-up tests are read as they are; a changed number is noticed
"""
import json
import pathlib
import re
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
import tables

RESULTS = ROOT / "docs" / "results"
DATA = RESULTS / "data"
END = "<!-- end -->"
NOT_ENDED = -1
REPORTS = {"kernels": "whole-kernels", "rounds": "whole-rounds-tp8", "small": "whole-rounds-tiny", "peers": "whole-peers", "exactness": "exactness", "texts": "tiny-k2",
           "others": "other-kernels"}


# ---- From a folder of outputs to docs/results/data.


def read_tests(folder, report, commit):
    """Adds tests.txt, in place of earlier runs of these tests, and what the tests printed."""
    lines = (folder / "tests.txt").read_text().splitlines()
    wanted = (folder / "checks.txt").read_text().split() if (folder / "checks.txt").exists() else []
    lines += [f"{name} {NOT_ENDED} 0 0 0 0" for name in wanted if not any(line.split()[0] == name for line in lines)]
    for line in lines:
        name, status, seconds, passed, failed, skipped = line.split()
        report["tests"] = [test for test in report["tests"] if test["name"] != name]
        report["tests"].append({"name": name, "commit": commit, "status": int(status), "seconds": float(seconds), "passed": int(passed), "failed": int(failed), "skipped": int(skipped)})
        if int(status) == NOT_ENDED:
            continue
        log = (folder / "logs" / f"{name}.log").read_text(errors="replace")
        for shape, context, requests, rows, tau in re.findall(r"^(.+), context (\d+): (\d+) requests, (\d+) rows of keys and logits compared, tau ([\d.]+),", log, re.M):
            report["shapes"].append({"shape": shape, "context": int(context), "requests": int(requests), "rows": int(rows), "tau": float(tau), "ok": status == "0"})
        for prompts, ways, rows, uncertain in re.findall(r"^(\d+) prompts, (\d+) ways, (\d+) rows of keys and logits compared, (\d+) texts not the greedy", log, re.M):
            report["ways"].append({"name": name, "prompts": int(prompts), "ways": int(ways), "rows": int(rows), "sampled": int(uncertain), "ok": status == "0"})
        for fault, found, op in re.findall(r"^(\w+): (.+); first differing op: (.+)$", log, re.M):
            report["faults"].append({"fault": fault, "found": found, "op": op})
        agreed = re.findall(r"^(.+): (\d+) prompts of (\d+) tokens, (\d+) tokens equal, (\d+) parted \((\d+) by experts\), widest gap ([\d.]+|inf), "
                            r"difference of a best log-probability ([\d.]+) in the mean, ([\d.]+) at most", log, re.M)
        for what, prompts, tokens, equal, parted, experts, gap, mean, most in agreed:
            report["agree"].append({"what": what, "prompts": int(prompts), "tokens": int(tokens), "equal": int(equal), "parted": int(parted), "experts": int(experts),
                                    "gap": float(gap), "mean": float(mean), "most": float(most)})


def read_texts(folder):
    """The tables of `generate --stats` in logs/tiny_k2_*.log."""
    runs = []
    for path in sorted(folder.glob("logs/tiny_k2_*.log")):
        budget, eager = re.fullmatch(r"tiny_k2_(\d+)(--enforce-eager)?", path.stem).groups()
        for mode, tokens, rounds, speed, idle, output in re.findall(r"^(plain|DFlash chain|DDTree) +(\d+) +(\d+) +[\d.]+ +([\d.]+) +[\d.]+x +([\d.]+) +(\w+)$",
                                                                    path.read_text(), re.M):
            runs.append({"budget": int(budget), "mode": mode, "eager": eager is not None, "tokens": int(tokens), "rounds": int(rounds), "tokens_per_s": float(speed),
                         "idle_us": float(idle), "output": output})
    return {"runs": runs}


def take(folders, data=DATA):
    """Reports of the folders, dated, in place of earlier ones of their name. Tests of several folders become one report, a later run of a test in place of an earlier."""
    found = {}
    for folder in folders:
        about = {name: (folder / f"{name}.txt").read_text().strip() for name in ("commit", "date", "device")}
        for name in ("kernels", "rounds", "small", "peers"):
            if (folder / f"{name}.json").exists():
                found[name] = {"date": about["date"]} | json.loads((folder / f"{name}.json").read_text()) | {"commit": about["commit"]}
        if (folder / "tests.txt").exists():
            report = found.setdefault("exactness", about | {"tests": [], "shapes": [], "ways": [], "agree": [], "faults": []})
            read_tests(folder, report, about["commit"])
        if any(folder.glob("logs/tiny_k2_*.log")):
            found["texts"] = about | read_texts(folder)
    for name, report in found.items():
        for old in data.glob(f"*-h200-{REPORTS[name]}.json"):
            old.unlink()
        path = data / f"{report['date'][:10]}-h200-{REPORTS[name]}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(path.name)


# ---- From there to the pages.


def newest(name, data=DATA):
    files = sorted(data.glob(f"*-h200-{REPORTS[name]}.json"))
    return json.loads(files[-1].read_text()) if files else None


def when(report):
    return f"{report['date'][:16].replace('T', ' ')}, commit {report['commit']}"


def today_rounds(report):
    text = (f"{when(report)}. `{report['command']}` (read ceiling {report['read_gb_per_s']:.0f} GB/s, weights {report['memory']['weights_bytes'] / 1e9:.1f} GB).\n\n"
            "| context | rows | total us | verify | attention | experts, router, shared | dense | norms | draft | commit | launches | overhead | peers us, peers / verify |\n"
            + "|---" * 13 + "|\n")
    for r in sorted(report["rounds"], key=lambda r: (r["context"], r["rows"])):
        v, s = r["verify"], r["stages"]
        cells = [r["context"], r["rows"], f"{r['total_us']:.0f}"]
        cells += [f"{us:.0f}" for us in (s["verify"], v["attention"], v["experts"], v["dense"], v["norms"], s["draft"], s["commit"])]
        peer = f"{r['peer_us']:.0f}, {r['peer_us'] / s['verify']:.2f}x" if r.get("peer_us") else "-"
        text += "| " + " | ".join(str(cell) for cell in [*cells, sum(r["launches"].values()), f"{100 * r['overhead']:.1f} %", peer]) + " |\n"
    return text


def small_rounds(report, texts):
    """tiny-k2's rounds, captured beside op by op, and its texts."""
    text = ""
    if report and any(r["mode"] == "eager" for r in report["rounds"]):
        text += f"{when(report)}. `{report['command']}`, us a round:\n\n| context | rows | captured | op by op | op by op / captured |\n|---|---|---|---|---|\n"
        both = {(r["context"], r["rows"], r["mode"]): r["total_us"] for r in report["rounds"]}
        for context, rows, mode in sorted(both):
            if mode == "graph":
                graph, eager = both[context, rows, "graph"], both[context, rows, "eager"]
                text += f"| {context} | {rows} | {graph:.0f} | {eager:.0f} | {eager / graph:.2f} |\n"
    if texts:
        text += (f"\n{texts['date'][:16].replace('T', ' ')}, commit {texts['commit']}, `generate --stats`, 256 tokens, one round launched ahead; idle: the device between the end of a "
                 "round and the start of the next, by its own clock in each round's packed copy:\n\n"
                 "| mode | tokens/s captured | op by op | idle us captured | rounds | output |\n|---|---|---|---|---|---|\n")
        runs = {(run["mode"], run["budget"], run["eager"]): run for run in texts["runs"]}
        order = ("plain", "DFlash chain", "DDTree")
        for (mode, budget, eager), run in sorted(runs.items(), key=lambda item: (order.index(item[0][0]), item[0])):
            other = runs.get((mode, budget, True))
            if eager or not other or (mode != "DDTree" and budget != min(b for _, b, _ in runs)):
                continue
            name = f"{mode}, budget {budget}" if mode == "DDTree" else mode
            output = "identical" if run["output"] == other["output"] == "identical" else "DIFFERENT"
            text += f"| {name} | {run['tokens_per_s']:.0f} | {other['tokens_per_s']:.0f} | {run['idle_us']:.1f} | {run['rounds']} | {output} |\n"
    return text


def exactness(report):
    tests = report["tests"]
    total = {key: sum(test[key] for test in tests) for key in ("passed", "failed", "skipped")}
    text = (f"{when(report)}, {report['device']}: {len(tests)} processes of tests, many at once on the GPU; {total['passed']} tests passed, {total['failed']} failed, "
            f"{total['skipped']} skipped (more GPUs or a model that is not there).\n\n")
    failed = [test["name"] for test in tests if test["status"] not in (0, 77)]
    if failed:
        text += f"**Failed or not ended: {', '.join(failed)}.**\n\n"
    differ = lambda ok: "0" if ok else "**see above**"
    if report["ways"]:
        text += "| tiny-k2 | prompts | ways | rows of keys and logits | bits that differ |\n|---|---|---|---|---|\n"
        text += "".join(f"| {w['name'].removeprefix('bits_').replace('T08', 'T = 0.8')} | {w['prompts']} | {w['ways']} | {w['rows']:,} | {differ(w['ok'])} |\n" for w in report["ways"]) + "\n"
    if report["shapes"]:
        text += "| four layers, shapes of | context | requests compared | rows of keys and logits | bits that differ | tau alone |\n|---|---|---|---|---|---|\n"
        for s in sorted(report["shapes"], key=lambda s: (s["shape"] != "one rank of 8", s["context"])):
            text += f"| {s['shape']} | {s['context']:,} | {s['requests']} | {s['rows']:,} | {differ(s['ok'])} | {s['tau']:.2f} |\n"
        text += "\n"
    if report["faults"]:
        text += "| planted fault (kernels) | found at | first differing op |\n|---|---|---|\n"
        text += "".join(f"| {f['fault']} | {f['found']} | {f['op']} |\n" for f in report["faults"]) + "\n"
    if report["agree"]:
        text += ("| greedy, GPU against the CPU | prompts x tokens | tokens equal | parted (by experts) | widest gap | difference of a best log-probability, mean, largest |\n"
                 "|---|---|---|---|---|---|\n")
        for a in report["agree"]:
            text += f"| {a['what']} | {a['prompts']} x {a['tokens']} | {a['equal']:,} | {a['parted']} ({a['experts']}) | {a['gap']:.3f} | {a['mean']:.4f}, {a['most']:.2f} |\n"
        text += "\n"
    text += "| test | passed | failed | skipped | s |\n|---|---|---|---|---|\n"
    own = lambda t: "" if t["commit"] == report["commit"] else f", run again at {t['commit']}"
    text += "".join(f"| {t['name']}{own(t)}{'' if t['status'] in (0, 77) else ' **status ' + str(t['status']) + '**'} | {t['passed']} | {t['failed']} | {t['skipped']} | {t['seconds']:.0f} |\n"
                    for t in sorted(tests, key=lambda t: t["name"]))
    return text


def regions(data=DATA):
    """(page, region) -> text; of what there is data for."""
    kernels, rounds, peers, small, texts, tests, others = (newest(name, data) for name in ("kernels", "rounds", "peers", "small", "texts", "exactness", "others"))
    found = {}
    if kernels and rounds:
        found["2026-11-30-h200-kernels.md", "run"] = (f"{when(kernels)}, `docs/results/data/{kernels['date'][:10]}-h200-whole-kernels.json`, `-peers.json`; the rounds: {when(rounds)}, "
                                                      f"`{rounds['date'][:10]}-h200-whole-rounds-tp8.json` (2026-11-29-h200-rounds.md).\n")
        found["2026-11-30-h200-kernels.md", "summary"] = tables.summary(kernels, rounds, peers)
        found["2026-11-30-h200-kernels.md", "cases"] = tables.kernels(kernels, level=3)
        found["2026-11-29-h200-rounds.md", "today"] = today_rounds(rounds)
    if kernels:
        found["moe-h200.md", "experts"] = f"{when(kernels)}. " + tables.experts(kernels, peers)
    if kernels and peers:
        found["2026-11-30-h200-kernels.md", "prompts"] = tables.prompts(kernels, peers)
    if others:
        found["2026-11-30-h200-kernels.md", "others"] = f"{when(others)}. `{others['command']}`\n\n" + tables.without_peers(others)
    if small or texts:
        found["2026-11-29-h200-rounds.md", "small"] = small_rounds(small, texts)
    if tests:
        found["2026-11-29-h200-exactness.md", "tests"] = exactness(tests)
    return found


def filled(page, name, text):
    begin = f"<!-- {name}: written by scripts/result_pages.py -->"
    if page.count(begin) != 1 or END not in page.split(begin)[1]:
        raise SystemExit(f"result_pages: no one region '{name}'")
    before, rest = page.split(begin)
    return before + begin + "\n\n" + text.strip() + "\n\n" + END + rest.split(END, 1)[1]


def pages(data=DATA):
    """path -> text as it should be."""
    wanted = {}
    for (name, region), text in regions(data).items():
        path = RESULTS / name
        wanted[path] = filled(wanted.get(path) or path.read_text(), region, text)
    return wanted


def check():
    wrong = [path for path, text in pages().items() if path.read_text() != text]
    for path in wrong:
        line = next(i for i, (a, b) in enumerate(zip(path.read_text().splitlines(), pages()[path].splitlines())) if a != b)
        print(f"{path.relative_to(ROOT)}: line {line + 1} is not what scripts/result_pages.py writes")
    return 1 if wrong else 0


def self_test():
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "logs").mkdir()
        (folder / "data").mkdir()
        for name, text in {"commit": "abc1234", "date": "2026-01-02T03:04:05Z", "device": "NVIDIA H200, 1.2"}.items():
            (folder / f"{name}.txt").write_text(text + "\n")
        (folder / "checks.txt").write_text("planted_faults\nop_linear\n")
        (folder / "tests.txt").write_text("bits_of_8_ranks_at_1024 0 12.5 1 0 0\nplanted_faults 0 2 6 0 0\nbackends_agree 1 3 2 1 1\nbits_T08 0 1.0 1 0 0\n")
        logs = {"bits_of_8_ranks_at_1024": "one rank of 8, context 1024: 160 requests, 4682 rows of keys and logits compared, tau 3.39123, 9.1 s",
                "planted_faults": "OrderByRows: logits differ at position 257; first differing op: linear",
                "backends_agree": "tiny-k2: 24 prompts of 96 tokens, 1989 tokens equal, 4 parted (1 by experts), widest gap 0.1180, difference of a best "
                                  "log-probability 0.0027 in the mean, 0.2100 at most",
                "bits_T08": "2 prompts, 18 ways, 8514 rows of keys and logits compared, 2 texts not the greedy one"}
        for name, text in logs.items():
            (folder / "logs" / f"{name}.log").write_text(f"[ RUN      ]\n{text}\n")
        head = "mode             tokens   rounds   tokens/round   tokens/s     speed  idle us   output\n"
        (folder / "logs" / "tiny_k2_16.log").write_text(head + "DDTree              256       49           5.20     6859.2     3.57x     11.0   identical\n")
        (folder / "logs" / "tiny_k2_16--enforce-eager.log").write_text(head + "DDTree              256       49           5.20     5622.0     3.57x     20.0   identical\n")
        later = folder / "later"
        shutil.copytree(folder, later, ignore=shutil.ignore_patterns("data", "later"))
        (later / "commit.txt").write_text("def5678\n")
        (later / "checks.txt").unlink()
        (later / "tests.txt").write_text("bits_T08 0 2.0 1 0 0\n")
        (later / "logs" / "bits_T08.log").write_text("passed again\n")
        take([folder, later], folder / "data")
        tests, texts = newest("exactness", folder / "data"), newest("texts", folder / "data")
        page = exactness(tests)
        for line in ("10 tests passed, 1 failed, 1 skipped", "Failed or not ended: backends_agree, op_linear.", "| one rank of 8 | 1,024 | 160 | 4,682 | 0 | 3.39 |",
                     "| T = 0.8 | 2 | 18 | 8,514 | 0 |", "| OrderByRows | logits differ at position 257 | linear |", "| tiny-k2 | 24 x 96 | 1,989 | 4 (1) | 0.118 | 0.0027, 0.21 |",
                     "| bits_T08, run again at def5678 | 1 | 0 | 0 | 2 |", "| planted_faults | 6 |"):
            assert line in page, f"{line}\n{page}"
        assert "| DDTree, budget 16 | 6859 | 5622 | 11.0 | 49 | identical |" in small_rounds(None, texts)
    page = f"a\n<!-- x: written by scripts/result_pages.py -->\n\n1\n\n{END}\nb\n"
    assert filled(page, "x", "1") == page and filled(page, "x", "2") != page
    print("ok")
    return 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    if "--check" in sys.argv:
        return check()
    take([pathlib.Path(folder) for folder in sys.argv[1:]])
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
