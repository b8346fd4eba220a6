#!/usr/bin/env bash
# run_tests.sh BUILD_DIR: all tests, then one line with the number of single checks that ran in them.
set -uo pipefail
build=$1
log=$build/ctest.log
export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" ASAN_OPTIONS="detect_leaks=1 ${ASAN_OPTIONS:-}"
ctest --test-dir "$build" --output-on-failure --no-tests=error -j "${TEST_JOBS:-$(nproc)}" --output-log "$log" "${@:2}"
status=$?
cases=$(grep -hoE '^\[  PASSED  \] [0-9]+' "$build"/Testing/Temporary/LastTest.log | awk '{s+=$4} END {print s+0}')
skipped=$(grep -hoE '^\[  SKIPPED \] [0-9]+ test' "$build"/Testing/Temporary/LastTest.log | awk '{s+=$4} END {print s+0}')
echo "single test cases inside them: $cases passed, $skipped skipped"
exit $status
