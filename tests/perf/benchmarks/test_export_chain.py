"""The chain's table on a small module: each row is its own, and what is made for a GPU is judged but not timed."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from onnx import helper, save

from pilot_export.samples import crepe, efficientnet, minilm
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.verify import onnx_runner, run_reference, torch_runner
from pilot_testing.onnx_models import graph
from pilot_testing.specs import doubler_spec, rows


class Normed(torch.nn.Module):
    """Batch normalisation, whose statistics train mode moves."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(self.linear(x))
        return result


SPEC = doubler_spec(Normed, task=None)


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "perf" / "benchmarks")
    return importlib.import_module("export_chain")


def test_train_mode_leaves_the_module_of_the_other_rows_as_it_was(chain: ModuleType) -> None:
    module = Normed().eval()
    batch = {"x": rows(16, seed=2) * 50 + 7}
    with torch.inference_mode():
        expected = module(torch.from_numpy(batch["x"])).numpy()
    calls = chain.torch_calls(module)
    found = {name: calls[name](batch).detach().numpy() for name in ("train, autograd", "eval", "eval, inference")}
    assert not np.allclose(found["train, autograd"], expected)
    assert np.array_equal(found["eval"], expected)
    assert np.array_equal(found["eval, inference"], expected)


def test_every_row_has_size_and_quality_and_those_for_a_gpu_no_speed(chain: ModuleType, tmp_path: Path) -> None:
    module = SPEC.load_module()
    assert isinstance(module, torch.nn.Module)
    reference = run_reference(SPEC, torch_runner(SPEC, module.eval()))
    steps = Steps(tmp_path, lambda _: None)
    with steps.run("trace", "Tracing"):
        trace_to_onnx(SPEC, module, tmp_path / "model.fp32.onnx")
    of_torch = {name: call for name, call in chain.torch_calls(module).items() if name.startswith("eval")}
    torch_rows = chain.torch_rows(SPEC, reference, module, of_torch)
    made, calls = chain.variant_rows(SPEC, reference, ("fp32", "int8", "fp16"), tmp_path, steps)
    assert list(calls) == ["fp32", "int8"]
    assert all(row.size_bytes and row.quality for row in [*torch_rows, *made])
    rates = chain.measure({**of_torch, **calls}, SPEC, rounds=2, window_s=0.001)
    assert {size: len(found) for size, found in rates["int8"].items()} == {1: 2, 8: 2, 32: 2}
    for row in [*torch_rows, *made]:
        row.requests_per_s = rates.get(row.name, {})
    lines = chain.table([*torch_rows, *made]).splitlines()
    (fp16,) = (index for index, line in enumerate(lines) if line.startswith("fp16"))
    assert lines[fp16].split()[1:4] == ["0.0", "MB", "1.0000"]
    assert lines[fp16].count("[") == 0
    assert lines[fp16 + 1].startswith("    made for a GPU (TensorRT, or onnxruntime's CUDA provider), not timed here; ")
    assert all(line.count("[") == 3 for line in lines if line.startswith(("eval", "fp32", "int8")))


def test_a_variant_that_cannot_be_made_is_a_row_with_its_reason(chain: ModuleType, tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = graph([node], [("x", "FP32", ["n", 4])], [("y", "FP32", ["n", 4])])
    save(model, str(tmp_path / "model.fp32.onnx"))
    spec = doubler_spec(task=None)
    reference = run_reference(spec, onnx_runner(tmp_path / "model.fp32.onnx"))
    (row,), calls = chain.variant_rows(spec, reference, ("int4",), tmp_path, Steps(tmp_path, lambda _: None))
    assert (row.size_bytes, row.quality, calls) == (None, None, {})
    assert "    refused: variant: int4 cannot be made" in chain.table([row])


def test_every_sample_is_in_the_table_with_what_is_made_for_a_gpu(chain: ModuleType) -> None:
    assert set(chain.VARIANTS) == {minilm.NAME, efficientnet.NAME, crepe.NAME}
    assert all({"fp32", "fp16", "bf16", "int8-trt"} <= set(names) for names in chain.VARIANTS.values())
