"""The whole way with small modules: what is installed, what is not, and why."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner

from pilot_cli.main import cli
from pilot_client.infer import infer
from pilot_client.model_config import version_numbers
from pilot_client.repository import load
from pilot_export import ExportSpec, export_model, load_spec, onnx_files
from pilot_export.errors import ExportError, InstallError, SpecError, VerifyError
from pilot_export.install import install_files
from pilot_export.manifest import read_all
from pilot_export.recipes import ONNXRUNTIME_CPU, RECIPES, Made, Recipe, Source
from pilot_export.report import ExportReport
from pilot_export.verify import onnx_runner
from pilot_export.versions import Change, roll_back
from pilot_server.running import RunningServer
from pilot_testing.specs import Doubler, doubler_spec, graph_spec

EXAMPLE = Path(__file__).parents[3] / "export" / "examples" / "spirals.py"


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def write_noise(source: Source, path: Path) -> Made:
    """A variant whose weights are wrong."""
    model = onnx.load(str(source.fp32_path))
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(-array, tensor.name))
    onnx.save(model, str(path))
    return Made(("every weight has the other sign",))


def write_garbage(_source: Source, path: Path) -> Made:
    path.write_bytes(b"not an ONNX file")
    return Made()


def copy(source: Source, path: Path) -> Made:
    shutil.copyfile(source.fp32_path, path)
    return Made()


def fail(_source: Source, _path: Path) -> Made:
    raise RuntimeError("no such kernel")


BAD_RECIPES = {
    "fp32": RECIPES["fp32"],
    "noise": Recipe("noise", ONNXRUNTIME_CPU, "negated weights", write_noise),
    "garbage": Recipe("garbage", ONNXRUNTIME_CPU, "no ONNX file", write_garbage),
    "failing": Recipe("failing", ONNXRUNTIME_CPU, "a quantiser that fails", fail),
    "elsewhere": Recipe("elsewhere", "a GPU", "the same graph, for other hardware", copy),
}


def export(spec: ExportSpec, tmp_path: Path, **kwargs: Any) -> ExportReport:
    """Into tmp_path / "a repository", with windows too short to measure anything."""
    return export_model(spec, tmp_path / "a repository", build_dir=tmp_path / "build", window_s=0.01, **kwargs)


def test_bad_variants_are_rows_with_reasons_and_are_not_installed(tmp_path: Path) -> None:
    report = export(doubler_spec(), tmp_path, recipes=BAD_RECIPES, precisions=list(BAD_RECIPES))
    status = {variant.precision: variant.status for variant in report.variants}
    reasons = {variant.precision: "; ".join(variant.reasons) for variant in report.variants}
    assert status == {
        "fp32": "installed",
        "noise": "failed gate",
        "garbage": "not made",
        "failing": "not made",
        "elsewhere": "built, unjudged",
    }
    assert "mean cosine -" in reasons["noise"]
    assert "sign may drop" in reasons["noise"]
    assert "model.garbage.onnx is not valid ONNX" in reasons["garbage"]
    assert "no such kernel" in reasons["failing"]
    assert report.variants[-1].speed is None
    assert files(tmp_path / "a repository" / "doubler") == {
        "config.pbtxt",
        ".versions/generated.pbtxt",
        *(f"1/model.{name}.{kind}" for name in ("fp32",) for kind in ("onnx", "json")),
    }
    assert json.loads((tmp_path / "build" / "report.json").read_text())["variants"][1]["status"] == "failed gate"
    assert all((tmp_path / "build" / name).exists() for name in ("steps.json", "reproduce.sh", "logs/trace.log"))


def test_a_forced_variant_says_so_and_goes_when_it_is_judged_again(tmp_path: Path) -> None:
    version_dir = tmp_path / "a repository" / "doubler" / "1"
    both = {"fp32": RECIPES["fp32"], "noise": BAD_RECIPES["noise"]}
    report = export(graph_spec(tmp_path), tmp_path, recipes=both, force=["noise"], precisions=["noise"])
    assert report.installed == ("fp32", "noise")
    forced = next(i.manifest for i in read_all(tmp_path / "a repository") if i.manifest.precision == "noise")
    assert any("mean cosine" in reason for reason in forced.failed_gate)

    (version_dir / "notes.txt").write_text("a person's own file")
    (version_dir / "model.fp32.json").write_text("broken")
    export(graph_spec(tmp_path), tmp_path, recipes=both, precisions=["noise"])
    assert files(version_dir) == {"model.fp32.onnx", "model.fp32.json", "notes.txt"}


def test_other_weights_make_a_new_version_and_keep_the_hand_edits(tmp_path: Path) -> None:
    model_dir = tmp_path / "a repository" / "doubler"
    other = graph_spec(tmp_path, factor=3.0, max_batch_size=4)
    export(graph_spec(tmp_path), tmp_path, precisions=[])
    config = model_dir / "config.pbtxt"
    edited = config.read_text().replace("count: 1", "count: 2  # two cores")
    config.write_text(edited)

    would = export(other, tmp_path, precisions=[], dry_run=True)
    assert "  add      2/model.fp32.onnx" in would.changes.splitlines()
    assert "-max_batch_size: 16\n+max_batch_size: 4\n" in would.changes
    assert files(model_dir / "1") == {"model.fp32.onnx", "model.fp32.json"}
    assert config.read_text() == edited

    report = export(other, tmp_path, precisions=[])
    assert (report.version, version_numbers(model_dir)) == (2, [1, 2])
    assert config.read_text() == edited.replace("max_batch_size: 16", "max_batch_size: 4")
    assert roll_back(model_dir) == Change(before=2, now=1, config_is_restored=True)
    assert config.read_text() == edited
    # What came back with version 1 is no hand edit: the same export is merged as it was.
    report = export(other, tmp_path, precisions=[])
    assert (report.version, version_numbers(model_dir)) == (3, [1, 3])
    assert config.read_text() == edited.replace("max_batch_size: 16", "max_batch_size: 4")


def test_another_forward_over_the_same_weights_is_another_version(tmp_path: Path) -> None:
    def edited(factor: float) -> type[Doubler]:
        """The same name and the same weights, as after an edit of the file."""

        class Edited(Doubler):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return factor * super().forward(x)

        return Edited

    assert [export(doubler_spec(edited(factor)), tmp_path, precisions=[]).version for factor in (1.5, 2.5)] == [1, 2]


def test_a_dry_run_installs_nothing(tmp_path: Path) -> None:
    report = export(doubler_spec(), tmp_path, precisions=["int8"], dry_run=True)
    assert [variant.status for variant in report.variants] == ["passed", "passed"]
    assert report.installed == ()
    assert not (tmp_path / "a repository").exists()


def test_a_graph_that_is_not_the_module_stops_the_export(tmp_path: Path) -> None:
    class Drifting(Doubler):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # What tracing cannot see: state outside the graph.
            Drifting.calls += 1
            return super().forward(x) + 0.01 * Drifting.calls

    with pytest.raises(VerifyError, match="not equal to the original: an output is off by"):
        export(doubler_spec(Drifting), tmp_path, precisions=[])
    assert not (tmp_path / "a repository").exists()


def test_a_config_that_does_not_fit_leaves_the_repository_as_it_was(tmp_path: Path) -> None:
    config = tmp_path / "a repository" / "doubler" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    config.write_text('backend: "onnxruntime" max_batch_size: 99')
    with pytest.raises(InstallError, match="max_batch_size is 99"):
        export(graph_spec(tmp_path), tmp_path, precisions=[])
    assert files(tmp_path / "a repository") == {"doubler/config.pbtxt"}


def test_a_person_s_own_config_gets_this_machine_s_threads_and_nothing_else(tmp_path: Path) -> None:
    config = tmp_path / "a repository" / "doubler" / "config.pbtxt"
    config.parent.mkdir(parents=True)
    own = '# mine\nbackend: "onnxruntime"\nmax_batch_size: 8\ndefault_model_filename: "model.fp32.onnx"\n'
    config.write_text(own)
    would = export(graph_spec(tmp_path), tmp_path, precisions=[], dry_run=True)
    assert '+  key: "intra_op_thread_count"' in would.changes.splitlines()
    assert config.read_text() == own
    for _ in range(2):
        export(graph_spec(tmp_path), tmp_path, precisions=[])
        assert config.read_text().startswith(own)
        assert config.read_text().count('key: "intra_op_thread_count"') == 1


def test_a_report_that_cannot_be_written_does_not_hide_what_is_installed(tmp_path: Path) -> None:
    (tmp_path / "build" / "report.json").mkdir(parents=True)
    with pytest.raises(
        ExportError, match=r"cannot be written: Is a directory; the files are installed as version 1 in"
    ):
        export(graph_spec(tmp_path), tmp_path, precisions=[])
    assert (tmp_path / "a repository" / "doubler" / "1" / "model.fp32.onnx").is_file()
    (tmp_path / "build" / "reproduce.sh").unlink()
    (tmp_path / "build" / "reproduce.sh").mkdir()
    with pytest.raises(ExportError, match=r"cannot be written: Is a directory; the repository is as it was"):
        export(graph_spec(tmp_path), tmp_path, precisions=[])


def test_a_variant_of_two_files_is_not_renewed_in_place(tmp_path: Path) -> None:
    def split(source: Source, path: Path) -> Made:
        data = onnx_files.data_file(path)
        data.unlink(missing_ok=True)
        onnx.save(onnx.load(source.fp32_path), path, save_as_external_data=True, location=data.name, size_threshold=0)
        return Made()

    recipes = {"fp32": RECIPES["fp32"], "split": Recipe("split", ONNXRUNTIME_CPU, "two files", split)}
    for version, precisions in ((1, []), (1, ["split"]), (2, ["split"])):
        report = export(graph_spec(tmp_path), tmp_path, recipes=recipes, precisions=precisions)
        assert report.version == version
    assert "model.split.onnx.data" in files(tmp_path / "a repository" / "doubler" / "2")


def test_an_unknown_precision_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no recipe for precision 'int3'; there are fp32, fp32-opt, int8"):
        export(doubler_spec(), tmp_path, precisions=["int3"])
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"force": ["fp16"]}, r"fp16 is made for a GPU .*, and models are installed for onnxruntime on a CPU"),
        ({"precisions": ["int8-static"]}, "int8-static takes the ranges of activations from calibration data, and"),
    ],
)
def test_what_cannot_be_made_or_installed_is_refused_before_any_work(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        export(doubler_spec(), tmp_path, **options)
    assert not (tmp_path / "build").exists()


def test_a_variant_for_a_gpu_is_compared_and_stays_in_the_build_folder(tmp_path: Path) -> None:
    report = export(doubler_spec(), tmp_path, precisions=["fp16"])
    variant = report.variants[1]
    assert (variant.status, variant.speed, variant.reasons) == ("built, unjudged", None, ())
    assert variant.quality is not None
    assert 1e-6 < variant.quality.max_rel_error < 1e-2
    assert variant.manifest is not None
    assert any("build_plan.sh" in note for note in variant.manifest.notes)
    assert not (tmp_path / "a repository" / "doubler" / "1" / "model.fp16.onnx").exists()
    assert (tmp_path / "build" / "tensorrt" / "fp16" / "plan" / "doubler" / "config.pbtxt").is_file()


@pytest.mark.triton
def test_the_example_is_exported_served_and_answers_as_pytorch(
    tmp_path: Path, start_server: Callable[..., RunningServer]
) -> None:
    repository, build = tmp_path / "a repository", tmp_path / "build"
    repository.mkdir()
    server = start_server(repository)
    # --url: the server that runs loads the model as soon as it is installed.
    command = ["export", "model", str(EXAMPLE), "--precision", "fp32", "--url", server.grpc_url, "--json"]
    result = CliRunner().invoke(
        cli, [*command, "--repository", str(repository), "--build-dir", str(build)], catch_exceptions=False
    )
    (variant,) = json.loads(result.stdout)["variants"]
    assert variant["quality"]["task"]["original"] > 0.95
    # The file is equal to the module that the command trained, and the server to the file.
    assert variant["quality"]["max_abs_error"] < 1e-4
    data = load_spec(str(EXAMPLE)).samples["point"][:64]
    expected = onnx_runner(build / "model.fp32.onnx")({"point": data})["logits"]
    assert np.allclose(infer(server.grpc_url, "spirals", {"point": data})["logits"], expected, atol=1e-4)
    assert np.allclose(
        infer(server.http_url, "spirals", {"point": data}, protocol="http")["logits"], expected, atol=1e-4
    )
    # Over the running model: the server goes on, and the next load takes the new file.
    install_files(repository / "spirals", {"1/model.fp32.onnx": build / "model.fp32.onnx"})
    load(server.grpc_url, "spirals")
    assert np.allclose(infer(server.grpc_url, "spirals", {"point": data})["logits"], expected, atol=1e-4)
