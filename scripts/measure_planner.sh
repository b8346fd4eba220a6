#!/bin/sh
# measure_planner.sh BINARY FOLDER: the rounds that the planner is judged by, on this machine's H200; about a minute. Then scripts/recalibrate.sh.
set -e
coppice=$(readlink -f "$1") out="$(date -u +%F)-h200-planner"
cd "$2"  # reports name their command, without the folder
contexts=1024,8192,32768 rows=1,4,8,17,32,64,256
"$coppice" bench round --layers 61 --tp 8 --context $contexts --rows $rows --runs 5 --repeats 3 --json "$out-tp8.json"
"$coppice" bench round --layers 4 --tp 1 --context $contexts --rows $rows --runs 5 --repeats 3 --json "$out-tp1.json"
"$coppice" bench round --layers 61 --tp 8 --context 8192 --rows 1 --repeats 3 --json "$out-tp8-plain.json"
"$coppice" bench round --layers 4 --tp 1 --context 8192 --rows 1 --repeats 3 --json "$out-tp1-plain.json"
"$coppice" bench round --tiny --layers 6 --tp 1 --context 1024,4096 --rows 1,8,17,64 --runs 2 --repeats 3 --json "$out-tiny.json"
