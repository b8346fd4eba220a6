#!/usr/bin/env bash
# exactness.sh BINARY [PROCESSES [PROMPTS [PART/PARTS]]]: the exactness test on 200 prompts x 128 tokens, every way to
# decode them, T = 0 and T = 0.8, spread over processes; PART/PARTS (from 0) runs a part of the prompts only. BINARY is
# build/tests/engine_exactness_test or a copy of it on another machine; this script's repository holds the model.
set -uo pipefail
binary=$1
processes=${2:-$(nproc)}
prompts=${3:-200}
part=${4:-0/1}
shards=$((processes * ${part#*/}))
export COPPICE_SOURCE_DIR=${COPPICE_SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
logs=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2> /dev/null; rm -rf "$logs"' EXIT
trap 'echo "stopped after $SECONDS s; runs done:"; grep -c "way done" "$logs"/*; exit 1' TERM INT
for ((i = 0; i < processes; ++i)); do
  COPPICE_EXACTNESS_PROMPTS=$prompts COPPICE_EXACTNESS_SHARD=$((i + ${part%/*} * processes))/$shards \
    "$binary" --gtest_filter='*/ExactnessTest.*' > "$logs/$i" 2>&1 &
  pids+=($!)
done
failures=0
for ((i = 0; i < processes; ++i)); do
  wait "${pids[$i]}" || failures=$((failures + 1))
  echo "shard $((i + ${part%/*} * processes))/$shards after $SECONDS s:"
  grep -E 'compared|Failure|differ|missing|PASSED|FAILED|check failed' "$logs/$i" | head -40 | sed 's/^/  /'
done
awk '/compared/ {prompts += $1; rows += $5; free += $12} /PASSED/ {tests += $4}
     END {printf "%d prompt runs (each temperature counts), %d not the greedy text, %d rows compared, %d tests passed", prompts, free, rows, tests}' "$logs"/*
echo ", $failures of $processes shards failed, $SECONDS s"
exit $((failures > 0))
