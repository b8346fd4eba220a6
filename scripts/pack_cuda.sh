#!/usr/bin/env bash
# pack_cuda.sh BUILD ARCHIVE.tar.xz [tests | coppice]: what scripts/accept_cuda.sh takes of a CUDA build (the tests, the program, or both), stripped, with its
# commit, for a machine that has a GPU but no build: `tar -xJf ARCHIVE -C DIR`, then accept_cuda.sh DIR OUT in a copy of the repository. Kernels stand in
# every program: packed together they take little more than one.
set -euo pipefail
build=$1 archive=$2 what=${3:-all}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
files=()
[[ $what == tests ]] || files+=(apps/coppice/coppice)
[[ $what == coppice ]] || files+=(tests/engine_{exactness_long,exactness_shapes,exactness,backends_agree,rounds_ahead}_test tests/planted_planted_faults_test
  tests/kernels_{tree,moe,peer_exchange}_test tests/ops_{op_cases,exactness,load_weights}_test)
for file in "${files[@]}"; do
  mkdir -p "$work/$(dirname "$file")"
  strip -o "$work/$file" "$build/$file"
done
git -C "$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$build/CMakeCache.txt")" rev-parse --short HEAD > "$work/commit.txt"
tar -C "$work" --sort=name -c . | xz -T1 --lzma2=preset=1,dict=256MiB > "$archive"
ls -l "$archive"
