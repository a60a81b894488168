"""The int8 tiles of CPUs with VNNI, run on any CPU: the same IR, with the one instruction spelt out as vpdpbusd is
documented (4 products of uint8 by int8 added to an int32, without saturation)."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from llvmlite import binding, ir

from pilot_llm.kernels import reference
from pilot_llm.kernels.machine_code import DOT_VNNI, LANES, VALUE_BLOCKS_AHEAD, emit_dot_tile, emit_value_tile

I64, INTS = ir.IntType(64), ir.VectorType(ir.IntType(32), LANES)
MAX_ROWS = 12


def vpdpbusd(builder: Any, sums: Any, row: Any, weights: Any) -> Any:
    row, weights = (builder.bitcast(side, INTS) for side in (row, weights))
    down = ir.Constant(INTS, [24] * LANES)
    for byte in range(4):
        up = ir.Constant(INTS, [24 - 8 * byte] * LANES)
        unsigned = builder.lshr(builder.shl(row, up), down)
        signed = builder.ashr(builder.shl(weights, up), down)
        sums = builder.add(sums, builder.mul(unsigned, signed))
    return sums


DOT = DOT_VNNI._replace(add_product=vpdpbusd)


@pytest.fixture(scope="module")
def tile() -> Any:
    """A function of C: 14 integers and a flag, as `make_dot_tile` says."""
    yield from compiled(14, 1, emit_dot_tile)


@pytest.fixture(scope="module")
def value_tile() -> Any:
    """A function of C: 9 integers, as `make_value_tile` says."""
    yield from compiled(9, 0, emit_value_tile)


def compiled(num_integers: int, num_flags: int, emit: Any) -> Any:
    module = ir.Module()
    module.triple = binding.get_process_triple()
    kind = ir.FunctionType(ir.VoidType(), [I64] * num_integers + [ir.IntType(1)] * num_flags)
    function = ir.Function(module, kind, "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    emit(builder, function.args, DOT, MAX_ROWS)
    builder.ret_void()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features().flatten()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, jit=True
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(str(module)), machine)
    engine.finalize_object()
    arguments = [ctypes.c_int64] * num_integers + [ctypes.c_bool] * num_flags
    call = ctypes.CFUNCTYPE(None, *arguments)(engine.get_function_address("tile"))
    yield call
    del engine


def multiply(tile: Any, rows: np.ndarray, row_scales: np.ndarray, weight: np.ndarray, *, adds: bool) -> np.ndarray:
    """`weight` [16, depth] int8, its outputs scaled by 0.5, 1, 1.5, ...; bias 0, 1, 2, ..."""
    num_rows, depth = rows.shape
    num_groups = row_scales.shape[1]
    panel = np.ascontiguousarray(weight.reshape(LANES, depth // 4, 4).transpose(1, 0, 2))
    correction = (-128 * weight.reshape(LANES, num_groups, -1).sum(axis=2, dtype=np.int32)).T.copy()
    column_scales, bias = np.arange(1, LANES + 1, dtype=np.float32) / 2, np.arange(LANES, dtype=np.float32)
    out = np.full((num_rows, LANES), 2, np.float32)
    tile(
        num_rows, rows.ctypes.data, rows.strides[0], panel.ctypes.data, panel.ctypes.data, num_groups,
        depth // num_groups // 4, out.ctypes.data, out.strides[0], row_scales.ctypes.data, row_scales.strides[0],
        column_scales.ctypes.data, correction.ctypes.data, bias.ctypes.data, adds,
    )  # fmt: skip
    return out


@pytest.mark.parametrize(("depth", "group"), [(16, 16), (96, 32), (576, 64)])
def test_product_is_exact_but_for_the_scales_and_each_row_has_the_bits_it_has_alone(
    tile: Any, depth: int, group: int
) -> None:
    random = np.random.default_rng(depth)
    weight = random.integers(-128, 128, (LANES, depth)).astype(np.int8)
    for num_rows in range(1, MAX_ROWS + 1):
        rows = random.integers(0, 256, (num_rows, depth)).astype(np.uint8)
        scales = random.random((num_rows, depth // group)).astype(np.float32)
        out = multiply(tile, rows, scales, weight, adds=False)
        expected = reference.linear_int8(
            *(torch.from_numpy(array) for array in (rows.astype(int) - 128, scales, weight)),
            torch.arange(1, LANES + 1).double() / 2,
            torch.arange(LANES).double(),
        )
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=0.05)
        np.testing.assert_array_equal(multiply(tile, rows, scales, weight, adds=True), out + np.float32(2))
        for row in range(num_rows):
            alone = multiply(tile, rows[row : row + 1], scales[row : row + 1], weight, adds=False)
            np.testing.assert_array_equal(alone[0], out[row])


@pytest.mark.parametrize("weight_value", [-128, 127])
@pytest.mark.parametrize("row_value", [0, 255])
def test_largest_products_neither_saturate_nor_overflow(tile: Any, row_value: int, weight_value: int) -> None:
    depth = 4096
    weight = np.full((LANES, depth), weight_value, np.int8)
    rows = np.full((1, depth), row_value, np.uint8)
    out = multiply(tile, rows, np.ones((1, depth // 64), np.float32), weight, adds=False)
    scales, bias = np.arange(1, LANES + 1, dtype=np.float32) / 2, np.arange(LANES, dtype=np.float32)
    np.testing.assert_allclose(out[0], depth * weight_value * (row_value - 128.0) * scales + bias, rtol=1e-6)


@pytest.mark.parametrize("num_rows", [0, MAX_ROWS + 1])
def test_number_of_rows_outside_the_tile_writes_nothing(tile: Any, num_rows: int) -> None:
    rows = np.zeros((MAX_ROWS + 1, 64), np.uint8)
    scales, weight = np.ones((MAX_ROWS + 1, 1), np.float32), np.ones((LANES, 64), np.int8)
    assert (multiply(tile, rows[:num_rows], scales[:num_rows], weight, adds=False) == 2).all()


@pytest.mark.parametrize("num_blocks", [1, 2, 8])
def test_values_are_added_exactly_from_blocks_that_lie_anywhere(value_tile: Any, num_blocks: int) -> None:
    """`offset` behind each block's address lie the values of 16 dims, four tokens of a dim beside each other."""
    random = np.random.default_rng(num_blocks)
    memory = random.integers(-128, 128, (20, 2, 4, LANES, 4)).astype(np.int8)
    where = random.permutation(20)[:num_blocks]
    table = memory.ctypes.data + memory.strides[0] * np.resize(where, num_blocks + VALUE_BLOCKS_AHEAD)
    values = memory[where, 1].transpose(0, 1, 3, 2).reshape(num_blocks * 16, LANES).astype(np.int64)
    for num_rows in range(1, MAX_ROWS + 1):
        rows = random.integers(0, 256, (num_rows, num_blocks * 16)).astype(np.uint8)
        rows[0] = 255
        scales = 2.0 ** random.integers(-3, 4, num_rows).astype(np.float32)
        out = np.full((num_rows, LANES), 2, np.float32)
        value_tile(
            num_rows, rows.ctypes.data, rows.strides[0], table.ctypes.data, memory.strides[1], num_blocks,
            out.ctypes.data, out.strides[0], scales.ctypes.data,
        )  # fmt: skip
        np.testing.assert_array_equal(out, 2 + (rows.astype(np.int64) @ values) * scales[:, None].astype(np.float64))
