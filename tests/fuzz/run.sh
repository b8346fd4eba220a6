#!/bin/sh
# Fuzzes the file parsers under ASan and UBSan for SECONDS (default 60). Needs clang++ with libFuzzer.
set -e
cd "$(dirname "$0")/../.."
seconds=${1:-60}
out=build-fuzz
mkdir -p $out/corpus
if ! command -v clang++ > /dev/null; then
  echo "tests/fuzz: clang++ is not installed" >&2
  exit 77
fi
clang++ -std=c++20 -O1 -g -march=x86-64-v2 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  -Isrc tests/fuzz/file_formats_fuzz.cpp src/io/json*.cpp src/io/mapped_file.cpp src/io/tensor_info.cpp \
  src/io/safetensors.cpp src/io/gguf.cpp src/base/check.cpp src/base/error.cpp -o $out/file_formats_fuzz
python3 tests/fuzz/seeds.py $out/corpus
exec $out/file_formats_fuzz -max_total_time="$seconds" -max_len=4096 -rss_limit_mb=3000 $out/corpus
