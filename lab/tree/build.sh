#!/bin/bash
# Builds check and bench into ${1:-build/lab/tree} with the CUDA toolkit alone.
set -e
cd "$(dirname "$0")/../.."
out=${1:-build/lab/tree}
mkdir -p "$out"
flags=(-std=c++20 -O3 -I. -Isrc -Ilab/tree -gencode arch=compute_90a,code=sm_90a -cudart static
       --expt-relaxed-constexpr -lineinfo)
compile() {
  local object="$out/$(echo "$1" | tr / _).o"
  objects+=("$object")
  if [ ! "$object" -nt "$1" ] || [ -n "$(find src/kernels src/base lab/tree tests/kernels -name '*.*h' -newer "$object")" ]; then
    ${CCACHE-} nvcc "${flags[@]}" -c "$1" -o "$object"
  fi
}
objects=()
for file in src/kernels/{tree,sample,kv}/*.{cpp,cu}; do compile "$file"; done
kernels=("${objects[@]}")
objects=()
for file in lab/tree/check.cu tests/kernels/support/check_*.cpp; do compile "$file"; done
nvcc -cudart static "${kernels[@]}" "${objects[@]}" -o "$out/check"
if [ -f lab/tree/bench.cu ]; then
  objects=()
  for file in lab/tree/bench*.cu; do compile "$file"; done
  nvcc -cudart static "${kernels[@]}" "${objects[@]}" -o "$out/bench"
fi
