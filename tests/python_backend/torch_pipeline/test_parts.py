"""Settings, packages, buffers and groups: the parts without threads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pilot_torch.archive import check_archive
from pilot_torch.buffers import MIN_BYTES, BufferPool, as_tensor
from pilot_torch.device import copies_of
from pilot_torch.errors import LoadError
from pilot_torch.grouping import OutputError, group_requests, split_outputs
from pilot_torch.machine import usable_cpus
from pilot_torch.module_source import find_function, load_module, open_package
from pilot_torch.settings import read_settings
from pilot_torch.signature import complete
from safetensors.torch import save_file

from pilot_base.cpus import usable_cpus as project_usable_cpus

CPU = torch.device("cpu")


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def config(**parameters: str) -> dict[str, Any]:
    return {
        "max_batch_size": 8,
        "output": [{"name": "y"}],
        "parameters": {key: {"string_value": text} for key, text in parameters.items()},
    }


def test_cpus_are_shared_among_instances_unless_told_otherwise() -> None:
    two = {**config(), "instance_group": [{"count": 2}]}
    assert read_settings(two, usable_cpus=8).intra_op_threads == 4
    assert read_settings(config(intra_op_thread_count="3"), usable_cpus=8).intra_op_threads == 3


@pytest.mark.parametrize("limit", ["max 100000", "150000 100000", "50000 100000", None])
def test_a_container_s_limit_counts_as_for_the_rest_of_the_project(tmp_path: Path, limit: str | None) -> None:
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert usable_cpus(tmp_path) == project_usable_cpus(tmp_path)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"modul": "m.py:f"}, "'modul' }.* not known"),
        ({"intra_op_thread_count": "0"}, "at least 1"),
        ({"batches_in_flight": "many"}, "'many': a whole number"),
        ({"weights": "w.safetensors"}, "no `module`"),
        ({"module": ""}, "is empty"),
        ({"module_outputs": "a, b"}, "only `postprocess` can turn them"),
    ],
)
def test_a_wrong_parameter_is_named(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        read_settings(config(**parameters), usable_cpus=2)


def write_module(folder: Path, weights: dict[str, torch.Tensor]) -> None:
    (folder / "net.py").write_text(
        "import torch\n\nnothing = 3\n\n\ndef build():\n    return torch.nn.Linear(2, 1).train()\n"
    )
    save_file(weights, folder / "model.safetensors")


def test_code_and_safetensors_give_the_module_in_eval_mode(tmp_path: Path) -> None:
    write_module(tmp_path, {"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([0.5])})
    module = load_module(read_settings(config(module="net.py:build"), 1), tmp_path, CPU)
    assert not module.training
    assert module(torch.tensor([[10.0, 20.0]])).tolist() == [[50.5]]
    assert not any(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"module": "net.py:nosuch"}, "has no function 'nosuch'"),
        ({"module": "net.py:nothing"}, "has no function 'nothing'"),
        ({"module": "nosuch.py:build"}, "cannot be imported"),
        ({"module": "build"}, "FILE.py:FUNCTION"),
        ({"module": "net.py:build", "weights": "model.pth"}, "only .safetensors is read"),
        ({"module": "net.py:build", "weights": "nosuch.safetensors"}, "cannot be read"),
        ({"module": "net.py:build"}, "does not fit the module: .*Missing key"),
    ],
)
def test_what_keeps_the_module_from_loading_is_named(tmp_path: Path, parameters: dict[str, str], message: str) -> None:
    write_module(tmp_path, {"weight": torch.zeros(1, 2)})
    with pytest.raises(LoadError, match=message):
        load_module(read_settings(config(**parameters), 1), tmp_path, CPU)


def write_package(path: Path, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Path:
    free = {0: torch.export.Dim.DYNAMIC}
    shapes: Any = {"x": free}
    torch.export.save(torch.export.export(module.eval(), args, kwargs, dynamic_shapes=shapes), path)
    return path


@pytest.mark.parametrize("is_named", [True, False])
def test_a_package_runs_by_name_however_it_was_traced(tmp_path: Path, is_named: bool) -> None:
    example = torch.ones(3, 2)
    args, kwargs = ((), {"x": example}) if is_named else ((example,), {})
    write_package(tmp_path / "model.pt2", Scale(), *args, **kwargs)
    module = load_module(read_settings(config(), 1), tmp_path, CPU)
    assert module(x=torch.tensor([[1.0, 1.0]])).tolist() == [[2.0, 3.0]]


def test_a_package_completes_the_configuration(tmp_path: Path) -> None:
    program = open_package(write_package(tmp_path / "model.pt2", Scale(), torch.ones(3, 2)))
    found: dict[str, Any] = {"max_batch_size": 0}
    complete(found, program)
    assert found["max_batch_size"] == 4
    assert found["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [2]}]
    assert [(entry["data_type"], entry["dims"]) for entry in found["output"]] == [("TYPE_FP32", [2])]


class Payload:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def test_a_package_with_a_pickle_in_it_is_refused_unopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import zipfile

    monkeypatch.chdir(tmp_path)
    good = write_package(tmp_path / "good.pt2", Scale(), torch.ones(3, 2))
    check_archive(good)
    pickled = io.BytesIO()
    torch.save(Payload(), pickled)
    for member, content in (
        ("good/data/sample_inputs/model.pt", pickled.getvalue()),
        ("good/data/weights/model_weights_config.json", b'{"config": {"w": {"use_pickle": true, "path_name": "x"}}}'),
        (
            "good/data/constants/model_constants_config.json",
            b'{"config": {"c": {"use_pickle": false, "path_name": "o"}}}',
        ),
    ):
        with zipfile.ZipFile(good) as source, zipfile.ZipFile("bad.pt2", "w") as target:
            assert member in source.namelist()
            for name in source.namelist():
                target.writestr(name, content if name == member else source.read(name))
        with pytest.raises(LoadError, match=r"is pickled in it|more than tensors"):
            open_package(tmp_path / "bad.pt2")
    assert not Path("executed").exists()


def test_what_is_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.pt2").write_bytes(b"no zip")
    with pytest.raises(LoadError, match=r"no package of torch.export.save"):
        check_archive(tmp_path / "model.pt2")
    with pytest.raises(LoadError, match="does not exist"):
        check_archive(tmp_path / "nosuch.pt2")


def test_a_function_of_an_installed_module_is_found(tmp_path: Path) -> None:
    assert find_function("math:sqrt", tmp_path, "preprocess")(9) == 3


def test_requests_of_one_shape_and_type_run_together_and_get_their_own_rows() -> None:
    pool = BufferPool(is_pinned=False)
    requests = {
        0: {"x": torch.full((2, 3), 1.0)},
        2: {"x": torch.full((1, 3), 2.0)},
        3: {"x": torch.full((1, 4), 3.0)},
        5: {"x": torch.full((1, 3), 4, dtype=torch.int64)},
    }
    groups = group_requests(requests, pool, is_batched=True)
    assert [group.members for group in groups] == [(0, 2), (3,), (5,)]
    assert groups[0].inputs["x"].tolist() == [[1.0] * 3, [1.0] * 3, [2.0] * 3]
    parts = split_outputs(groups[0], {"y": groups[0].inputs["x"] * 10}, is_batched=True)
    assert {place: part["y"].tolist() for place, part in parts.items()} == {0: [[10.0] * 3] * 2, 2: [[20.0] * 3]}
    with pytest.raises(OutputError, match="its first dimension is no batch"):
        split_outputs(groups[0], {"y": torch.ones(2)}, is_batched=True)


def test_without_a_batch_dimension_every_request_runs_alone() -> None:
    requests = {place: {"x": torch.ones(3)} for place in range(3)}
    groups = group_requests(requests, BufferPool(is_pinned=False), is_batched=False)
    assert [group.members for group in groups] == [(0,), (1,), (2,)]


def test_a_buffer_is_lent_to_one_at_a_time_and_used_again() -> None:
    pool = BufferPool(is_pinned=False)
    first, second = pool.take(10_000), pool.take(10_000)
    assert first.data_ptr() != second.data_ptr()
    pool.give_back([first])
    assert pool.take(16_000).data_ptr() == first.data_ptr()
    assert pool.num_made == 2
    assert pool.take(0).numel() == MIN_BYTES


def test_buffers_of_outputs_go_back_when_one_cannot_be_copied() -> None:
    class Short(BufferPool):
        """Has no memory for a third buffer."""

        def take(self, num_bytes: int) -> torch.Tensor:
            if self.num_made == 2:
                raise MemoryError("no pinned memory left")
            return super().take(num_bytes)

    pool = Short(is_pinned=False)
    lent_when_settled = []
    results = {name: torch.full((2, 3), value) for name, value in (("a", 1.0), ("b", 2.0), ("c", 3.0))}
    with pytest.raises(MemoryError, match="no pinned memory left"):
        copies_of(results, pool, lambda: lent_when_settled.append(pool.num_made - pool.num_idle))
    assert (lent_when_settled, pool.num_idle) == ([2], 2)
    outputs, buffers = copies_of({"b": results["b"]}, BufferPool(is_pinned=False), lambda: None)
    assert torch.equal(outputs["b"], results["b"])
    assert outputs["b"].data_ptr() == buffers[0].data_ptr()


def test_a_buffer_holds_any_type() -> None:
    buffer = BufferPool(is_pinned=False).take(100)
    for dtype in (torch.bool, torch.float16, torch.int64):
        tensor = as_tensor(buffer, (2, 3), dtype)
        tensor.fill_(1)
        assert (tensor.shape, tensor.dtype, int(tensor.sum())) == ((2, 3), dtype, 6)
