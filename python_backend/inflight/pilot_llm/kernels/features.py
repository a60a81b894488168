"""What the CPU that Numba compiles for offers to the kernels. Asked before anything is compiled: LLVM ends the process,
without an exception, over an instruction that this CPU lacks.
"""

from collections.abc import Mapping

from llvmlite import binding
from numba import config


def offered(host: Mapping[str, bool], cpu_name: str | None, cpu_features: str | None, enable_avx: int) -> set[str]:
    """The features of Numba's target: the host's, or what NUMBA_CPU_NAME, NUMBA_CPU_FEATURES ("+avx2,-fma") and
    NUMBA_ENABLE_AVX make of them. What a named CPU has by itself is not known here, and does not count.
    """
    there = {name for name, is_there in host.items() if is_there and (enable_avx or not name.startswith("avx"))}
    if cpu_features is None:
        return there
    if cpu_name is not None:
        there = set()
    for entry in cpu_features.replace(" ", "").split(","):
        if entry.startswith("+"):
            there.add(entry[1:])
        else:
            there.discard(entry[1:])
    return there


_host = binding.get_host_cpu_features()
_features = offered(_host, config.CPU_NAME, config.CPU_FEATURES, config.ENABLE_AVX)

MISSING = sorted({"avx2", "fma", "f16c"} - _features)
"""Without these the kernels do not run. Empty: they do."""

IS_HOST = _features == offered(_host, None, None, True)
"""Whether Numba compiles for this CPU as it is."""

HAS_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= _features
HAS_VNNI = HAS_AVX512 and "avx512vnni" in _features

# Rows of a tile: as many running sums as fit the registers, beside the weights and one number of a row.
FMA_ROWS = 12 if HAS_AVX512 else 6
DOT_ROWS = 12 if HAS_VNNI else 3
WIDENED_DOT_ROWS = 4  # without VNNI, of a panel in 16 bits

# Numbers of 16 bit that several tiles read are turned into float32 before them. With AVX-512 a tile has twice as many
# rows, and turns them itself.
UNPACKS_FIRST = not HAS_AVX512

INSTRUCTIONS = "AVX-512 VNNI" if HAS_VNNI else "AVX-512 without VNNI" if HAS_AVX512 else "AVX2"
