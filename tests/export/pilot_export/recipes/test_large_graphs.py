"""Every recipe on a graph whose weights lie beside it, as those of more than 2 GB do (here the limit is lower)."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from pilot_export import onnx_files
from pilot_export.errors import VariantError
from pilot_export.making import make_variant
from pilot_export.manifest import file_sha256
from pilot_export.onnx_files import data_file, is_split
from pilot_export.recipes import ONNXRUNTIME_CPU, RECIPES, Made, Recipe, Source
from pilot_export.recipes.rounding import write_rounding_twin
from pilot_export.spec import Thresholds
from pilot_export.steps import Steps
from pilot_export.trace import trace_to_onnx
from pilot_export.verify import onnx_runner
from pilot_testing.specs import doubler_spec

ROWS = np.random.default_rng(0).normal(size=(300, 3, 64)).astype(np.float32)
SPEC = doubler_spec(
    example={"x": ROWS[:2]},
    samples={"x": ROWS[:8]},
    evaluation=[{"x": ROWS[:50]}],
    calibration=[{"x": ROWS[50:]}],
    thresholds=Thresholds(min_mean_cosine=0.9),
    task=None,
)


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.softmax(self.second(torch.relu(self.first(x))), dim=-1)
        return y


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one graph with its weights beside it."""
    folder = tmp_path_factory.mktemp("large")
    with Steps(folder, lambda _: None).run("trace", "Tracing"):
        trace_to_onnx(SPEC, Layers().eval(), folder / "model.fp32.onnx", max_graph_bytes=0)
    return folder


@pytest.fixture
def source(traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """With protobuf's limit: a whole graph with its weights fits into no message."""
    monkeypatch.setattr(onnx_files, "MAX_GRAPH_BYTES", 0)

    def too_large(*_args: Any, **_options: Any) -> None:
        raise ValueError("This protobuf of onnx model is too large (>2GB)")

    def guarded(keep: Any) -> Any:
        def save(model: Any, *args: Any, save_as_external_data: bool = False, **options: Any) -> None:
            held = sum(len(t.raw_data) for t in model.graph.initializer if not is_outside(t))
            if not save_as_external_data and held > 10_000:
                too_large()
            keep(model, *args, save_as_external_data=save_as_external_data, **options)

        return save

    def is_outside(tensor: Any) -> bool:
        return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)

    monkeypatch.setattr(onnx, "save", guarded(onnx.save))
    monkeypatch.setattr(onnx, "save_model", guarded(onnx.save_model))
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", too_large)
    monkeypatch.setattr("onnxruntime.transformers.float16.infer_shapes", too_large)
    return Source(SPEC, traced / "model.fp32.onnx", tmp_path)


@pytest.mark.parametrize("precision", [name for name, recipe in RECIPES.items() if recipe.make is not None])
def test_the_variant_lies_in_two_files_and_answers(precision: str, source: Source, tmp_path: Path) -> None:
    path, recipe = tmp_path / f"model.{precision}.onnx", RECIPES[precision]
    with Steps(tmp_path, lambda _: None).run("make", "Making"):
        make_variant(recipe, source, path)
        first = data_file(path).stat().st_size
        # Again, over its own files: nothing is appended.
        make_variant(recipe, source, path)
    assert data_file(path).stat().st_size == first
    runs = path
    if recipe.stand_in is not None:
        runs = tmp_path / "twin.onnx"
        write_rounding_twin(path, runs)
        assert is_split(runs)
    expected, found = (onnx_runner(file)({"x": ROWS[:50]})["y"] for file in (source.fp32_path, runs))
    cosine = (expected * found).sum() / np.linalg.norm(expected) / np.linalg.norm(found)
    assert cosine > 0.99


def test_what_cannot_be_made_over_2_gb_is_refused_with_the_mend(source: Source, tmp_path: Path) -> None:
    def make(source: Source, path: Path) -> Made:
        onnx.save(onnx.load(str(source.fp32_path)), str(path))
        return Made()

    recipe = Recipe("whole", ONNXRUNTIME_CPU, "in one message", make)
    with pytest.raises(
        VariantError, match=r"whole: graph over 2 GB: .*: serve fp32 or fp16, or make the model smaller"
    ):
        make_variant(recipe, source, tmp_path / "model.whole.onnx")


def test_the_hash_of_a_file_covers_the_weights_beside_it(traced: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes((traced / "model.fp32.onnx").read_bytes())
    alone = file_sha256(path)
    data_file(path).write_bytes(b"weights")
    one = file_sha256(path)
    data_file(path).write_bytes(b"others!")
    assert len({alone, one, file_sha256(path)}) == 3
