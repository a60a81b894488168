"""The module as a torch.export package and as TorchScript: rows of the report, equal on other sizes, and served."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pilot_client.infer import infer
from pilot_client.model_config import read
from pilot_export import ExportSpec, export_model
from pilot_export.manifest import read_all
from pilot_export.report import VariantReport
from pilot_export.sources.given import Given
from pilot_export.sources.torchscript import torchscript_spec
from pilot_server.running import RunningServer
from pilot_testing.specs import Doubler, doubler_spec, rows


def export(spec: ExportSpec, tmp_path: Path) -> tuple[VariantReport, ...]:
    """The rows of fp32, the package and the script."""
    report = export_model(
        spec,
        tmp_path / "repository",
        build_dir=tmp_path / "build",
        precisions=[],
        with_torch=True,
        window_s=0.01,
    )
    assert report.installed == ("fp32",)
    return report.variants


@pytest.mark.triton
def test_the_package_is_served_and_the_script_is_configured_for_nvidia_s_backend(
    tmp_path: Path, start_server: Callable[..., RunningServer]
) -> None:
    _, *of_torch = export(doubler_spec(), tmp_path)
    assert [(row.precision, row.status, row.reasons) for row in of_torch] == [
        ("pt2", "built, unjudged", ()),
        ("torchscript", "built, unjudged", ()),
    ]
    folder = tmp_path / "build" / "torch"
    for row, kind in zip(of_torch, ("package", "torchscript"), strict=True):
        (listed,) = read_all(folder / kind)
        assert listed.manifest == row.manifest
        assert row.quality is not None
        assert row.quality.max_abs_error < 1e-5
        assert listed.manifest.file_bytes == (folder / kind / "doubler" / "1" / listed.manifest.file).stat().st_size
        assert listed.manifest.command == "tritonpilot export model doubler --triton 24.10 --torch"
    script = read(folder / "torchscript" / "doubler")
    assert (script.backend, script.output[0].name, script.input[0].name) == ("pytorch", "y__0", "x")
    served = shutil.copytree(folder / "package", tmp_path / "served")
    server = start_server(served)
    data = rows(7, seed=3)
    assert np.allclose(infer(server.grpc_url, "doubler", {"x": data})["y"], 2 * data + 1, atol=1e-5)


def test_a_script_that_holds_one_size_only_fails_alone(tmp_path: Path) -> None:
    class Mean(Doubler):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # A Python number: a trace keeps that of the example.
            return super().forward(x) / (float(len(x.numpy())) if torch.jit.is_tracing() else x.shape[0])

    _, package, script = export(replace(doubler_spec(Mean), task=None), tmp_path)
    assert package.status == "built, unjudged"
    assert script.status == "failed gate"
    assert "an output is off by" in script.reasons[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_file_stays_what_it_is(tmp_path: Path) -> None:
    path, data = tmp_path / "doubler.pt", tmp_path / "rows.npz"
    torch.jit.script(Doubler().eval()).save(str(path))
    np.savez(data, x=rows())
    _, package, script = export(torchscript_spec(path, Given(data=data)), tmp_path)
    assert package.status == "not made"
    assert "torch.export follows Python code, and TorchScript has none" in package.reasons[0]
    assert (script.status, script.reasons) == ("built, unjudged", ())


def test_a_module_that_torch_export_refuses_is_a_row_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise RuntimeError("\nno such operator\nmore")

    monkeypatch.setattr("torch.export.save", refuse)
    _, package, script = export(doubler_spec(), tmp_path)
    assert package.reasons == ("trace: the module cannot be written as torch.export package: no such operator",)
    assert script.status == "built, unjudged"
