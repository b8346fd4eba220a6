#!/usr/bin/env bash
# exactness.sh BINARY [PROCESSES] [PROMPTS]: the exactness test on 200 prompts x 128 tokens, every way to decode them,
# T = 0 and T = 0.8, spread over processes. BINARY is build/tests/engine_exactness_test or a copy of it on another
# machine; this script's repository holds the model and the prompts.
set -uo pipefail
binary=$1
processes=${2:-$(nproc)}
prompts=${3:-200}
export COPPICE_SOURCE_DIR=${COPPICE_SOURCE_DIR:-$(cd "$(dirname "$0")/.." && pwd)}
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
start=$SECONDS
pids=()
for ((i = 0; i < processes; ++i)); do
  COPPICE_EXACTNESS_PROMPTS=$prompts COPPICE_EXACTNESS_SHARD=$i/$processes \
    "$binary" --gtest_filter='*/ExactnessTest.*' >"$logs/$i" 2>&1 &
  pids+=($!)
done
failures=0
for ((i = 0; i < processes; ++i)); do
  wait "${pids[$i]}" || failures=$((failures + 1))
  echo "shard $i/$processes after $((SECONDS - start)) s:"
  grep -E 'compared|Failure|differ|missing|PASSED|FAILED|check failed' "$logs/$i" | head -40 | sed 's/^/  /'
done
awk '/compared/ {prompts += $1; rows += $5} /PASSED/ {tests += $4}
     END {printf "%d prompt runs (each temperature counts), %d rows compared, %d tests passed", prompts, rows, tests}' "$logs"/*
echo ", $failures of $processes shards failed, $((SECONDS - start)) s"
exit $((failures > 0))
