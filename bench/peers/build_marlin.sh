#!/usr/bin/env bash
# build_marlin.sh SOURCE OUT: builds OUT/marlin_moe, which times vLLM's Marlin MoE kernels, from a checkout of vLLM (or a tree that
# vendors it) at SOURCE. Nothing of SOURCE is kept here: its launch heuristic is used as it is, its torch checks become aborts,
# and the instances are those of bf16 x INT4 group 32. Known to work: QuixiAI/SlimServe at 209265933.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$1" && pwd)/csrc
mkdir -p "$2" && out=$(cd "$2" && pwd)
moe=$source/libtorch_stable/moe/marlin_moe_wna16
mkdir -p "$out/stubs/torch/headeronly/util"
cat > "$out/stubs/torch/headeronly/util/Exception.h" <<'STUB'
#pragma once
#define STD_TORCH_CHECK(condition, ...) do { if (!(condition)) __builtin_trap(); } while (0)
STUB
# The host code up to the end of its namespace, without torch.
sed -n '/^#ifndef MARLIN_NAMESPACE_NAME/,/^}  \/\/ namespace MARLIN_NAMESPACE_NAME/p' "$moe/ops.cu" | grep -v -e '#include <torch' -e 'torch_utils.h' > "$out/marlin_launch.inc"
# The kernels that a 4-bit group-32 layer can reach: block sizes 8 to 64, three tiles each.
: > "$out/kernel_selector.h"
: > "$out/instances.inc"
join=if
for blocks in 0 1 2 3 4; do
  half=false rows=$blocks wide="16 4"
  if [[ $blocks == 0 ]]; then half=true rows=1; fi
  if [[ $rows == 1 ]]; then wide="8 8"; fi
  for tile in "256 $wide" "128 8 4" "128 4 8"; do
    read -r threads n k <<< "$tile"
    arguments="vllm::kBFloat16.id(), vllm::kU4B8.id(), vllm::kBFloat16.id(), vllm::kBFloat16.id(), $threads, $rows, $n, $k, $half, 4, 2, false"
    echo "template __global__ void Marlin<$arguments>(MARLIN_KERNEL_PARAMS);" >> "$out/instances.inc"
    echo "$join (threads == $threads && thread_m_blocks == $rows && thread_n_blocks == $n && thread_k_blocks == $k && m_block_size_8 == $half) kernel = Marlin<$arguments>;" >> "$out/kernel_selector.h"
    join="else if"
  done
done
nvcc -std=c++20 -O3 -w --expt-relaxed-constexpr -I"$out" -I"$out/stubs" -I"$moe" -I"$source" -I"$here/../../src" \
  -gencode arch=compute_90a,code=sm_90a -cudart static -o "$out/marlin_moe" "$here/marlin_moe.cu"
strip "$out/marlin_moe"
ls -l "$out/marlin_moe"
