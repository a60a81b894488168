"""Norm, gated activation and quantising, row by row, against plain torch."""

from typing import Any

import numpy as np
import pytest
import torch
from numba import njit

from pilot_llm.kernels import reference, row_kernels
from pilot_llm.kernels.arithmetic import exp, largest, largest_magnitude
from pilot_llm.kernels.packing import ROW_TYPE, ROW_ZERO, group_depth
from pilot_llm.kernels.team import new_progress

DEPTHS = [16, 80, 576, 1536]
NUM_ROWS = [1, 3, 70]  # in pieces of one row, and of several
EPS = np.float32(1e-5)
ROOM = np.empty(max(DEPTHS), np.float32)


def run(kernel: Any, *arguments: Any) -> None:
    """All rows, by this thread alone."""
    kernel(*arguments, new_progress(1), 0)


def floats_like(num_rows: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((num_rows, depth), np.float32), np.zeros((0, 0), np.float32)


def quantized_like(num_rows: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    values = np.full((num_rows, depth), 7, ROW_TYPE)
    return values, np.zeros((num_rows, depth // group_depth(depth)), np.float32)


def assert_near(values: np.ndarray, scales: np.ndarray, rows: torch.Tensor) -> None:
    """Quantised rows are `rows` to half a step of their group, and one rounding error more."""
    ours = reference.dequantize(torch.from_numpy(values.astype(int) - ROW_ZERO), torch.from_numpy(scales))
    half_a_step = torch.from_numpy(scales).repeat_interleave(rows.shape[1] // scales.shape[1], dim=1) / 2
    assert ((ours - rows).abs() <= half_a_step * 1.001 + 1e-5).all()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_norm_is_torchs(num_rows: int, depth: int) -> None:
    rows, weight = torch.randn(num_rows, depth) * 30, torch.randn(depth)
    expected = reference.norm(rows, weight, float(EPS))
    out = floats_like(num_rows, depth)
    run(row_kernels.rms_norm, rows.numpy(), weight.numpy(), EPS, out, ROOM)
    np.testing.assert_allclose(out[0], expected, rtol=2e-6, atol=2e-6)
    quantized = quantized_like(num_rows, depth)
    run(row_kernels.rms_norm_quantize, rows.numpy(), weight.numpy(), EPS, quantized, ROOM)
    assert_near(*quantized, expected)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
def test_gated_activation_is_torchs(num_rows: int, depth: int) -> None:
    gate_up = torch.randn(num_rows, 2 * depth) * 8
    gate_up[0, :4] = torch.tensor([-1000.0, 1000.0, -88.0, 0.0])
    expected = reference.gated(gate_up)
    out = floats_like(num_rows, depth)
    run(row_kernels.gated, gate_up.numpy(), out, ROOM)
    np.testing.assert_allclose(out[0], expected, rtol=1e-5, atol=1e-6)
    quantized = quantized_like(num_rows, depth)
    run(row_kernels.gated_quantize, gate_up.numpy(), quantized, ROOM)
    assert_near(*quantized, expected)


def test_quantised_row_spans_127_to_both_sides_by_group_and_zeros_stay_zero() -> None:
    rows = torch.randn(70, 192)
    rows[:, 64:128] *= 1e6  # an outlier of one group does not round away the others
    rows[5, :64] = 0
    values, scales = quantized_like(*rows.shape)
    run(row_kernels.quantize, rows.numpy(), (values, scales))
    numbers = values.astype(int) - ROW_ZERO
    expected_values, expected_scales = reference.quantize(rows, 64)
    np.testing.assert_allclose(scales, expected_scales, rtol=1e-6)
    # A value that lies halfway may round either way.
    assert (np.abs(numbers - expected_values.numpy()) <= 1).all()
    assert (numbers == expected_values.numpy()).mean() > 0.999
    assert set(numbers[5, :64].tolist()) == {0}
    assert scales[5, 0] == 0
    assert (np.abs(numbers).reshape(70, 3, 64).max(axis=2)[6:] == 127).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_group_that_is_not_finite_has_a_scale_of_nan_and_no_other_has(value: float) -> None:
    rows = torch.randn(3, 192)
    rows[1, 70] = value
    values, scales = quantized_like(*rows.shape)
    run(row_kernels.quantize, rows.numpy(), (values, scales))
    assert np.isnan(scales).tolist() == [[False] * 3, [False, True, False], [False] * 3]


@pytest.mark.parametrize("num_rows", [2, 16, 70])
def test_a_rows_bits_do_not_depend_on_the_rows_beside_it(num_rows: int) -> None:
    rows, weight = torch.randn(num_rows, 576).numpy(), torch.randn(576).numpy()
    for out_like, kernel in (
        (floats_like, row_kernels.rms_norm),
        (quantized_like, row_kernels.rms_norm_quantize),
    ):
        together, alone = out_like(num_rows, 576), out_like(1, 576)
        run(kernel, rows, weight, EPS, together, ROOM)
        for row in range(num_rows):
            run(kernel, rows[row : row + 1], weight, EPS, alone, ROOM)
            for whole, one in zip(together, alone, strict=True):
                np.testing.assert_array_equal(one[:1], whole[row : row + 1])


def test_exp_is_right_to_the_last_bits_and_zero_where_it_would_be_denormal() -> None:
    @njit
    def all_exp(values, out):  # type: ignore[no-untyped-def]
        for index in range(len(values)):
            out[index] = exp(values[index])

    values = np.concatenate([np.linspace(-86.9, 88, 20001), [-87.5, -1e30, 0.0]]).astype(np.float32)
    out = np.zeros_like(values)
    all_exp(values, out)
    np.testing.assert_allclose(out[:-3], np.exp(values[:-3].astype(np.float64)), rtol=3e-7)
    assert out[-3:].tolist() == [0, 0, 1]


@pytest.mark.parametrize("count", [16, 32, 64, 368])
def test_the_largest_is_found_wherever_it_stands(count: int) -> None:
    for place in range(count):
        row = np.full(count, -3.0, np.float32)
        row[place] = -1.0
        assert largest(row) == -1.0
        row[place] = -5.0
        assert largest_magnitude(row) == 5.0
    assert largest(np.full(count, -np.inf, np.float32)) == -np.inf
