"""The machine-level part: two tiles of matrix product, emitted as LLVM IR. All other kernels are ordinary Numba.

A tile multiplies a few rows by one panel, 16 columns wide:

          depth                 16                     16
        +-------+           +--------+             +--------+
   rows |  row  |  depth    | panel  |  -->   rows |  out   |     one vector of 16 running sums per row
        +-------+           |        |             +--------+
                            +--------+

Per step of depth it loads 16 weights once, and for each row copies one number of it into all 16 lanes and does one
fused multiply-add. LLVM splits the 16 lanes into registers as the CPU has them: one of AVX-512, two of AVX2.

A row's sums run over the depth in this one order, whatever other rows are in the tile: no answer depends on the batch.

While a tile reads its panel it asks for `following`, a panel that is read soon, so that memory works meanwhile too.

An intrinsic here is a Python function that writes IR while Numba compiles its caller. Addresses and strides are in
bytes; nobody checks bounds. `rows` is 1 .. the tile's maximum: each height has a loop of its own, chosen by a switch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from pilot_llm.kernels.features import DOT_ROWS, FMA_ROWS, HAS_VNNI, WIDENED_DOT_ROWS

LANES = 16
DOT_DEPTH = 4  # products of one lane that a step of the int8 tile adds

_I1, _I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
_F32 = ir.FloatType()
_FLOATS = ir.VectorType(_F32, LANES)
_INTS = ir.VectorType(_I32, LANES)
_BYTES = ir.VectorType(_I8, LANES * DOT_DEPTH)
_SHORTS = ir.VectorType(_I16, LANES * DOT_DEPTH // 2)

Builder = Any  # llvmlite's ir.IRBuilder; it comes without types
Value = Any
Product = Callable[[Builder, Value, Value, Value], Value]


class Dot(NamedTuple):
    """How the int8 tile multiplies. A step of 4 of the depth reads `panel_bytes` of weights as one or two operands,
    and for each operand 4 bytes of a row: 4 uint8 around 128, or 2 int16 around 0.
    """

    panel_bytes: int
    load: Callable[[Builder, Value], list[Value]]
    add_product: Product
    has_zero_point: bool


def _add_vnni(builder: Builder, sums: Value, row: Value, weights: Value) -> Value:
    """sums[lane] += row[4 x uint8, the same in all lanes] . weights[lane][4 x int8], one instruction."""
    return _call(builder, "llvm.x86.avx512.vpdpbusd.512", _INTS, sums, builder.bitcast(row, _BYTES), weights)


def _add_pairs(builder: Builder, sums: Value, row: Value, weights: Value) -> Value:
    """sums[lane] += row[2 x int16, the same in all lanes] . weights[lane][2 x int16]: the same bits without VNNI."""
    eight, shorts = ir.VectorType(_I32, 8), builder.bitcast(row, _SHORTS)
    low, high = (
        _call(builder, "llvm.x86.avx2.pmadd.wd", eight, _half(builder, weights, side), _half(builder, shorts, side))
        for side in (0, 1)
    )
    joined = builder.shuffle_vector(low, high, ir.Constant(_INTS, list(range(LANES))))
    return builder.add(sums, joined)


def _load_bytes(builder: Builder, address: Value) -> list[Value]:
    return [_load(builder, address, _BYTES)]


def _load_widening(builder: Builder, address: Value) -> list[Value]:
    """Bytes 0 and 2 of each lane as 16-bit numbers, then bytes 1 and 3."""
    eight, shorts = _same(_SHORTS, 8), _load(builder, address, _SHORTS)
    return [builder.ashr(builder.shl(shorts, eight), eight), builder.ashr(shorts, eight)]


def _load_widened(builder: Builder, address: Value) -> list[Value]:
    return [_load(builder, builder.add(address, _int(part * LANES * DOT_DEPTH)), _SHORTS) for part in (0, 1)]


DOT_VNNI = Dot(LANES * DOT_DEPTH, _load_bytes, _add_vnni, has_zero_point=True)
DOT_AVX2 = Dot(LANES * DOT_DEPTH, _load_widening, _add_pairs, has_zero_point=False)
# Of a panel that `widen_int8` has written: more rows fit the registers, and no tile widens again.
DOT_AVX2_WIDENED = Dot(2 * LANES * DOT_DEPTH, _load_widened, _add_pairs, has_zero_point=False)


def make_fma_tile(element: str) -> Any:
    """out[row] = bias + row . panel, or += with `accumulate`; panel [depth][16] of `element`, arithmetic in float32."""

    @intrinsic
    def fma_tile(typing_context, rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate):
        def codegen(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
            emit_fma_tile(builder, arguments, element, FMA_ROWS)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9, types.boolean), codegen

    return fma_tile


def emit_fma_tile(builder: Builder, arguments: Any, element: str, max_rows: int) -> None:
    rows, row, row_stride, panel, following, depth, out, out_stride, bias, accumulate = arguments

    def step(index: Value, sums: list[Value]) -> list[Value]:
        weights = load_as_floats(builder, _at(builder, panel, index, LANES * ELEMENT_BYTES[element]), element)
        _prefetch(builder, _at(builder, following, index, LANES * ELEMENT_BYTES[element]))
        numbers = _row_addresses(builder, _at(builder, row, index, 4), row_stride, len(sums))
        return [
            _fma(builder, _spread(builder, number, _FLOATS), weights, total)
            for number, total in zip(numbers, sums, strict=True)
        ]

    def emit(num_rows: int) -> None:
        sums = _loop(builder, depth, [_load(builder, bias, _FLOATS)] * num_rows, step)
        _store_rows(builder, sums, out, out_stride, accumulate)

    _switch(builder, rows, max_rows, emit)


def make_dot_tile(dot: Dot, max_rows: int) -> Any:
    """out[row] = bias + column_scale * sum over groups g of row_scale[g] * (correction + row . panel)[g],
    or += with `accumulate`. A group is `group_quads` x 4 neighbours of the depth; its sum is exact.

    row_scales [groups] float32, rows of them `scale_stride` apart; panel [depth / 4][16][4] int8; correction
    [groups][16] int32, read if the rows have a zero point: minus that * the sum of each column's weights in the group.
    """

    @intrinsic
    def dot_tile(
        typing_context, rows, row, row_stride, panel, following, num_groups, group_quads, out, out_stride,
        row_scales, scale_stride, column_scales, correction, bias, accumulate,
    ):  # fmt: skip
        def codegen(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
            emit_dot_tile(builder, arguments, dot, max_rows)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 14, types.boolean), codegen

    return dot_tile


def emit_dot_tile(builder: Builder, arguments: Any, dot: Dot, max_rows: int) -> None:
    rows, row, row_stride, panel, following, num_groups, group_quads, out, out_stride = arguments[:9]
    row_scales, scale_stride, column_scales, correction, bias, accumulate = arguments[9:]

    def group(number: Value, totals: list[Value]) -> list[Value]:
        first = builder.mul(number, group_quads)

        def step(index: Value, sums: list[Value]) -> list[Value]:
            quad = builder.add(first, index)
            _prefetch(builder, _at(builder, following, quad, LANES * DOT_DEPTH))
            return _add_quad(builder, dot, row, row_stride, panel, quad, quad, sums)

        start = ir.Constant(_INTS, None)
        if dot.has_zero_point:
            start = _load(builder, _at(builder, correction, number, LANES * 4), _INTS)
        sums = _loop(builder, group_quads, [start] * len(totals), step)
        scales = _row_addresses(builder, _at(builder, row_scales, number, 4), scale_stride, len(totals))
        return [
            _fma(
                builder,
                builder.sitofp(exact, _FLOATS),
                _spread(builder, scale, _FLOATS),
                total,
            )
            for exact, scale, total in zip(sums, scales, totals, strict=True)
        ]

    def emit(num_rows: int) -> None:
        totals = _loop(builder, num_groups, [ir.Constant(_FLOATS, None)] * num_rows, group)
        scale, shift = _load(builder, column_scales, _FLOATS), _load(builder, bias, _FLOATS)
        _store_rows(builder, [_fma(builder, total, scale, shift) for total in totals], out, out_stride, accumulate)

    _switch(builder, rows, max_rows, emit)


def _add_quad(
    builder: Builder, dot: Dot, row: Value, row_stride: Value, panel: Value, row_quad: Value, panel_quad: Value,
    sums: list[Value],
) -> list[Value]:  # fmt: skip
    """Each row's four numbers of its quad, times a quad of the panel."""
    weights = dot.load(builder, _at(builder, panel, panel_quad, dot.panel_bytes))
    fours = _row_addresses(builder, _at(builder, row, row_quad, 4 * len(weights)), row_stride, len(sums))
    for number, part in enumerate(weights):
        sums = [
            dot.add_product(builder, total, _spread(builder, builder.add(four, _int(4 * number)), _INTS), part)
            for four, total in zip(fours, sums, strict=True)
        ]
    return sums


