#!/usr/bin/env python3
"""Every flag that a verb takes is in its --help with a word about it, and every flag in a --help is taken.

usage: flags_test.py COPPICE_BINARY
Candidates are all flags that stand in the sources of the command line and all that any verb lists.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VERBS = ["serve", "generate", "chat", "top", "run-batch", "bench serve", "bench sweep", "bench latency", "bench throughput",
         "bench kernels", "bench round", "inspect", "plan", "quantize", "repack"]
NOBODYS = "--nobody-has-this-flag"
SPELLED = {"-tp": "--tp"}


def run(binary, *arguments):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("COPPICE_")}
    return subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=600, env=clean, stdin=subprocess.DEVNULL)


def flags_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", text))


def options_of(help_text):
    """The flags at the head of each entry, and the entries without a word about them."""
    found, silent = set(), []
    lines = help_text.splitlines()
    for line, after in zip(lines, lines[1:] + [""]):
        entry = re.match(r"  (-[^ ]+)", line)
        if not entry:
            continue
        found |= flags_in(entry[1].split(":{")[0])
        if line[29:31].strip() == line[30:31] == "" and not re.match(r" {30}\S", after) and ":" not in entry[1]:
            silent.append(entry[1])
    return found, silent


def candidates():
    sources = [*(ROOT / "apps/coppice").glob("*.cpp"), ROOT / "src/server/command_line.cpp"]
    return set().union(*(flags_in(text) for path in sources for text in re.findall(r'"([^"\n]*)"', path.read_text())))


def main():
    binary = sys.argv[1]
    verbs = VERBS[:2] if "COPPICE_SANITIZED" in os.environ else VERBS
    faults, helps = [], {}
    for verb in VERBS:
        helps[verb] = run(binary, *verb.split(), "--help").stdout
        listed, silent = options_of(helps[verb])
        faults += [f"{verb} --help says nothing about {flag}" for flag in silent]
        if len(listed) < 3:
            faults.append(f"{verb} --help lists {listed}")
    flags = sorted(candidates() | set().union(*(options_of(text)[0] for text in helps.values())))
    with tempfile.NamedTemporaryFile("w") as lines:
        lines.write('{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}\n')
        lines.flush()

        def takes(verb, flag):
            needed = ["-i", lines.name, "-o", "/dev/null"] if verb == "run-batch" and flag not in ("-i", "-o", "--input-file", "--output-file") else []
            result = run(binary, *verb.split(), *needed, flag, NOBODYS, NOBODYS)  # the first may be a value
            if flag not in ("-h", "--help") and result.returncode != 2:
                faults.append(f"{verb} {flag} {NOBODYS}: exit {result.returncode}, {result.stderr!r}")
            return f"unknown flag {SPELLED.get(flag, flag)};" not in result.stderr

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for verb in verbs:
                listed = flags_in(helps[verb]) | (flags_in(helps["serve"]) if verb == "run-batch" else set())
                for flag, taken in zip(flags, pool.map(lambda flag, verb=verb: takes(verb, flag), flags)):
                    if taken and flag not in listed:
                        faults.append(f"{verb} takes {flag}, which its --help does not list")
                    if not taken and flag in options_of(helps[verb])[0]:
                        faults.append(f"{verb} does not take {flag}, which its --help lists")
    print(*faults, f"{len(flags)} flags, {len(verbs)} verbs, {len(faults)} faults", sep="\n")
    sys.exit(bool(faults) or len(flags) < 150)


if __name__ == "__main__":
    main()
