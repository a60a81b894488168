#!/usr/bin/env bash
# Creates .venv with the named extras of pyproject.toml, or does nothing when it is there already.
#
#   scripts/setup.sh export perf                         what `make quickstart` needs
#   scripts/setup.sh export llm perf tensorrt-rtx dev    what `make test` needs
#
# PYTHON names the interpreter (3.11 or 3.12); otherwise the first fitting one on PATH is taken.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "setup: error: $*" >&2; exit 1; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] ||
    fail "this is $(uname -s) on $(uname -m), and the embedded server is built for Linux on x86_64. Use such a machine, or NVIDIA's container (README)"

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' >/dev/null 2>&1; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fits "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or 3.12: name one that is"
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3 /usr/bin/python3; do
        if fits "$candidate"; then echo "$candidate"; return; fi
    done
    fail "Python 3.11 or 3.12 is needed (numpy < 2 has no wheels above); found: $(python3 --version 2>/dev/null || echo none). Install one, or name it: PYTHON=/path/to/python3.11"
}

extras=$(printf '%s\n' "$@" | sort -u | paste -sd,)
python=$(find_python)
stamp=".venv/.setup-${extras//,/-}-$(cat pyproject.toml constraints.txt | sha256sum | cut -c1-12)"
if [ -f "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then exit 0; fi

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$("$python" --version) has no venv module. On Debian or Ubuntu: apt-get install python3-venv"
.venv/bin/python -c '' 2>/dev/null || {
    echo "setup: creating .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

# One line for each package, so that a person sees it move; everything else only when it fails.
log=.venv/setup.log
install() {
    .venv/bin/python -m pip install --disable-pip-version-check -c constraints.txt "$@" 2>"$log" |
        sed -un 's/^Collecting \([^ ]*\).*/    \1/p; s/^\(Installing\) collected packages.*/    installing .../p'
}

# The plain name `torch` would bring several GB of CUDA, so the CPU build is asked for by its full version: from
# wherever pip already looks, else from PyTorch's own index.
if ! .venv/bin/python -c 'import torch' 2>/dev/null && [[ ",$extras," =~ ,(export|llm), ]]; then
    torch="torch==$(sed -n 's/^torch==//p' constraints.txt)+cpu"
    echo "setup: installing $torch (about 200 MB)"
    install "$torch" || install --extra-index-url https://download.pytorch.org/whl/cpu "$torch" ||
        { tail -n 5 "$log" >&2; fail "$torch could not be installed. Check the network, then run this again"; }
fi
echo "setup: installing TritonPilot with [$extras]"
install --editable ".[$extras]" ||
    { tail -n 5 "$log" >&2; fail "the packages could not be installed. Check the network and free disk space, then run this again"; }
touch "$stamp"
