#!/usr/bin/env bash
# bench.sh BUILD_DIR: CPU kernels and steps against this machine's read bandwidth; llama.cpp beside them where it is installed
# (python module llama_cpp, built with this machine's instruction sets) and `make models` has fetched SmolLM2.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
cmake --build "$build" --target bench_cpu_kernels bench_cpu_step > /dev/null
"$build/bench/bench_cpu_kernels"
"$build/bench/bench_cpu_step" models/tiny-k2 1 64
model=models/downloaded/SmolLM2-135M-Instruct.Q4_1.gguf
if [[ ! -s $model ]]; then
  echo "bench: no $model (make models): the comparison with llama.cpp is left out"
elif python3 -c 'import llama_cpp' 2> /dev/null; then
  python3 bench/compare_llama_cpp.py "$build" "$model" 1
else
  "$build/bench/bench_cpu_step" "$model" 1 64
fi
