"""What this CPU offers to the kernels. Asked of LLVM before anything is compiled: it ends the process, without an
exception, over an instruction that the CPU lacks.
"""

from llvmlite import binding

_features = {name for name, is_there in binding.get_host_cpu_features().items() if is_there}

MISSING = sorted({"avx2", "fma", "f16c"} - _features)
"""Without these the kernels do not run. Empty: they do."""

HAS_AVX512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= _features
HAS_VNNI = HAS_AVX512 and "avx512vnni" in _features

# Rows of a tile: as many running sums as fit the registers, beside the weights and one number of a row.
FMA_ROWS = 12 if HAS_AVX512 else 6
DOT_ROWS = 12 if HAS_VNNI else 4

INSTRUCTIONS = "AVX-512 VNNI" if HAS_VNNI else "AVX-512 without VNNI" if HAS_AVX512 else "AVX2"
