#!/usr/bin/env python3
"""tables.py FILE.json: the Markdown tables of a `coppice bench kernels` or `bench round` report, for docs/results."""
import json
import sys

FAMILIES = (("Prompts: routed experts", "prompt experts "), ("Routed experts", "experts "), ("Blocks of a layer", "block "), ("MLA attention", "mla "),
            ("Trees, choices, commit", ("tree", "top_k", "greedy", "sample", "commit")),
            ("Rows", ("add_norm", "rope_write", "route ", "silu")), ("Dense products", ""))


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def head(report):
    device = report["device"]
    print(f"{report['date']}, {device['name']} ({device['num_sms']} SMs); read ceiling {report['read_gb_per_s']:.0f} GB/s, one launch "
          f"{report['fixed_us']:.2f} us, one dependent node {report['node_us']:.2f} us.\n\n`{report['command']}`\n")


def kernels(report):
    head(report)
    left = list(report["cases"])
    for title, words in FAMILIES:
        words = (words,) if isinstance(words, str) else words
        cases = [case for case in left if any(word in case["key"] for word in words)]
        left = [case for case in left if case not in cases]
        if not cases:
            continue
        print(f"## {title}\n\n| case | us | MB | GB/s | of read | over floor | target us | peer us | peer / ours | error |\n"
              "|---|---|---|---|---|---|---|---|---|---|")
        for case in cases:
            if case["wrong"]:
                print(f"| {case['key']} | WRONG | | | | | | | | {case['error']:.1e} |")
                continue
            peer = "-" if case["peer_us"] is None else f"{case['peer_us']:.1f} ({case['peer']})"
            ratio = "-" if case["peer_us"] is None else f"{case['peer_us'] / case['us']:.2f}x"
            print(f"| {case['key']} | {case['us']:.1f} | {case['bytes'] / 1e6:.1f} | {case['gb_per_s']:.0f} | {100 * case['share_of_read']:.0f} % | "
                  f"{number(case['over_floor'], 2)}x | {number(case['target_us'], 0)} | {peer} | {ratio} | {case['error']:.0e} |")
        print()


def rounds(report):
    head(report)
    model, memory = report["model"], report["memory"]
    print(f"{model['layers']} layers of network {model['network']}; weights {memory['weights_bytes'] / 1e9:.2f} GB, "
          f"drafter {memory['drafter_bytes'] / 1e9:.2f} GB.\n")
    print("| context | batch | rows | mode | total us | +- | draft | build | compile | verify | attention | experts | dense | lm_head | norms | "
          "ranks | sampling | commit | launches | overhead | distinct experts | peers' kernels us | peers / verify |\n" + "|---" * 23 + "|")
    for r in report["rounds"]:
        stages, verify = r["stages"], r["verify"]
        cells = [r["context"], r["batch"], r["rows"], r["mode"], f"{r['total_us']:.0f}", f"{(r['total_us_max'] - r['total_us_min']) / 2:.0f}"]
        cells += [f"{stages[s]:.0f}" for s in ("draft", "tree_build", "compile", "verify")]
        cells += [f"{verify.get(v, 0):.0f}" for v in ("attention", "experts", "dense", "lm_head", "norms", "ranks", "sampling")]
        cells += [f"{stages['commit']:.0f}", sum(r["launches"].values()), f"{100 * r['overhead']:.1f} %", f"{r['distinct_experts']:.1f}"]
        peer = r.get("peer_us")
        cells += ["-", "-"] if peer is None else [f"{peer:.0f} ({r['peer']})", f"{peer / stages['verify']:.2f}x"]
        print("| " + " | ".join(str(cell) for cell in cells) + " |")


with open(sys.argv[1]) as file:
    parsed = json.load(file)
kernels(parsed) if "cases" in parsed else rounds(parsed)
