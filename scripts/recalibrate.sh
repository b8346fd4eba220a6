#!/bin/sh
# recalibrate.sh BINARY [FOLDER]: everything that follows from measured rounds. FOLDER holds new reports of `coppice bench round --json`, named as in
# docs/results/data; without it the ones there are taken. Then: the planner's page, docs/next-hardware.md, README's table and the report.
set -e
cd "$(dirname "$0")/.."
[ -n "$1" ] || { sed -n 2,3p "$0"; exit 2; }
if [ -n "$2" ]; then cp "$2"/*-planner-*.json docs/results/data/; fi
scripts/planner_page.py "$1"
scripts/next_hardware.py "$1"
scripts/report.py
