"""Runs `coppice bench kernels` under ncu (Nsight Compute) and reads what it counted: for dram_bytes.py and profile_kernels.py."""
import csv
import io
import json
import math
import pathlib
import re
import subprocess
import tempfile

# To bytes, microseconds.
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}


def launches(text):
    """Launches in order from ncu's csv: {"name", "blocks", METRIC: value}. What could not be counted is missing."""
    if '"ID"' not in text:
        return []
    found = {}
    for row in csv.DictReader(io.StringIO(text[text.index('"ID"'):])):
        if not (row["ID"] or "").isdigit():
            continue
        grid = re.findall(r"\d+", row.get("Grid Size") or "")
        values = found.setdefault(row["ID"], {"name": re.sub(r"[<(].*", "", row["Kernel Name"]).split("::")[-1].split(" ")[-1],
                                              "blocks": math.prod(map(int, grid)) if grid else "-"})
        number = (row["Metric Value"] or "").replace(",", "")
        if re.fullmatch(r"-?\d+(\.\d+)?", number):
            values[row["Metric Name"]] = float(number) * UNITS.get(row["Metric Unit"], 1)
    return list(found.values())


def by_op(kernels, first):
    """Groups of launches, each begun by a kernel that `first` matches; the attention plan is made once a step and belongs to none."""
    groups = []
    for kernel in kernels:
        if "plan" in kernel["name"]:
            continue
        if re.search(first, kernel["name"]) or not groups:
            groups.append([])
        groups[-1].append(kernel)
    return groups


def profile(binary, cases, kernels, metrics, options=(), keep=None, seconds=300):
    """(cases of the benchmark's report, launches): one call of every case whose key contains one of `cases`. `keep`: where ncu's csv stays."""
    with tempfile.TemporaryDirectory() as folder:
        report, log = pathlib.Path(folder, "k.json"), pathlib.Path(keep or pathlib.Path(folder, "ncu.csv"))
        # timeout: ncu's child ends with it.
        done = subprocess.run(["timeout", "-k", "2", str(seconds), "ncu", "--clock-control", "none", "--kernel-name", f"regex:{kernels}", "--csv", "--log-file", str(log),
                               "--metrics", ",".join(metrics), *options, binary, "bench", "kernels", "--device", "cuda", "--check-only", "--filter", ",".join(cases),
                               "--json", str(report)], capture_output=True, text=True)
        text = log.read_text(errors="replace") if log.exists() else ""
        if done.returncode or not report.exists() or not launches(text):
            faults = [line for line in text.splitlines() if line.startswith(("==ERROR", "==WARN"))][:5]
            raise RuntimeError("\n".join([f"ncu ended with {done.returncode}", *faults, (done.stdout + done.stderr)[-1500:]]))
        return json.loads(report.read_text())["cases"], launches(text)
