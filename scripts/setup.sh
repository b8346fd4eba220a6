#!/usr/bin/env bash
# Installs what the build and the tests need on Debian 12: packages from apt, and with --oracles a Python environment in
# .venv with the reference implementations that some tests compare with and a browser, with --clients one in .venv-clients
# with other people's clients of the server. Does nothing where all is there already.
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

# The C++ core of xgrammar (structured output). pip asks the package's build files for its metadata and builds nothing.
version=$(head -n 1 scripts/xgrammar-version.txt)
if [[ ! -d .deps/xgrammar-$version ]]; then
  echo "setup: sources of xgrammar $version (.deps)"
  mkdir -p .deps
  fetched=.deps/fetch
  rm -rf "$fetched"
  if python3 -m venv "$fetched" && "$fetched/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary xgrammar \
      -d "$fetched/sdist" "xgrammar==$version" && tar -xzf "$fetched/sdist/xgrammar-$version.tar.gz" -C "$fetched"; then
    mv "$fetched/xgrammar-$version" .deps/
  else
    echo "setup: no sources of xgrammar: the build answers requests for structured output with 501"
  fi
  rm -rf "$fetched"
fi

if [[ "${1:-}" == --clients ]]; then
  python3 -m venv .venv-clients
  while read -r package; do
    .venv-clients/bin/pip install -q --disable-pip-version-check "$package" ||
      echo "setup: no $package: its client will be skipped"
  done < scripts/client-packages.txt
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
  # The browser for the server's page and the screenshot of reports.
  if ! command -v chromium > /dev/null && ! { ((EUID == 0)) && command -v apt-get > /dev/null && apt-get update -qq &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null; }; then
    echo "setup: no Chromium (apt-get install chromium): the tests of the server's page and of reports will be skipped"
  fi
fi
