"""CPU kernels in Numba. Importing this package needs numba; whether they run a model, `pilot_llm.kernel_path` says."""

import os

from pilot_llm.kernels.cache_folder import use_cache_folder

# Numba keeps what it has compiled by the path of the source. Reached by a link, as in a checkout, a kernel that the
# server's process has compiled would be compiled again, and the other way round.
__path__[:] = [os.path.realpath(path) for path in __path__]
use_cache_folder()
