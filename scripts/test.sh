#!/usr/bin/env bash
# The default tests (without the markers `slow` and `gpu`), in a process more than there are cores, because many of
# them wait for a server. Arguments go to pytest, and replace that.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh export llm perf tensorrt-rtx dev
[ $# -gt 0 ] || set -- --numprocesses "$(($(nproc) + 1))" --dist worksteal
exec .venv/bin/python -m pytest "$@"
