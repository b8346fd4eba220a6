#!/usr/bin/env python3
"""From the results of all benchmarks (docs/results) the table of README.md between its markers, and one HTML report, printed to PDF too.

  scripts/report.py               rewrites the table, writes build/report.html and, where Chromium is, build/report.pdf
  scripts/report.py --check       compares README.md with its data; writes nothing
  scripts/report.py --self-test   a changed number is noticed, and a damaged file is named

Numbers come from docs/results/data/*.json where the benchmark wrote JSON, and from the tables of docs/results/*.md elsewhere."""
import contextlib
import html
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import chromium

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
BEGIN, END = "<!-- measured: written by scripts/report.py -->", "<!-- end of measured -->"


@contextlib.contextmanager
def reading(file):
    """What is missing or of another kind in a file ends the program with a line that names it."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError, ZeroDivisionError) as fault:
        raise SystemExit(f"report: {file}: {type(fault).__name__}: {fault}") from None


def load(path):
    with reading(f"docs/results/data/{path.name}"):
        return json.loads(path.read_text())


def newest(pattern):
    files = sorted((RESULTS / "data").glob(pattern))
    if not files:
        raise SystemExit(f"report: no docs/results/data/{pattern}")
    return load(files[-1]), f"docs/results/data/{files[-1].name}"


def tables(name):
    """Every table of a page, as rows of cells."""
    found, rows = [], []
    with reading(f"docs/results/{name}"):
        lines = (RESULTS / name).read_text().splitlines()
    for line in lines + [""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not re.fullmatch(r"[-:| ]+", line.strip()):
                rows.append(cells)
        elif rows:
            found.append(rows)
            rows = []
    return found


def cell(name, head, row, column):
    """The cell of the table whose first head cell begins with `head`, in the row that begins with the cells `row`."""
    for table in tables(name):
        if not table[0][0].startswith(head):
            continue
        for cells in table[1:]:
            if cells[:len(row)] == row:
                return cells[table[0].index(column)]
    raise SystemExit(f"report: docs/results/{name}: no cell {head} / {row} / {column}")


def short(us):
    return f"{us:.3g}" if us < 100 else f"{us:.0f}"


def kernel_row(kernels, what, keys, file):
    with reading(file):
        cases = {case["key"]: case for case in kernels["cases"]}
        own = [cases[key] for key in keys]
        if any(case["wrong"] or not case["us"] for case in own):
            raise SystemExit(f"report: {file}: {what}: a case is wrong or was not timed")
        peers = [case["peer_us"] for case in own]
        peer = ""
        if all(peers):
            peer = f"{own[0]['peer']}, same run: " + " / ".join(map(short, peers))
        return [what, " / ".join(short(case["us"]) for case in own) + " us", peer, file]


def round_rows(rounds, file):
    with reading(file):
        whole = {r["rows"]: r["total_us"] for r in rounds["rounds"] if r["context"] == 8192 and r["mode"] == "graph"}
        rows = [["a whole round of one K2.6 TP-8 rank (61 layers, no all-reduce), 8k context, H200: 1 / 8 / 17 / 64 rows",
                 " / ".join(f"{whole[n] / 1000:.2f}" for n in (1, 8, 17, 64)) + " ms", "", file]]
        steps = {r["rows"]: r for r in rounds["rounds"] if r["context"] == 4096 and r["mode"] == "graph" and r.get("peer_us")}
        if steps.keys() >= {1, 8, 17}:
            rows.append(["its verify pass, 4k context, H200: 1 / 8 / 17 rows",
                         " / ".join(f"{steps[n]['stages']['verify'] / 1000:.2f}" for n in (1, 8, 17)) + " ms",
                         f"{steps[1]['peer']} summed, same run: " + " / ".join(f"{steps[n]['peer_us'] / 1000:.2f}" for n in (1, 8, 17)), file])
        return rows


def planner_row(what, table):
    file = "docs/results/planner-h200.md"
    with reading(file):
        judged = [row for row in tables("planner-h200.md")[table][1:] if not row[1].endswith("c")]
        worst = max(abs(float(row[4])) for row in judged)
        return [f"the planner on {len(judged)} rounds {what} that it was not calibrated on", f"within {worst:.1f} % of the measured time", "", file]


def readme_rows():
    kernels, kernel_file = newest("*-kernels.json")
    rounds, round_file = newest("*-rounds-tp8.json")
    rows = [
        kernel_row(kernels, "routed experts, INT4, one K2.6 TP-8 rank, H200: 1 / 8 / 17 / 64 / 256 rows",
                   [f"experts tp8 M={m}" for m in (1, 8, 17, 64, 256)], kernel_file),
        kernel_row(kernels, "the same, whole experts (TP1): 1 / 8 / 17 / 64 rows", [f"experts tp1 M={m}" for m in (1, 8, 17, 64)], kernel_file),
        kernel_row(kernels, "q_a and kv_a together, bf16 7168 to 2112, H200: 1 / 17 / 64 / 256 rows",
                   [f"qkv_a tp8 M={m}" for m in (1, 17, 64, 256)], kernel_file),
        kernel_row(kernels, "lm_head of a TP-8 rank, bf16 7168 to 20480, H200: 1 / 17 / 64 rows",
                   [f"lm_head tp8 M={m}" for m in (1, 17, 64)], kernel_file),
        kernel_row(kernels, "tree build, cut and compile, budget 16, H200: batch 1 / 8 / 64",
                   [f"trees B={b} budget=16" for b in (1, 8, 64)], kernel_file),
        kernel_row(kernels, "top-64 and log-sum-exp of 163,840 logits, H200: 15 / 120 / 960 rows",
                   [f"top_k rows={r}" for r in (15, 120, 960)], kernel_file),
        kernel_row(kernels, "MLA attention, 8 heads, 8k context, H200: 1 / 17 / 33 / 64 rows; with tree paths, FlashMLA without",
                   [f"mla tp8 B=1 L=8192 T={t}" for t in (1, 17, 33, 64)], kernel_file),
    ]
    rows += round_rows(rounds, round_file)
    rows += [planner_row("of a TP-8 rank", 0), planner_row("of whole layers", 3)]
    speeds = [cell("2026-11-29-h200-rounds.md", "mode", [mode], "tokens/s captured") for mode in ("plain", "DFlash chain", "DDTree, budget 16")]
    rows.append(["tiny-k2 on an H200, one stream, plain / chain / tree of 16", " / ".join(speeds) + " tokens/s, identical output", "",
                 "docs/results/2026-11-29-h200-rounds.md"])
    pairs = [cell("cpu-zen4.md", "rows", ["1"], f"{n}: own / peer ms").split(" / ") for n in ("1 thread", "2 threads")]
    rows.append(["SmolLM2-135M Q4_1, one row, one / two CPU threads", " / ".join(own for own, _ in pairs) + " ms",
                 "llama.cpp, same file: " + " / ".join(peer for _, peer in pairs), "docs/results/cpu-zen4.md"])
    return rows


def readme_table():
    lines = ["| what | result | peer | file |", "|---|---|---|---|"]
    for what, result, peer, file in readme_rows():
        lines.append(f"| {what} | {result} | {peer} | [{pathlib.Path(file).stem}]({file}) |")
    return "\n".join(lines)


def with_table(text):
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise SystemExit("report: README.md has not one pair of markers")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n\n" + readme_table() + "\n\n" + END + rest.split(END)[1]


# ---- The report: figures of our own, no library and no network.

STYLE = """body{font:15px/1.5 system-ui,sans-serif;color:#1c1c1c;background:#fafaf8;max-width:1020px;margin:2rem auto;padding:0 1.2rem}
figure{margin:1rem 0 1.6rem;background:#fff;border:1px solid #e3e3de;border-radius:8px;padding:14px}figcaption{color:#444;font-size:.88rem}
svg{width:100%;height:auto}svg text{font:11.5px system-ui,sans-serif;fill:#333}table{border-collapse:collapse;font-size:.83rem;background:#fff;width:100%}
th,td{padding:.25rem .45rem;border-bottom:1px solid #e8e8e3;text-align:right}th:first-child,td:first-child{text-align:left}th{background:#f1f1ec}
b.kind{border-radius:3px;padding:0 .45em;color:#fff;background:#2f7d5b}b.predicted{background:#8a6fbf}"""
COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6b6b6b", "#8A6FBF", "#A3A31A", "#2F4B7C"]


def bars(rows, names, unit, notes, mark=None):
    """Horizontal stacked bars: rows of (label, values)."""
    left, right, width, height = 250, 130, 900, 24 * len(rows) + 60
    most = max(sum(values) for _, values in rows)
    out = [f"<svg viewBox='0 0 {width} {height}' role='img' xmlns='http://www.w3.org/2000/svg'>"]
    for i, name in enumerate(names):
        out.append(f"<rect x='{10 + i * 108}' y='4' width='11' height='11' fill='{COLORS[i % 10]}'/><text x='{26 + i * 108}' y='14'>{html.escape(name)}</text>")
    for r, (label, values) in enumerate(rows):
        x, y = float(left), 28 + 24 * r
        out.append(f"<text x='{left - 8}' y='{y + 13}' text-anchor='end'>{html.escape(label)}</text>")
        for i, value in enumerate(values):
            w = value / most * (width - left - right)
            out.append(f"<rect x='{x:.1f}' y='{y}' width='{w:.2f}' height='18' fill='{COLORS[i % 10]}'/>")
            x += w
        out.append(f"<text x='{x + 6:.1f}' y='{y + 13}'>{html.escape(notes[r])}</text>")
    if mark is not None:
        x = left + mark / most * (width - left - right)
        out.append(f"<line x1='{x:.1f}' y1='22' x2='{x:.1f}' y2='{height - 26}' stroke='#444' stroke-dasharray='4 3'/>")
    out.append(f"<text x='{(left + width - right) / 2}' y='{height - 8}' text-anchor='middle'>{html.escape(unit)}</text></svg>")
    return "".join(out)


def figure(svg, kind, text):
    return f"<figure>{svg}<figcaption><b class='kind {kind}'>{kind}</b> {html.escape(text)}</figcaption></figure>\n"


def kernel_part(path, data):
    cases = [case for case in data["cases"] if case["us"] and not case["wrong"]]
    about = f"{data['device']['name']}, {data['date']}, read ceiling {data['read_gb_per_s']:.0f} GB/s. {path.name}"
    compared = [case for case in cases if case["peer_us"]][:40]
    out = f"<h2>Kernels: {html.escape(path.stem)}</h2>\n"
    if compared:
        rows = [(case["key"], [case["us"] / case["peer_us"]]) for case in compared]
        notes = [f"{case['us']:.1f} us, {case['peer']} {case['peer_us']:.1f}" for case in compared]
        out += figure(bars(rows, ["time over the peer's, same run"], "time / peer's time", notes, mark=1.0), "measured", "Left of the line is faster than the peer. " + about)
    lines = "".join(f"<tr><td>{html.escape(c['key'])}</td><td>{c['us']:.2f}</td><td>{c['us_min']:.2f}..{c['us_max']:.2f}</td><td>{c['floor_us']:.2f}</td>"
                    f"<td>{c['over_floor']:.2f}</td><td>{c['gb_per_s']:.0f}</td><td>{c['target_us'] or ''}</td><td>{html.escape(c['peer'] or '')}</td>"
                    f"<td>{c['peer_us'] or ''}</td></tr>" for c in cases)
    head = "".join(f"<th>{name}</th>" for name in ("case", "us", "spread", "floor", "over floor", "GB/s", "target", "peer", "peer us"))
    return out + f"<table><tr>{head}</tr>{lines}</table>\n"


def round_part(path, data):
    names = ["draft", "attention", "experts", "dense", "lm_head", "norms", "ranks", "commit"]
    rows, notes = [], []
    for r in data["rounds"]:
        both = {**r["stages"], **r["verify"]}
        rows.append((f"{r['context']} cached, {r['rows']} rows", [both.get(name, 0) / 1000 for name in names]))
        notes.append(f"{r['total_us'] / 1000:.2f} ms whole")
    about = f"{data['device']['name']}, {data['date']}, {data['model']['layers']} layers, TP-{data['model']['tp']} rank. Stages each timed alone. {path.name}"
    return f"<h2>Rounds: {html.escape(path.stem)}</h2>\n" + figure(bars(rows, names, "ms", notes), "measured", about)


def planner_part():
    with reading("docs/results/planner-h200.md"):
        return planner_figure(tables("planner-h200.md")[0][1:])


def planner_figure(data):
    picture = [(f"{row[0]} cached, {row[1]} rows", [float(row[2]), max(0.0, float(row[3]) - float(row[2]))]) for row in data]
    notes = [f"{row[4]} %" for row in data]
    return "<h2>Planner against measurement</h2>\n" + figure(bars(picture, ["measured", "predicted beyond it"], "ms of a round", notes), "predicted",
                                                            "Signed errors of the predicted total; c: calibrated on. docs/results/planner-h200.md")


def report():
    parts = []
    for path in sorted((RESULTS / "data").glob("*.json")):
        data = load(path)
        with reading(f"docs/results/data/{path.name}"):
            if data.get("schema") == "coppice-bench-kernels-1":
                parts.append(kernel_part(path, data))
            elif data.get("schema") == "coppice-bench-round-1":
                parts.append(round_part(path, data))
    rows = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in row) + "</tr>" for row in readme_rows())
    return (f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>Coppice: results</title><style>{STYLE}</style></head><body><h1>Results</h1>"
            f"<table><tr><th>what</th><th>result</th><th>peer</th><th>file</th></tr>{rows}</table>\n" + planner_part() + "".join(parts) + "</body></html>\n")


def damage_is_named():
    """Cuts every file of data in turn, and takes what every one of them holds."""
    global RESULTS
    named = True
    with tempfile.TemporaryDirectory() as folder:
        whole, RESULTS = RESULTS, pathlib.Path(folder) / "results"
        shutil.copytree(whole, RESULTS)
        for path in sorted((RESULTS / "data").glob("*.json")):
            text = path.read_text()
            for damage in (text[:len(text) // 2], "[]", '{"schema": "coppice-bench-kernels-1"}', '{"schema": "coppice-bench-round-1", "rounds": [{}]}'):
                path.write_text(damage)
                try:
                    report()
                    named = False
                except SystemExit as end:
                    named = named and path.name in str(end) and "\n" not in str(end)
            path.write_text(text)
        RESULTS = whole
    return named


def main():
    readme = ROOT / "README.md"
    text = readme.read_text()
    wanted = with_table(text)
    if "--self-test" in sys.argv:
        digit = re.search(r"\d", text.split(BEGIN)[1]).start() + text.index(BEGIN) + len(BEGIN)
        spoilt = text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1:]
        return 0 if with_table(spoilt) != spoilt and damage_is_named() else 1
    if "--check" in sys.argv:
        if wanted == text:
            return 0
        for here, now in zip(text.splitlines(), wanted.splitlines()):
            if here != now:
                print(f"README.md is not what its data say (scripts/report.py):\n  {here}\n  {now}")
                break
        return 1
    page = report()  # before anything is written
    readme.write_text(wanted)
    target = ROOT / "build" / "report.html"
    target.parent.mkdir(exist_ok=True)
    target.write_text(page)
    print(f"README.md and {target.relative_to(ROOT)}")
    return print_pdf(target, target.with_suffix(".pdf"))


def print_pdf(page, pdf):
    """Chromium prints the report; without one it says that there is no PDF."""
    browser = chromium.find()
    if browser is None:
        print(f"no Chromium here: {pdf.relative_to(ROOT)} is skipped (scripts/setup.sh --oracles installs it)")
        return 0
    pdf.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND",
                        "--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri()],
                       check=True, timeout=240, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    data = pdf.read_bytes()
    if not data.startswith(b"%PDF-") or len(re.findall(rb"/Type\s*/Page\b", data)) < 2:
        print(f"{pdf.relative_to(ROOT)} is no report of several pages")
        return 1
    print(pdf.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
