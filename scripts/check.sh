#!/usr/bin/env bash
# check.sh BUILD_DIR: no built programs, formatting, layer table, clang-tidy. Prints every fault before failing.
set -uo pipefail
build=$1
status=0

if built=$(LC_ALL=C git grep --text --files-with-matches --perl-regexp '^\x7fELF' 2>&1); then
  printf '%s\n' "$built" | sed 's/^/check: a built program or library: /'
  status=1
elif [[ -n $built ]]; then
  echo "check: $built"
  status=1
fi

mapfile -t sources < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
if ! clang-format --dry-run --Werror "${sources[@]}" 2> "$build/format.log"; then
  grep -E 'error' "$build/format.log" | cut -d: -f1 | sort -u | sed 's/^/check: not formatted: /'
  status=1
fi

python3 scripts/check_layers.py || status=1

mapfile -t tidy < <(git ls-files 'src/*.cpp' 'apps/*.cpp' | grep -v -e '_avx' -e 'simd/dispatch' -e unicode_data -e 'backend/cuda/' -e 'kernels/')
python3 scripts/tidy.py "$build" "${tidy[@]}" > "$build/tidy.log" || status=1
grep -E 'warning:|error:' "$build/tidy.log" | sort -u
((status == 0)) && echo "check: ${#sources[@]} files formatted, layers kept, nothing built among them, clang-tidy clean"
exit $status