VALUE_BLOCKS_AHEAD = 8
"""Of how many blocks behind the one that it reads `value_tile` asks memory for."""


def make_value_tile(dot: Dot, max_rows: int) -> Any:
    """out[row] += row_scale * (row . values), the sum exact, over `num_blocks` blocks of 16 tokens that lie anywhere.

    row: `num_blocks` * 16 weights, without a zero point; row_scales float32, one behind the other. table int64
    [num_blocks + VALUE_BLOCKS_AHEAD]: addresses of blocks; values [4][16][4] int8 of 16 dims lie `offset` behind each.
    """

    @intrinsic
    def value_tile(
        typing_context, rows, row, row_stride, table, offset, num_blocks, out, out_stride, row_scales
    ):  # fmt: skip
        def codegen(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
            emit_value_tile(builder, arguments, dot, max_rows)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), codegen

    return value_tile


def emit_value_tile(builder: Builder, arguments: Any, dot: Dot, max_rows: int) -> None:
    rows, row, row_stride, table, offset, num_blocks, out, out_stride, row_scales = arguments
    quads = LANES // DOT_DEPTH

    def block_at(index: Value) -> Value:
        pointer = builder.inttoptr(_at(builder, table, index, 8), _I64.as_pointer())
        return builder.add(builder.load(pointer), offset)

    def step(index: Value, sums: list[Value]) -> list[Value]:
        panel, following = block_at(index), block_at(builder.add(index, _int(VALUE_BLOCKS_AHEAD)))
        for number in range(quads):
            _prefetch(builder, builder.add(following, _int(number * LANES * DOT_DEPTH)))
            row_quad = builder.add(builder.mul(index, _int(quads)), _int(number))
            sums = _add_quad(builder, dot, row, row_stride, panel, row_quad, _int(number), sums)
        return sums

    def emit(num_rows: int) -> None:
        sums = _loop(builder, num_blocks, [ir.Constant(_INTS, None)] * num_rows, step)
        addresses = _row_addresses(builder, out, out_stride, num_rows)
        for number, (total, address) in enumerate(zip(sums, addresses, strict=True)):
            scale = _spread(builder, builder.add(row_scales, _int(4 * number)), _FLOATS)
            before = _load(builder, address, _FLOATS)
            _store(builder, _fma(builder, builder.sitofp(total, _FLOATS), scale, before), address)

    _switch(builder, rows, max_rows, emit)


ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def load_as_floats(builder: Builder, address: Value, element: str) -> Value:
    """16 neighbours as float32; exact for each of the types."""
    if element == "float32":
        return _load(builder, address, _FLOATS)
    if element == "float16":
        return builder.fpext(_load(builder, address, ir.VectorType(ir.HalfType(), LANES)), _FLOATS)
    # bfloat16 is the upper half of a float32.
    wide = builder.zext(_load(builder, address, ir.VectorType(_I16, LANES)), _INTS)
    return builder.bitcast(builder.shl(wide, _same(_INTS, 16)), _FLOATS)


