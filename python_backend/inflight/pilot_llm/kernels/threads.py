"""The threads that run the kernels: Numba's OpenMP layer. torch keeps to one thread beside it.

An OpenMP runtime lets its threads wait in a loop between two parallel regions, ready at once, before they sleep. GNU's
does so for milliseconds, which takes the CPU from the server and the clients on the same cores; here it is short. It
reads that setting when it is loaded. The one that torch's wheel brings is another copy, and is not affected; a torch
that uses the system's has loaded it already, and then the setting comes too late.
"""

import importlib
import logging
import os
import sys
from pathlib import Path

import numba

_log = logging.getLogger(__name__)

# Turns of the waiting loop, some 20 us. Measured beside ten busy processes, a launch took 0.11-0.13 ms so, and 0.3-3 ms
# with 20,000 turns or GNU's own choice.
_SPIN_COUNT = "1000"
_SPIN_NAME = "GOMP_SPINCOUNT"

_LAYER = "numba.np.ufunc.omppool"
_MAPS = Path("/proc/self/maps")


def load_openmp() -> str | None:
    """Load the layer; gives the reason if that is not possible."""
    if _LAYER in sys.modules:
        return None
    before = os.environ.get(_SPIN_NAME)
    loaded_before = loaded_gomp(_MAPS.read_text())
    os.environ[_SPIN_NAME] = before or _SPIN_COUNT
    try:
        importlib.import_module(_LAYER)
    except ImportError as error:
        return f"Numba's OpenMP layer cannot be loaded ({error}): install libgomp1"
    finally:
        if before is None:
            del os.environ[_SPIN_NAME]
    if before is None and loaded_before and loaded_gomp(_MAPS.read_text()) == loaded_before:
        _log.warning(
            "the kernels share an OpenMP runtime that was loaded before them (%s): their threads wait for milliseconds "
            "in a loop between two kernels, and take the CPU from others. Set %s=%s in the server's environment",
            *(", ".join(loaded_before), _SPIN_NAME, _SPIN_COUNT),
        )
    numba.config.THREADING_LAYER = "omp"
    return None


def loaded_gomp(maps: str) -> list[str]:
    """The files of GNU's OpenMP runtime among a process's mappings."""
    paths = {line.partition("/")[1] + line.partition("/")[2] for line in maps.splitlines()}
    return sorted(path for path in paths if Path(path).name.startswith("libgomp"))


def max_threads() -> int:
    return int(numba.config.NUMBA_NUM_THREADS)


def use_threads(num_threads: int) -> None:
    """How many of them this thread's next kernels may use; Numba keeps the number per thread."""
    numba.set_num_threads(num_threads)
