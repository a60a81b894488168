#!/usr/bin/env bash
# The main job on the sample model: export, verify, serve, sweep, choose, prove. Works on a copy under build/.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh export perf
# What each knob brought, and what happens at twice the load, are left out for time: `tritonpilot tune minilm` goes on
# from here and adds them.
exec .venv/bin/tritonpilot tune minilm --no-attribution --no-protection "$@"