def make_unpack(element: str) -> Any:
    """Write `vectors` x 16 elements as float32, for a panel that many tiles read; ask for `following` meanwhile."""

    @intrinsic
    def unpack(typing_context, source, following, out, vectors):
        def codegen(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
            source, following, out, vectors = arguments

            def step(index: Value, _nothing: list[Value]) -> list[Value]:
                values = load_as_floats(builder, _at(builder, source, index, LANES * ELEMENT_BYTES[element]), element)
                _store(builder, values, _at(builder, out, index, LANES * 4))
                _prefetch(builder, _at(builder, following, index, LANES * ELEMENT_BYTES[element]))
                return []

            _loop(builder, vectors, [], step)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), codegen

    return unpack


@intrinsic
def widen_int8(typing_context, source, out, quads):
    """Write `quads` x 64 weights as 16 bits, as `DOT_AVX2_WIDENED` reads them."""

    def codegen(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        source, out, quads = arguments

        def step(index: Value, _nothing: list[Value]) -> list[Value]:
            parts = _load_widening(builder, _at(builder, source, index, DOT_AVX2.panel_bytes))
            for number, part in enumerate(parts):
                place = _int(number * LANES * DOT_DEPTH)
                _store(builder, part, builder.add(_at(builder, out, index, DOT_AVX2_WIDENED.panel_bytes), place))
            return []

        _loop(builder, quads, [], step)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 3), codegen


