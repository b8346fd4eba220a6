#!/bin/bash
# Builds the norm and rope lab into lab/norm/out/.
set -e
cd "$(dirname "$0")"
mkdir -p out
kernels=../../src/kernels
nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -cudart static -I../../src \
  --expt-relaxed-constexpr -o out/norm_rope_lab norm_rope_lab.cu $kernels/norm/*.cu \
  $kernels/norm/*.cpp $kernels/rope/*.cu
