#!/usr/bin/env python3
"""What the server costs: `coppice serve` under 64 streams against the engine alone, same requests, same flags.

usage: serve_overhead.py COPPICE_BINARY [--device auto] [--streams 64] [--tokens 1024] [--runs 3] [--limit 3]
                         [--ddtree-budget 8] [--no-drafter]

Runs `coppice bench throughput` (the engine in one process, no HTTP), then `coppice serve` with `coppice bench serve`
beside it on this machine; both send the same prompts at once and ask for the same number of tokens. Prints both rates
(medians of the runs), their ratio, and the CPU time of each thread of the server for a token. Exit codes: 0 within
--limit percent, 1 not, 77 models/tiny-k2 is absent. Times mean something only while the machine does nothing else.
The tree has a fixed size: an automatic one follows measured costs, and then two runs of one program differ by more
than the server costs (--ddtree-budget auto shows it).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from served import DRAFTER, MODEL, Server


def parse_arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("binary")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--input-len", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=3)
    parser.add_argument("--ddtree-budget", default="8")
    parser.add_argument("--no-drafter", action="store_true")
    return parser.parse_args()


def engine_flags(options):
    flags = ["--device", options.device, "--max-num-seqs", str(options.streams), "--no-enable-prefix-caching",
             "--max-model-len", str(options.input_len + options.tokens + 256), "--quiet"]
    return flags if options.no_drafter else [*flags, "--spec-model", str(DRAFTER), "--ddtree-budget",
                                                      options.ddtree_budget]


def load_flags(options):
    return ["--dataset-name", "random", "--num-prompts", str(options.streams), "--seed", "0",
            "--random-input-len", str(options.input_len), "--random-output-len", str(options.tokens)]


def engine_rates(options, folder):
    result = pathlib.Path(folder, "engine.json")
    subprocess.run([options.binary, "bench", "throughput", str(MODEL), *engine_flags(options), *load_flags(options),
                    "--temperature", "0", "--num-warmups", "1", "--num-iters", str(options.runs), "--output-json", str(result)],
                   check=True, stdout=subprocess.DEVNULL)
    seconds = json.loads(result.read_text())["elapsed_times"]
    return [options.streams * options.tokens / value for value in seconds]


class MeasuredServer(Server):
    def __init__(self, options):
        super().__init__(options.binary, engine_flags(options))

    def cpu_seconds(self):
        """By thread name."""
        seconds = {}
        for task in pathlib.Path(f"/proc/{self.process.pid}/task").iterdir():
            name, rest = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            fields = rest.split()
            seconds[name] = seconds.get(name, 0) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return seconds


def served_rates(options, folder):
    """Output tokens a second of each run, and microseconds of CPU a token by thread."""
    rates = []
    with MeasuredServer(options) as server:
        for run in range(-1, options.runs):
            if run == 0:
                before = server.cpu_seconds()
            subprocess.run([options.binary, "bench", "serve", "--base-url", server.url, "--tokenizer", str(MODEL), "--ignore-eos",
                            *load_flags(options), "--disable-tqdm",
                            "--skip-initial-test", "--save-result", "--result-dir", folder, "--result-filename", "served.json"],
                           check=True, stdout=subprocess.DEVNULL)
            result = json.loads(pathlib.Path(folder, "served.json").read_text())
            if result["total_output_tokens"] != options.streams * options.tokens:
                sys.exit(f"the server gave {result['total_output_tokens']} tokens")
            if run >= 0:
                rates.append(result["output_throughput"])
        after = server.cpu_seconds()
    tokens = options.runs * options.streams * options.tokens
    return rates, {name: (after[name] - before.get(name, 0)) * 1e6 / tokens for name in after}


def shown(rates):
    return f"{statistics.median(rates):10.0f} tokens/s   ({', '.join(f'{rate:.0f}' for rate in rates)})"


def main():
    options = parse_arguments()
    if not (MODEL / "config.json").exists():
        print("models/tiny-k2 is absent")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        alone = engine_rates(options, folder)
        served, cpu = served_rates(options, folder)
    ratio = statistics.median(served) / statistics.median(alone)
    print(f"{options.streams} streams of {options.tokens} tokens, {len(os.sched_getaffinity(0))} CPUs, "
          f"{'plain decoding' if options.no_drafter else 'DDTree ' + options.ddtree_budget}")
    print("engine alone  ", shown(alone))
    print("coppice serve ", shown(served))
    print(f"ratio          {ratio:.3f}: the server takes {100 * (1 - ratio):.1f} % (limit {options.limit:g} %)")
    print("CPU us a token ", ", ".join(f"{name} {us:.1f}" for name, us in sorted(cpu.items(), key=lambda item: -item[1])))
    sys.exit(0 if ratio >= 1 - options.limit / 100 else 1)


if __name__ == "__main__":
    main()
