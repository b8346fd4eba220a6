#!/bin/sh
# recalibrate.sh BINARY [FOLDER]: everything that follows from measured rounds and kernels. FOLDER holds new reports, named as in docs/results/data: of
# `coppice bench round --json` (*-planner-*.json, from scripts/measure_planner.sh) and, if it was run, of `coppice bench kernels --json` (*-kernels*.json).
# Then: the planner's page, docs/next-hardware.md, README's table and the report. With new kernels src/planner/h200_kernels.cpp is written as well: build
# BINARY again and run this again without FOLDER.
set -e
cd "$(dirname "$0")/.."
[ -n "$1" ] || { sed -n 2,5p "$0"; exit 2; }
if [ -n "$2" ]; then
  ls "$2"/*-h200-planner-tp8.json "$2"/*-h200-planner-tp1.json > /dev/null
  rm -f docs/results/data/*-h200-planner-*.json  # pages and tests take the newest; git has those of before
  cp "$2"/*-planner-*.json docs/results/data/
  for kernels in "$2"/*-kernels*.json; do
    [ -e "$kernels" ] && cp "$kernels" docs/results/data/
  done
fi
scripts/shipped_kernels.py
scripts/planner_page.py "$1"
scripts/next_hardware.py "$1"
scripts/report.py
