#!/usr/bin/env python3
"""Arrivals on an mbarrier at which a load of shared memory has not returned, in the machine code.

    lab/race/arrivals.py [--cuobjdump PATH] build-cuda/src/kernels/libcoppice_kernels.a

An arrival gives a stage back, and does not wait for loads: one that is still out may read what is copied there next (racecheck found
that once in the experts). Bits 46 to 48 of an instruction's upper word name the scoreboard that its result clears, bits 52 to 57 the
scoreboards that it waits for. Instructions are taken in the order in which they lie, so a report is a place to look at: loads of the
*next* stage may be out, as in moe_wide_kernel; read_kernel of the benchmark does not use what it reads.
"""
import argparse
import re
import subprocess

INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,6})\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/")


def arrivals(text):
    """(kernel, address, arrival, loads that are out)."""
    lines, kernel, out = text.splitlines(), "", {}
    for line, below in zip(lines, lines[1:]):
        if name := re.search(r"Function : (\S+)", line):
            kernel, out = name[1], {}
        found = INSTRUCTION.match(line)
        upper = re.search(r"/\* 0x([0-9a-f]{16}) \*/", below)
        if not found or not upper:
            continue
        control, name = int(upper[1], 16), found[2].strip()
        for board in range(6):
            if control >> (52 + board) & 1:
                out.pop(board, None)
        if "SYNCS.ARRIVE" in name:
            loads = [load for load in out.values() if "LDS" in load]
            if loads:
                yield kernel, found[1], name, loads
        if (board := control >> 46 & 7) != 7:
            out[board] = f"{name} at {found[1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("objects", nargs="+")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    args = parser.parse_args()
    for path in args.objects:
        text = subprocess.run([args.cuobjdump, "-sass", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        print(f"{path}: {text.count('SYNCS.ARRIVE')} arrivals")
        for kernel, address, name, loads in arrivals(text):
            print(f"  {kernel} {address} {name}: {'; '.join(loads)}")


if __name__ == "__main__":
    main()
