"""Where Numba keeps compiled kernels, decided before the first one is defined."""

import hashlib
import os
import tempfile
from pathlib import Path

import numba


def use_cache_folder() -> Path:
    """Numba compiles a kernel again when its own file changes, but not when a file does that it takes code from. So
    the folder's name holds a hash of all files here, whatever the installation's own folder allows.
    """
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    base = os.environ.get("NUMBA_CACHE_DIR")
    if base is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        base = str(cache / "tritonpilot" / "kernels")
    folder = Path(base) / f"{numba.__version__}-{hashlib.sha256(code).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(folder)
    except OSError:
        # Compiled again at every start, but it runs.
        folder = Path(tempfile.mkdtemp(prefix="tritonpilot-kernels-"))
    numba.config.CACHE_DIR = str(folder)
    return folder
