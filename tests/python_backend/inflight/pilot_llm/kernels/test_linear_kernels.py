"""Products with packed weights: the values, and that a row's bits are its own."""

import numpy as np
import pytest
import torch

from pilot_llm.kernels import reference
from pilot_llm.kernels.linears import FloatLinear, Int8Linear, KernelLinear, QuantizedRows, Rows
from pilot_llm.kernels.packing import ROW_TYPE, ROW_ZERO, QuantizedWeight, group_depth, pack_floats, quantize_weight

# Outputs and depths: less than a panel, one and a bit, several pieces for both threads; groups of 16, 32 and 64.
SHAPES = [(5, 16), (16, 96), (37, 144), (320, 576)]
# Remainders of a tile's height, one full strip and more, and so many that bfloat16 panels are unpacked.
NUM_ROWS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 17, 64, 130, 350]  # the last in two strips


def multiply(linear: KernelLinear, rows: Rows, num_rows: int, *, adds: bool = False) -> np.ndarray:
    out = np.full((num_rows, linear.num_outputs), 2.0, np.float32)
    linear(rows, out, adds=adds, num_threads=2)
    return out


def random_weight(outputs: int, depth: int, *, is_bfloat16: bool) -> torch.Tensor:
    weight = torch.randn((outputs, depth), generator=torch.Generator().manual_seed(outputs + depth))
    return weight.bfloat16().float() if is_bfloat16 else weight


@pytest.mark.parametrize("is_bfloat16", [False, True])
@pytest.mark.parametrize(("outputs", "depth"), SHAPES)
def test_float_product_is_torchs_and_each_row_has_the_bits_it_has_alone(
    outputs: int, depth: int, is_bfloat16: bool
) -> None:
    weight = random_weight(outputs, depth, is_bfloat16=is_bfloat16)
    bias = torch.randn(outputs)
    linear = FloatLinear(weight, bias)
    for num_rows in NUM_ROWS:
        rows = torch.randn((num_rows, depth))
        out = multiply(linear, rows.numpy(), num_rows)
        expected = torch.nn.functional.linear(rows.double(), weight.double(), bias.double())
        np.testing.assert_allclose(out[:, :outputs], expected, atol=2e-4)
        added = multiply(linear, rows.numpy(), num_rows, adds=True)
        np.testing.assert_array_equal(added, out + np.float32(2))
        for row in {0, num_rows // 2, num_rows - 1}:
            np.testing.assert_array_equal(multiply(linear, rows[row : row + 1].numpy(), 1)[0], out[row])


def test_bfloat16_storage_changes_no_bit_and_is_chosen_only_where_it_is_exact() -> None:
    weight = random_weight(48, 64, is_bfloat16=True)
    assert pack_floats(weight.numpy()).dtype == np.uint16
    other = weight.clone()
    other[47, 63] = 1 + 2**-10  # not a bfloat16, in the last row only
    assert pack_floats(other.numpy()).dtype == np.float32
    for num_rows in (1, 40):
        rows = torch.randn((num_rows, 64)).numpy()
        halves, whole = (multiply(FloatLinear(values, None), rows, num_rows) for values in (weight, other))
        np.testing.assert_array_equal(halves[:, :47], whole[:, :47])


@pytest.mark.parametrize(("outputs", "depth"), SHAPES)
def test_int8_product_is_exact_but_for_the_scales_and_each_row_has_the_bits_it_has_alone(
    outputs: int, depth: int
) -> None:
    random = np.random.default_rng(depth)
    weight = QuantizedWeight(
        random.integers(-127, 128, (outputs, depth)).astype(np.int8), random.random(outputs).astype(np.float32)
    )
    bias = torch.randn(outputs)
    linear = Int8Linear(weight, bias)
    for num_rows in NUM_ROWS:
        rows = QuantizedRows(
            (ROW_ZERO + random.integers(-127, 128, (num_rows, depth))).astype(ROW_TYPE),
            random.random((num_rows, depth // group_depth(depth))).astype(np.float32),
        )
        out = multiply(linear, rows, num_rows)
        expected = reference.linear_int8(
            *(torch.from_numpy(array) for array in (rows.values.astype(int) - ROW_ZERO, rows.scales, weight.values)),
            torch.from_numpy(weight.scales).double(),
            bias.double(),
        )
        np.testing.assert_allclose(out[:, :outputs], expected, rtol=1e-5, atol=0.05)
        np.testing.assert_array_equal(multiply(linear, rows, num_rows, adds=True), out + np.float32(2))
        for row in {0, num_rows // 2, num_rows - 1}:
            one = QuantizedRows(rows.values[row : row + 1], rows.scales[row : row + 1])
            np.testing.assert_array_equal(multiply(linear, one, 1)[0], out[row])


@pytest.mark.parametrize("weight_value", [-127, 127])
@pytest.mark.parametrize("row_value", [-127, 127])
@pytest.mark.parametrize("num_rows", [1, 8])  # by tiles that widen the weights, and of weights widened before
def test_int8_sums_of_the_largest_products_neither_saturate_nor_overflow(
    weight_value: int, row_value: int, num_rows: int
) -> None:
    depth, group = 4096, 64
    weight = QuantizedWeight(np.full((16, depth), weight_value, np.int8), np.ones(16, np.float32))
    scales = np.ones((num_rows, depth // group), np.float32)
    rows = QuantizedRows(np.full((num_rows, depth), ROW_ZERO + row_value, ROW_TYPE), scales)
    out = multiply(Int8Linear(weight, None), rows, num_rows)
    np.testing.assert_array_equal(out, np.float32(depth * weight_value * row_value))


def test_weights_are_quantised_per_output_to_half_a_step() -> None:
    weight = random_weight(20, 64, is_bfloat16=False).numpy() * np.logspace(-6, 3, 20, dtype=np.float32)[:, None]
    weight[7] = 0
    quantized = quantize_weight(weight)
    assert np.abs(quantized.values).max(axis=1).tolist() == [127] * 7 + [0] + [127] * 12
    error = np.abs(quantized.values * quantized.scales[:, None] - weight)
    assert (error <= quantized.scales[:, None] * 0.5001).all()


@pytest.mark.parametrize("is_bfloat16", [False, True])
def test_rows_of_a_packed_weight_come_back_with_their_bits(is_bfloat16: bool) -> None:
    weight = random_weight(37, 144, is_bfloat16=is_bfloat16)
    outputs = np.array([36, 0, 15, 16, 0])
    np.testing.assert_array_equal(FloatLinear(weight, None).weight_rows(outputs), weight.numpy()[outputs])


def test_bytes_of_a_product_are_those_of_its_arrays() -> None:
    whole, halves = (random_weight(32, 64, is_bfloat16=is_bfloat16) for is_bfloat16 in (False, True))
    bias_bytes, scale_bytes, correction_bytes = 32 * 4, 32 * 4, 32 * 4 if ROW_ZERO else 0
    assert FloatLinear(whole, None).num_bytes == 32 * 64 * 4 + bias_bytes
    assert FloatLinear(halves, None).num_bytes == 32 * 64 * 2 + bias_bytes
    assert Int8Linear(whole, None).num_bytes == 32 * 64 + bias_bytes + scale_bytes + correction_bytes


def test_float_rows_are_refused_by_an_int8_product() -> None:
    linear = Int8Linear(torch.ones(16, 16), None)
    with pytest.raises(TypeError, match="quantised rows"):
        multiply(linear, np.ones((1, 16), np.float32), 1)