@intrinsic
def prefetch(typing_context, address):
    """Ask memory for the line at `address`, which need not be there."""

    def codegen(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        _prefetch(builder, arguments[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def as_pointer(typing_context, address):
    """The address as `numba.carray` takes it."""

    def codegen(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        return builder.inttoptr(arguments[0], _I8.as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def fetch_add(typing_context, address, amount):
    """Atomically add to the int64 at `address`; gives the value before. Threads take pieces of work by it."""

    def codegen(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        address, amount = arguments
        return builder.atomic_rmw("add", builder.inttoptr(address, _I64.as_pointer()), amount, "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_acquire(typing_context, address):
    """The int64 at `address`; what its writer had written before `fetch_add` is seen by whoever has read it so."""

    def codegen(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        return builder.load_atomic(builder.inttoptr(arguments[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def pause(typing_context):
    """Tell the CPU that this is a waiting loop: it does nothing for some 20 ns."""

    def codegen(context: Any, builder: Builder, _signature: Any, _arguments: Any) -> Value:
        _call(builder, "llvm.x86.sse2.pause", ir.VoidType())
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def float_from_bits(typing_context, bits):
    """The float32 whose bits these int32 are."""

    def codegen(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        return builder.bitcast(arguments[0], _F32)

    return types.float32(types.int32), codegen


@intrinsic
def bits_of(typing_context, number):
    """The bits of a float32 as int32."""

    def codegen(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        return builder.bitcast(arguments[0], _I32)

    return types.int32(types.float32), codegen


@intrinsic
def larger(typing_context, one, other):
    """The larger of two float32; either, if one is NaN. LLVM makes a loop of it vector code, and not one of `max`."""

    def codegen(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        return _call(builder, "llvm.maxnum.f32", _F32, *arguments, fastmath=("nnan", "nsz"))

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def fma(typing_context, factor, other, addend):
    """factor * other + addend of float32, rounded once."""

    def codegen(_context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
        return _call(builder, "llvm.fma.f32", _F32, *arguments)

    return types.float32(types.float32, types.float32, types.float32), codegen


def make_store(element: str) -> Any:
    """Store one float32 at an address, rounded to `element`."""

    @intrinsic
    def store(typing_context, address, value):
        def codegen(context: Any, builder: Builder, _signature: Any, arguments: Any) -> Value:
            address, value = arguments
            if element == "float16":
                value = builder.fptrunc(value, ir.HalfType())
            builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=ELEMENT_BYTES[element])
            return context.get_dummy_value()

        return types.void(types.int64, types.float32), codegen

    return store


fma_tile_f32, fma_tile_bf16, fma_tile_f16 = (make_fma_tile(element) for element in ("float32", "bfloat16", "float16"))
unpack_bf16, unpack_f16 = make_unpack("bfloat16"), make_unpack("float16")
store_f32, store_f16 = make_store("float32"), make_store("float16")
value_tile = make_value_tile(DOT_VNNI if HAS_VNNI else DOT_AVX2, DOT_ROWS)
dot_tile = make_dot_tile(DOT_VNNI if HAS_VNNI else DOT_AVX2, DOT_ROWS)
dot_tile_widened = make_dot_tile(DOT_AVX2_WIDENED, WIDENED_DOT_ROWS)


def _int(value: int) -> Value:
    return ir.Constant(_I64, value)


def _same(vector: Any, value: int) -> Value:
    return ir.Constant(vector, [value] * vector.count)


def _at(builder: Builder, base: Value, index: Value, stride: int) -> Value:
    return builder.add(base, builder.mul(index, _int(stride)))


def _row_addresses(builder: Builder, base: Value, stride: Value, num_rows: int) -> list[Value]:
    return [builder.add(base, builder.mul(stride, _int(number))) for number in range(num_rows)]


def _load(builder: Builder, address: Value, vector: Any) -> Value:
    return builder.load(builder.inttoptr(address, vector.as_pointer()), align=1)


def _store(builder: Builder, values: Value, address: Value) -> None:
    builder.store(values, builder.inttoptr(address, values.type.as_pointer()), align=4)


def _prefetch(builder: Builder, address: Value) -> None:
    """Bring the line at `address` into the second-level cache; an address that is not there does nothing."""
    pointer = _I8.as_pointer()
    function_type = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0i8")
    reads, second_level, data = ir.Constant(_I32, 0), ir.Constant(_I32, 2), ir.Constant(_I32, 1)
    builder.call(function, [builder.inttoptr(address, pointer), reads, second_level, data])


def _spread(builder: Builder, address: Value, vector: Any) -> Value:
    """The one element at `address` in all lanes."""
    one = builder.load(builder.inttoptr(address, vector.element.as_pointer()), align=4)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, one, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(_I32, vector.count), None))


def _fma(builder: Builder, factor: Value, other: Value, total: Value) -> Value:
    return _call(builder, "llvm.fma.v16f32", _FLOATS, factor, other, total)


def _half(builder: Builder, values: Value, side: int) -> Value:
    count = values.type.count // 2
    lanes = ir.Constant(ir.VectorType(_I32, count), list(range(side * count, (side + 1) * count)))
    return builder.shuffle_vector(values, ir.Constant(values.type, ir.Undefined), lanes)


def _call(builder: Builder, name: str, result: Any, *arguments: Value, fastmath: tuple[str, ...] = ()) -> Value:
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments, fastmath=fastmath)


def _store_rows(builder: Builder, sums: list[Value], out: Value, out_stride: Value, accumulate: Value) -> None:
    addresses = _row_addresses(builder, out, out_stride, len(sums))
    with builder.if_else(accumulate) as (then, otherwise):
        with then:
            for total, address in zip(sums, addresses, strict=True):
                _store(builder, builder.fadd(_load(builder, address, _FLOATS), total), address)
        with otherwise:
            for total, address in zip(sums, addresses, strict=True):
                _store(builder, total, address)


def _loop(
    builder: Builder, count: Value, start: list[Value], step: Callable[[Value, list[Value]], list[Value]]
) -> list[Value]:
    """Run `step(index, values)` for index 0 .. count - 1, at least once; gives the last values."""
    before = builder.basic_block
    body, done = builder.append_basic_block("body"), builder.append_basic_block("done")
    builder.branch(body)
    builder.position_at_end(body)
    index = builder.phi(_I64)
    values = [builder.phi(value.type) for value in start]
    results = step(index, values)
    following = builder.add(index, _int(1))
    # Not `body`, if the step holds a loop of its own.
    end = builder.basic_block
    for phi, first, then in zip([index, *values], [_int(0), *start], [following, *results], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, end)
    builder.cbranch(builder.icmp_signed("<", following, count), body, done)
    builder.position_at_end(done)
    return results


def _switch(builder: Builder, rows: Value, max_rows: int, emit: Callable[[int], None]) -> None:
    """Code for each number of rows; a number outside 1 .. max_rows does nothing."""
    end = builder.append_basic_block("end")
    choice = builder.switch(rows, end)
    for num_rows in range(1, max_rows + 1):
        block = builder.append_basic_block(f"rows_{num_rows}")
        choice.add_case(_int(num_rows), block)
        builder.position_at_end(block)
        emit(num_rows)
        builder.branch(end)
    builder.position_at_end(end)
