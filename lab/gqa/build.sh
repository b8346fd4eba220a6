#!/bin/bash
# Builds the grouped-query attention lab into lab/gqa/out/.
set -e
cd "$(dirname "$0")"
mkdir -p out
kernels=../../src/kernels
nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -cudart static -I../../src \
  --expt-relaxed-constexpr -o out/gqa_lab gqa_lab.cu $kernels/gqa/*.cu $kernels/gqa/*.cpp
