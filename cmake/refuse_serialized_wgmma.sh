#!/bin/sh
# refuse_serialized_wgmma.sh COMPILER ARGS...: the compiler, failing too where ptxas says (C7510 to C7519, a mere
# note) that it makes a kernel's wgmma wait for each other: such a kernel is right and slow.
said=$(mktemp) && trap 'rm -f "$said"' EXIT
"$@" 2> "$said"
status=$?
cat "$said" >&2
if grep -q 'C751[0-9]' "$said"; then exit 1; fi
exit $status
