#!/usr/bin/env bash
# Make the environment that Flower runs in, apart from fedpilot's own.
set -euo pipefail
here="$(cd "$(dirname "$0")/.." && pwd)"
python="${PYTHON:-python3.11}"
"$python" -m venv "$here/.venvs/flower"
"$here/.venvs/flower/bin/pip" install --quiet --disable-pip-version-check \
  torch==2.13.0 "flwr[simulation]==1.41.0" numpy scikit-learn
"$here/.venvs/flower/bin/pip" list --format freeze | grep -iE '^(flwr|ray|torch|numpy)=='
