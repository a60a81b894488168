#!/usr/bin/env bash
# The default tests (without the markers `slow` and `gpu`). Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh export llm perf dev
exec .venv/bin/python -m pytest "$@"
