"""CPU kernels in Numba. Importing this package needs numba; whether they run a model, `pilot_llm.kernel_path` says."""

from pilot_llm.kernels.cache_folder import use_cache_folder

use_cache_folder()
