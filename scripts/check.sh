#!/usr/bin/env bash
# Format, lint and types of everything, in the environment that scripts/test.sh creates.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh export llm perf tensorrt-rtx dev
.venv/bin/ruff format --check .
.venv/bin/ruff check .
.venv/bin/mypy
# Every backend has a top-level module `model`, so each is a run of its own.
for model in python_backend/*/model.py; do
    MYPYPATH="client:export:perf:$(dirname "$model")" .venv/bin/mypy "$model"
done
