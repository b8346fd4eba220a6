#!/usr/bin/env bash
# build_flash_mla.sh FLASHMLA CUTLASS OUT: builds OUT/flash_mla, which times FlashMLA's dense decode kernels for sm_90a, from
# checkouts of both (FlashMLA at 9241ae3 with the CUTLASS it pins, 147f567). Nothing of them is kept here.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$1" && pwd)/csrc
cutlass=$(cd "$2" && pwd)/include
mkdir -p "$3" && out=$(cd "$3" && pwd)
flags="-std=c++20 -O3 -w -DNDEBUG --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math -gencode arch=compute_90a,code=sm_90a"
includes="-I$source -I$source/sm90 -I$source/kerutils/include -I$cutlass -I$here/../../src"
objects=()
for file in "$source/sm90/decode/dense/instantiations/bf16.cu" "$source/smxx/decode/combine/combine.cu" \
  "$source/smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.cu" "$here/flash_mla.cu"; do
  objects+=("$out/$(basename "$file" .cu).o")
  nvcc $flags $includes -c -o "${objects[-1]}" "$file"
done
nvcc -cudart static -gencode arch=compute_90a,code=sm_90a -o "$out/flash_mla" "${objects[@]}"
strip "$out/flash_mla"
ls -l "$out/flash_mla"
