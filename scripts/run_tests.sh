#!/usr/bin/env bash
# run_tests.sh BUILD_DIR: all tests, then what was skipped and why, and one line with the number of single checks that ran.
set -uo pipefail
build=$1
log=$build/ctest.log
export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" ASAN_OPTIONS="detect_leaks=1 ${ASAN_OPTIONS:-}"
# Where the kernel randomises 32 bits of an address, it may place something in the sanitizers' own memory: they end at their start.
fixed=()
if grep -q '^COPPICE_SANITIZE:.*=.' "$build/CMakeCache.txt" && setarch -R true 2> /dev/null; then
  fixed=(setarch -R)
fi
"${fixed[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error -j "${TEST_JOBS:-$(nproc)}" --output-log "$log" "${@:2}"
status=$?
last=$build/Testing/Temporary/LastTest.log
cases=$(grep -hoE '^\[  PASSED  \] [0-9]+' "$last" | awk '{s+=$4} END {print s+0}')
skipped=$(grep -hoE '^\[  SKIPPED \] [0-9]+ test' "$last" | awk '{s+=$4} END {print s+0}')
grep -hE '^\[  SKIPPED \] [^0-9]*\(|^skipped: ' "$last" | sort -u
grep -hA1 ': Skipped$' "$last" | grep -vE ': Skipped$|^--$' | sort | uniq -c
echo "single test cases inside them: $cases passed, $skipped skipped; whole tests skipped: $(grep -c '\*\*\*Skipped' "$log")"
exit $status
