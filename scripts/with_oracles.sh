#!/usr/bin/env bash
# with_oracles.sh MODULES SCRIPT [ARGS]: runs a Python script in the test virtualenv, or skips (77) where that lacks one of
# the comma-separated modules.
set -uo pipefail
python=${COPPICE_PYTHON:-$(dirname "$0")/../.venv/bin/python}
if ! "$python" -c "import $1" 2> /dev/null; then
  echo "skipped: $python cannot import $1 (make oracles)"
  exit 77
fi
exec "$python" "${@:2}"
