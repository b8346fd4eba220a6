#!/bin/bash
# Builds one lab program: build.sh NAME [more sources]; the binary lands in lab/mla/out/.
set -e
cd "$(dirname "$0")"
mkdir -p out
name=$1
shift
nvcc -std=c++20 -O3 -lineinfo -gencode arch=compute_90a,code=sm_90a -cudart static -I../../src \
  -Xptxas -v --expt-relaxed-constexpr -o out/"$name" "$name".cu "$@" 2>&1 |
  grep -E "error|warning|spill|registers|Compiling" | sed 's/ptxas info *: //' || true
test -x out/"$name"
