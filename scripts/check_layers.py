#!/usr/bin/env python3
"""Fails on an #include that the layer table in docs/architecture.md does not allow.

--self-test plants forbidden includes and checks that each is caught.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
ROW = re.compile(r"^\|\s*\d+\s*\|\s*`([^`]+)`\s*\|(.*)\|\s*$", re.M)
OPEN = ("src/base", "src/tensor")


def read_table():
    text = (ROOT / "docs/architecture.md").read_text()
    table = {path: re.findall(r"`([^`]+)`", allowed) for path, allowed in ROW.findall(text)}
    if len(table) < 10:
        sys.exit("docs/architecture.md: layer table not found")
    return table


def layer_of(path, table):
    """The longest row that is a folder prefix of the path. Kernel families share one row."""
    best = ""
    for row in table:
        if path.startswith(row + "/") and len(row) > len(best):
            best = row
    return best


def check(path, text, table):
    """Messages for every include of `text` (a file at `path`) that the table forbids."""
    own = layer_of(path, table)
    if not own:
        return [f"{path}: in no row of the layer table"]
    problems = []
    for include in INCLUDE.findall(text):
        target = layer_of("src/" + include, table)
        if not target:
            if (ROOT / path).parent.joinpath(include).exists() or own.startswith("apps"):
                continue
            problems.append(f'{path}: "{include}" is in no layer (includes start at src/)')
        elif target == own or target in table[own]:
            continue
        elif target == "src/base" and own == "src/tensor":
            continue
        elif target in OPEN and own not in ("src/base", "src/tensor", "src/kernels"):
            continue
        elif own == "src/kernels" and include in ("base/dtype.h", "base/random_values.h"):
            continue
        else:
            problems.append(f'{path}: layer {own} may not include "{include}" ({target})')
    return problems


def source_files():
    for folder in ("src", "apps"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                yield path.relative_to(ROOT).as_posix(), path.read_text()


def self_test(table):
    planted = [("src/base/x.h", '#include "tensor/tensor.h"'), ("src/io/x.h", '#include "engine/engine.h"'),
               ("src/model/x.h", '#include "backend/cpu/cpu_backend.h"'), ("src/kernels/moe/x.h", '#include "tensor/tensor.h"'),
               ("src/engine/x.cpp", '#include "server/http_server.h"'), ("src/nowhere/x.h", "")]
    for path, text in planted:
        if not check(path, text, table):
            sys.exit(f"check_layers: planted fault not caught: {path}: {text}")
    print(f"check_layers: {len(planted)} planted faults caught")


def main():
    table = read_table()
    if "--self-test" in sys.argv:
        return self_test(table)
    files = list(source_files())
    problems = [message for path, text in files for message in check(path, text, table)]
    print("\n".join(problems) or f"check_layers: {len(files)} files follow the layer table")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
