#!/usr/bin/env bash
# The main job on the sample model: export, verify, serve, sweep, choose, prove. Works on a copy under build/.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh export perf
exec .venv/bin/tritonpilot tune minilm "$@"
