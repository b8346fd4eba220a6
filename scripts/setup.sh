#!/usr/bin/env bash
# Installs what the build and the tests need on Debian 12: packages from apt, and with --oracles a Python environment in
# .venv with the reference implementations that some tests compare with. Does nothing where all is there already.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
while read -r package; do
  [[ -z "$package" || "$package" == \#* ]] && continue
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done < scripts/apt-packages.txt

if ((${#missing[@]})); then
  if ((EUID == 0)); then
    sudo=()
  elif command -v sudo > /dev/null; then
    sudo=(sudo)
  else
    echo "setup: these Debian packages are missing, and neither root nor sudo is at hand to install them: ${missing[*]}" >&2
    exit 1
  fi
  if ! command -v apt-get > /dev/null; then
    echo "setup: no apt-get here: install what these Debian 12 packages hold: ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  "${sudo[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [[ "${1:-}" == --oracles ]]; then
  stamp=.venv/installed-packages.txt
  if ! cmp -s scripts/pypi-packages.txt "$stamp"; then
    echo "setup: Python environment for the reference implementations (.venv)"
    if python3 -m venv .venv && .venv/bin/pip install -q --disable-pip-version-check -r scripts/pypi-packages.txt; then
      cp scripts/pypi-packages.txt "$stamp"
    else
      echo "setup: no Python environment: tests that compare with reference implementations will be skipped"
    fi
  fi
fi
