#!/usr/bin/env bash
# Make the environments that the peers run in, apart from fedpilot's own: `install.sh [flower] [pfl]`.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3.11}"

declare -A package=([flower]="flwr[simulation]==1.41.0" [pfl]="pfl[pytorch]==0.6.0")
for peer in "${@:-flower pfl}"; do
  for name in $peer; do
    echo "==> $name: ${package[$name]}"
    "$python" -m venv "$here/.venvs/$name"
    bin="$here/.venvs/$name/bin"
    "$bin/pip" install --quiet --disable-pip-version-check \
      "${package[$name]}" torch==2.13.0 numpy
    "$bin/pip" list --format freeze | grep -iE '^(flwr|pfl|ray|torch|numpy)=='
  done
done
