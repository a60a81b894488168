"""Arrays that kernels address by number: where they begin, and that none lies in another."""

import itertools

import numpy as np
import pytest

from pilot_llm.kernels.memory import aligned_empty, weight_zeros


@pytest.mark.parametrize("make", [aligned_empty, weight_zeros])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (3, 1000, 1000)])
def test_an_array_begins_on_a_cache_line_and_is_its_own(make, shape: tuple[int, ...]) -> None:
    arrays = [make(shape, kind) for kind in (np.int8, np.float32, np.uint16, np.int8)]
    for array in arrays:
        assert array.shape == shape
        assert array.ctypes.data % 64 == 0
    for one, other in itertools.combinations(arrays, 2):
        assert not np.shares_memory(one, other)


def test_weights_are_zero_in_memory_that_was_used_before() -> None:
    for _ in range(3):
        weights = weight_zeros((48 << 20,), np.int8)
        assert not weights.any()
        weights[:] = 1
        del weights
