"""What Numba's target offers: asked of the host, and of the settings that make Numba compile for another CPU."""

import os
import subprocess
import sys

import pytest

from pilot_llm.kernels.features import offered

HOST = {"avx2": True, "fma": True, "f16c": True, "avx512f": False, "sse2": True}


@pytest.mark.parametrize(
    ("cpu_name", "cpu_features", "enable_avx", "expected"),
    [
        (None, None, 1, {"avx2", "fma", "f16c", "sse2"}),
        ("skylake", None, 1, {"avx2", "fma", "f16c", "sse2"}),  # Numba keeps the host's features beside the name
        (None, None, 0, {"fma", "f16c", "sse2"}),
        (None, "-fma,+avx512f", 1, {"avx2", "f16c", "sse2", "avx512f"}),
        ("generic", "", 1, set()),
        ("generic", "+avx2, +fma", 1, {"avx2", "fma"}),
    ],
)
def test_features_are_those_that_numba_compiles_for(
    cpu_name: str | None, cpu_features: str | None, enable_avx: int, expected: set[str]
) -> None:
    assert offered(HOST, cpu_name, cpu_features, enable_avx) == expected


def test_numba_for_a_generic_cpu_means_torch_and_no_abort() -> None:
    ask = "from pilot_llm.kernel_path import _why_not_this_machine; print(_why_not_this_machine())"
    told = subprocess.run(
        [sys.executable, "-c", ask],
        env={**os.environ, "NUMBA_CPU_NAME": "generic"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith(
        "the CPU that Numba is told to compile for (NUMBA_CPU_NAME, ...) lacks avx2, f16c, fma"
    )
