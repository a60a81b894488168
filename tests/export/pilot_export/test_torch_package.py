"""The module as a torch.export package and as TorchScript: equal on other sizes, and served."""

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
from pilot_export.errors import TraceError
from pilot_server.running import RunningServer
from pilot_testing.specs import Doubler, doubler_spec, rows


def export(spec: ExportSpec, tmp_path: Path) -> Path:
    """The folder of both packages."""
    export_model(
        spec,
        tmp_path / "repository",
        build_dir=tmp_path / "build",
        precisions=[],
        dry_run=True,
        with_torch=True,
        window_s=0.01,
    )
    return tmp_path / "build" / "torch"


@pytest.mark.triton
def test_the_package_is_served_and_the_script_is_configured_for_nvidia_s_backend(
    tmp_path: Path, start_server: Callable[..., RunningServer]
) -> None:
    folder = export(doubler_spec(), tmp_path)
    script = read(folder / "torchscript" / "doubler")
    assert (script.backend, script.output[0].name, script.input[0].name) == ("pytorch", "y__0", "x")
    assert (folder / "torchscript" / "doubler" / "1" / "model.pt").is_file()
    served = shutil.copytree(folder / "package", tmp_path / "served")
    server = start_server(served)
    data = rows(7, seed=3)
    assert np.allclose(infer(server.grpc_url, "doubler", {"x": data})["y"], 2 * data + 1, atol=1e-5)


def test_a_script_that_holds_one_size_only_is_refused(tmp_path: Path) -> None:
    class Mean(Doubler):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # A Python number: a trace keeps that of the example.
            return super().forward(x) / (float(len(x.numpy())) if torch.jit.is_tracing() else x.shape[0])

    with pytest.raises(TraceError, match="the torchscript is not equal to the module: an output is off by"):
        export(replace(doubler_spec(Mean), task=None), tmp_path)
