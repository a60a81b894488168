"""The tiles as machine code of CPUs that need not be this one: the right instructions, and nothing else in the loop."""

import re

import pytest
from llvmlite import binding, ir

from pilot_llm.kernels.machine_code import (
    DOT_AVX2,
    DOT_AVX2_WIDENED,
    DOT_VNNI,
    Dot,
    emit_dot_tile,
    emit_fma_tile,
    emit_value_tile,
)

I64 = ir.IntType(64)


def assembly(cpu: str, num_arguments: int, emit: object) -> str:
    """The function `tile` that `emit(builder, arguments)` fills, compiled for `cpu`; nothing of it is run."""
    module = ir.Module()
    module.triple = "x86_64-unknown-linux-gnu"
    kind = ir.FunctionType(ir.VoidType(), [I64] * num_arguments + [ir.IntType(1)])
    function = ir.Function(module, kind, "tile")
    builder = ir.IRBuilder(function.append_basic_block())
    emit(builder, function.args)  # type: ignore[operator]
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    machine = binding.Target.from_triple(module.triple).create_target_machine(cpu=cpu, opt=3)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    passes = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(parsed, passes)
    return str(machine.emit_assembly(parsed))


def innermost_loops(text: str, instruction: str) -> list[list[str]]:
    """The instructions between a label and the jump back to it, of every loop that holds `instruction`, but no loop."""
    lines = [line.strip() for line in text.splitlines()]
    position = {line[:-1]: number for number, line in enumerate(lines) if line.endswith(":")}
    loops = []
    for number, line in enumerate(lines):
        jump = re.fullmatch(r"j\w+\s+(\.?\w+)", line)
        start = position.get(jump.group(1)) if jump else None
        if start is not None and start < number:
            body = lines[start + 1 : number]
            if any(instruction in entry for entry in body) and not any(entry.endswith(":") for entry in body):
                loops.append(body)
    return loops


def assert_lean(loops: list[list[str]], instruction: str, heights: list[int], per_row: int) -> None:
    """A loop for each height (LLVM unrolls the lower ones), with nothing in it that leaves the registers."""
    counts = {sum(instruction in entry for entry in body) for body in loops}
    assert {height * per_row for height in heights} <= counts
    assert max(counts) == heights[-1] * per_row
    for body in loops:
        assert any("prefetch" in entry for entry in body)
        assert not [entry for entry in body if "call" in entry or "(%rsp)" in entry], "a call or a spill in the loop"


@pytest.mark.parametrize("cpu", ["icelake-server", "sapphirerapids"])
def test_int8_tile_is_one_vpdpbusd_a_row_and_step_with_vnni(cpu: str) -> None:
    text = assembly(cpu, 14, lambda builder, arguments: emit_dot_tile(builder, arguments, DOT_VNNI, 12))
    assert_lean(innermost_loops(text, "vpdpbusd"), "vpdpbusd", list(range(8, 13)), per_row=1)
    assert "zmm" in text


@pytest.mark.parametrize(("dot", "max_rows"), [(DOT_AVX2, 3), (DOT_AVX2_WIDENED, 4)])
@pytest.mark.parametrize(("cpu", "per_row"), [("haswell", 4), ("skylake-avx512", 2)])
def test_int8_tile_multiplies_pairs_without_vnni(cpu: str, per_row: int, dot: Dot, max_rows: int) -> None:
    text = assembly(cpu, 14, lambda builder, arguments: emit_dot_tile(builder, arguments, dot, max_rows))
    assert_lean(innermost_loops(text, "vpmaddwd"), "vpmaddwd", [max_rows - 1, max_rows], per_row=per_row)


@pytest.mark.parametrize(
    ("cpu", "dot", "instruction", "heights", "per_row"),
    [
        ("icelake-server", DOT_VNNI, "vpdpbusd", [8, 9, 10, 11, 12], 4),
        ("skylake-avx512", DOT_AVX2, "vpmaddwd", [2, 3], 8),
        ("haswell", DOT_AVX2, "vpmaddwd", [2, 3], 16),
    ],
)
def test_value_tile_reads_a_block_at_a_time(
    cpu: str, dot: Dot, instruction: str, heights: list[int], per_row: int
) -> None:
    text = assembly(cpu, 9, lambda builder, arguments: emit_value_tile(builder, arguments[:9], dot, heights[-1]))
    assert_lean(innermost_loops(text, instruction), instruction, heights, per_row=per_row)


@pytest.mark.parametrize("element", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("cpu", "max_rows", "registers"), [("icelake-server", 12, 1), ("skylake-avx512", 12, 1), ("haswell", 6, 2)]
)
def test_float_tile_is_one_fma_a_row_and_register(cpu: str, max_rows: int, registers: int, element: str) -> None:
    text = assembly(cpu, 9, lambda builder, arguments: emit_fma_tile(builder, arguments, element, max_rows))
    assert_lean(innermost_loops(text, "vfmadd"), "vfmadd", list(range(max_rows - 2, max_rows + 1)), per_row=registers)
