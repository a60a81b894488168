"""The threads that run the kernels: Numba's OpenMP layer. torch keeps to one thread beside it.

An OpenMP runtime lets its threads wait in a loop between two parallel regions, ready at once, before they sleep. GNU's
does so for milliseconds, which takes the CPU from the server and the clients on the same cores; here it is short. It
reads that setting when it is loaded. The one that torch brings is another copy, and is not affected.
"""

import importlib
import os

import numba

# Turns of the waiting loop, some 20 us. Measured beside ten busy processes, a launch took 0.11-0.13 ms so, and 0.3-3 ms
# with 20,000 turns or GNU's own choice.
_SPIN_COUNT = "1000"


def load_openmp() -> str | None:
    """Load the layer; gives the reason if that is not possible."""
    name = "GOMP_SPINCOUNT"
    before = os.environ.get(name)
    os.environ[name] = before or _SPIN_COUNT
    try:
        importlib.import_module("numba.np.ufunc.omppool")
    except ImportError as error:
        return f"Numba's OpenMP layer cannot be loaded ({error}): install libgomp1"
    finally:
        if before is None:
            del os.environ[name]
    numba.config.THREADING_LAYER = "omp"
    return None


def max_threads() -> int:
    return int(numba.config.NUMBA_NUM_THREADS)


def use_threads(num_threads: int) -> None:
    """How many of them this thread's next kernels may use; Numba keeps the number per thread."""
    numba.set_num_threads(num_threads)
