#!/usr/bin/env bash
# accept_cuda.sh BUILD OUT [PART ...]: what the CUDA backend is accepted by, on this machine's GPU; scripts/result_pages.py makes the pages of OUT.
# BUILD is a CUDA build, or a folder with its tests/ and apps/coppice/coppice copied from another machine; this script's repository holds models and data.
# compute-sanitizer is scripts/sanitize_cuda.py's. Parts, all of them without any named; the last four want the GPU for themselves:
#   exactness  every comparison of bits, op cases, planted faults: many processes at once, JOBS of them (one a core)
#   smollm2    the downloaded SmolLM2 (make models) on the GPU against the CPU
#   peers      other people's kernels: those of $PEERS, a folder with what bench/peers built (marlin_moe, flash_mla) and DDTree's checkout (ddtree/), and
#              torch's; what is absent is left out and said
#   rounds     a round of 61 layers by stage, beside its peers' sum
#   kernels    every kernel, beside its peers
#   small      rounds of tiny-k2 at budgets 16, 32 and 64, captured and op by op
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
mkdir -p "$2/logs" && out=$(cd "$2" && pwd)
parts=("${@:3}")
((${#parts[@]})) || parts=(exactness smollm2 peers rounds kernels small)
coppice=$build/apps/coppice/coppice
export COPPICE_SOURCE_DIR=$here COPPICE_TEST_DEVICE=cuda
failures=0

# step NAME COMMAND...: its output in logs/NAME.log, a line with its exit status and seconds here.
step() {
  local name=$1 start=$EPOCHREALTIME status=0
  shift
  "$@" > "$out/logs/$name.log" 2>&1 || status=$?
  printf '%s: status %d, %.1f s\n' "$name" "$status" "$(seconds_since "$start")"
  return $status
}

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN {printf "%.1f", to - from}'; }

# ---- exactness

# check NAME COMMAND...: a test; a line in tests.txt: name, status, seconds, cases that passed, failed, were skipped.
check() {
  local name=$1 start=$EPOCHREALTIME status=0 log=$out/logs/$1.log
  shift
  "$@" > "$log" 2>&1 || status=$?
  local line
  line=$(awk -v name="$name" -v status="$status" -v seconds="$(seconds_since "$start")" '
    /^\[  PASSED  \] [0-9]+/ {passed = $4} /^\[  FAILED  \] [0-9]+ test/ {failed = $4} /^\[  SKIPPED \] [0-9]+ test/ {skipped = $4}
    END {print name, status, seconds, passed + 0, failed + 0, skipped + 0}' "$log")
  echo "$line" >> "$out/tests.txt"
  echo "$line"
}

# The longest first: `name|command`.
exactness_checks() {
  local tests=$build/tests ranks context op fault
  echo "backends_agree|$tests/engine_backends_agree_test --gtest_filter=BackendsAgreeTest.*-*SmolLm2UpToNearTies"
  for ranks in 1 8; do
    for context in 131072 33000 8192 1024; do
      echo "bits_of_${ranks}_ranks_at_$context|$tests/engine_exactness_long_test --gtest_filter=*EveryWayLeavesTheSameBits/Of${ranks}RanksAt$context"
    done
  done
  for fault in $("$tests/planted_planted_faults_test" --gtest_list_tests | sed -n 's/^  IsFoundAndTheFirstOpIsNamed.\([A-Za-z]*\).*/\1/p'); do
    echo "planted_$fault|$tests/planted_planted_faults_test --gtest_filter=*/$fault"
  done
  echo "bits_faults|$tests/engine_exactness_test --gtest_filter=*Fault*"
  echo "bits_oracle|$tests/engine_exactness_test --gtest_filter=*Oracle*"
  echo "bits_greedy|$tests/engine_exactness_test --gtest_filter=*EveryWay*/greedy"
  echo "bits_T08|$tests/engine_exactness_test --gtest_filter=*EveryWay*/T08"
  echo "bits_of_two_layers|$tests/engine_exactness_shapes_test"
  echo "rounds_ahead|$tests/engine_rounds_ahead_test"
  for ranks in 1 8; do
    echo "repeats_of_${ranks}_ranks|$tests/engine_exactness_long_test --gtest_filter=*RunsAreRepeatable/Of${ranks}RanksAt1024"
    echo "repeats_of_ops_of_${ranks}_ranks|$tests/engine_exactness_long_test --gtest_filter=*OpsAreRepeatable/Of${ranks}RanksAt1024"
  done
  echo "kernels_tree|$tests/kernels_tree_test"
  echo "kernels_moe|$tests/kernels_moe_test"
  # Every op of the table but those that its test names as tested elsewhere.
  for op in $(sed -n 's/^ *virtual void \([a-z_0-9]*\)(const .*Args& args).*/\1/p' "$here/src/backend/backend.h" |
    grep -vxE 'plan_mla_attention|compile_draft|build_tree|ngram_propose|compile_tree|accept_path|move_kv'); do
    echo "op_$op|env COPPICE_OPS=$op $tests/ops_op_cases_test --gtest_filter=*cuda"
  done
  echo "op_nan_and_paths|$tests/ops_exactness_test --gtest_filter=*cuda"
  echo "op_load_weights|$tests/ops_load_weights_test --gtest_filter=*cuda"
}

exactness() {
  local checks line running=0 command
  mapfile -t checks < <(exactness_checks)
  : > "$out/tests.txt"
  printf '%s\n' "${checks[@]%%|*}" kernels_peer_exchange > "$out/checks.txt"  # a run that is stopped shows what it has not done
  for line in "${checks[@]}"; do
    ((running < ${JOBS:-$(nproc)})) || { wait -n; running=$((running - 1)); }
    read -ra command <<< "${line#*|}"
    check "${line%%|*}" "${command[@]}" < /dev/null &
    running=$((running + 1))
  done
  wait
  check kernels_peer_exchange "$build/tests/kernels_peer_exchange_test"  # its ranks wait for each other: alone
  awk '{tests += $4; failed += $5; skipped += $6; bad += $2 != 0 && $2 != 77}
       END {printf "exactness: %d processes, %d tests passed, %d failed, %d skipped, %d processes failed\n", NR, tests, failed, skipped, bad; exit bad > 0}' "$out/tests.txt"
}

smollm2() { check smollm2 "$build/tests/engine_backends_agree_test" --gtest_filter='*SmolLm2UpToNearTies' && ! grep -q '^smollm2 [^0]' "$out/tests.txt"; }

# ---- times

peers() {
  local peers=${PEERS:-$build/peers} found=() torch
  python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null &  # takes its seconds beside the others
  torch=$!
  timed() {  # timed FILE COMMAND...: a peer's program
    local name=$1
    shift
    if step "peers_$name" "$@" || [[ -s $out/peers_$name.json ]]; then found+=("$out/peers_$name.json"); fi
  }
  if [[ -x $peers/flash_mla ]]; then timed flash "$peers/flash_mla" "$out/peers_flash.json"; else echo "no $peers/flash_mla: FlashMLA is left out"; fi
  if [[ -x $peers/marlin_moe ]]; then timed marlin "$peers/marlin_moe" "$out/peers_marlin.json"; else echo "no $peers/marlin_moe: Marlin is left out"; fi
  if wait $torch; then
    timed torch python3 "$here/bench/peers/torch_peers.py" "$out/peers_torch.json"
    timed prompts python3 "$here/bench/peers/dequantised_experts.py" "$out/peers_prompts.json"
    if [[ -e $peers/ddtree/ddtree.py ]]; then
      timed trees python3 "$here/bench/peers/ddtree_builder.py" "$peers/ddtree" "$out/peers_trees.json"
    else
      echo "no $peers/ddtree: DDTree's builder is left out"
    fi
  else
    echo "no torch with CUDA: its kernels are left out"
  fi
  python3 "$here/bench/peers/merge.py" "$out/peers.json" "${found[@]}"
}

# `--peers FILE` where there is one.
beside() { [[ ! -s $out/peers.json ]] || echo --peers peers.json; }

rounds() {
  # shellcheck disable=SC2046
  (cd "$out" && step rounds "$coppice" bench round --device cuda --layers 61 --tp 8 --context 4096,8192,1024,32768 --rows 1,8,17,64 --repeats 7 $(beside) --json rounds.json)
}

# shellcheck disable=SC2046
kernels() { (cd "$out" && step kernels "$coppice" bench kernels --device cuda $(beside) --json kernels.json); }

small() {
  local budget mode status=0
  (cd "$out" && step small "$coppice" bench round --device cuda --tiny --layers 6 --tp 1 --context 256,1024,4096 --rows 1,17,33,65 --repeats 15 --eager --json small.json) || status=1
  for budget in 16 32 64; do
    for mode in "" --enforce-eager; do
      step "tiny_k2_$budget$mode" timeout 60 "$coppice" generate "$here/models/tiny-k2" --drafter "$here/models/tiny-k2-dflash" --device cuda --ddtree-budget $budget \
        --max-tokens 256 --ignore-eos --temperature 0 --seed 7 --stats --prompt $'class Stack:\n    def __init__(self):' $mode || status=1
    done
  done
  return $status
}

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader > "$out/device.txt" || { echo "accept_cuda.sh: no GPU here"; exit 2; }
cat "$out/device.txt"
date -u +%FT%TZ > "$out/date.txt"
# A copied build holds the name of its commit.
cat "$build/commit.txt" > "$out/commit.txt" 2> /dev/null || git -C "$here" rev-parse --short HEAD > "$out/commit.txt"
for part in "${parts[@]}"; do
  case $part in
    exactness | smollm2 | peers | rounds | kernels | small) "$part" || { echo "$part: FAILED" && failures=$((failures + 1)); } ;;
    *) echo "accept_cuda.sh: no part '$part'" && exit 2 ;;
  esac
done
exit $((failures > 0))
