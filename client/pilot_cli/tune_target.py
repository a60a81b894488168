"""What `tune` works on: a spec to export first, or a model that a repository holds; and its untuned configuration.

    build/model_repository/<model>/
        config.pbtxt               after a tune: the chosen one, its first line says so and holds a digest of the rest
        config.untuned.pbtxt       after a tune: what was installed before

A tune starts from the untuned configuration. One that a person has edited since (the digest no longer fits) is theirs:
it becomes the new untuned one. Where a tune ends without an answer, what an earlier one chose comes back.
"""

import contextlib
import hashlib
import io
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot_base.errors import PilotError
from pilot_base.progress import Say
from pilot_client import model_config
from pilot_client.model_config import CONFIG_FILE, latest_version_dir

if TYPE_CHECKING:
    from pilot_export.spec import ExportSpec

UNTUNED_FILE = "config.untuned.pbtxt"
# The first few hold several sizes and lengths.
_NUM_COMPARED_BATCHES = 4
_MARK = "# Chosen by `tritonpilot tune`; what was installed before is in config.untuned.pbtxt. Digest: "


@dataclass(frozen=True)
class Target:
    """`model_dir` lies in the working copy. `spec` is None for a model that was there already. `tuned`: configurations
    that an earlier tune had chosen, which the untuned ones have replaced, by model folder.
    """

    model: str
    model_dir: Path
    spec: "ExportSpec | None"
    tuned: Mapping[Path, str]


def find_target(name: str, committed: Path, build: Path, *, fresh: bool, say: Say) -> Target:
    """Make the working copy and put the model's files into it, exported or as they are.

    Raises:
        PilotError: neither a spec nor a model, the export failed, or the copy is not of the model that is there now.
    """
    from pilot_export.spec import SAMPLES, load_spec
    from pilot_export.working_copy import require_unchanged, working_copy

    copy = working_copy(committed, build)
    if name in SAMPLES or ":" in name or name.endswith(".py"):
        say(f"Reading the spec {name}")
        spec = load_spec(name)
        model_dir = copy / spec.name
        tuned = restore_untuned([model_dir])
        try:
            if not fresh and _is_exported(spec, model_dir, say):
                say(f"{model_dir} holds this export already (--fresh makes it anew)")
            else:
                _export(spec, copy, build / "export" / spec.name, say)
        except BaseException:
            put_back(tuned)
            raise
        return Target(spec.name, model_dir, spec, tuned)
    models = sorted(path.name for path in copy.iterdir() if path.is_dir() and not path.name.startswith("."))
    if name not in models:
        raise PilotError(
            f"{name!r} is neither a sample ({', '.join(SAMPLES)}), nor module:function or file.py of a spec, "
            f"nor a model in {copy} (there: {', '.join(models) or 'none'}). --repository names another repository"
        )
    parts = (name, *_members(copy / name))
    require_unchanged(committed, build, parts)
    tuned = restore_untuned(copy / model for model in parts)
    return Target(name, copy / name, None, tuned)


def _export(spec: "ExportSpec", repository: Path, build_dir: Path, say: Say) -> None:
    from pilot_export.pipeline import export_model

    report = export_model(spec, repository, build_dir=build_dir, say=say)
    for variant in report.variants:
        detail = "; ".join(variant.reasons)
        if variant.speed is not None and variant.status == "installed":
            detail = f"{variant.speed.speedup:.2f} x the speed of fp32"
        click.secho(f"  {variant.precision}: {variant.status}{f' ({detail})' if detail else ''}", err=True)
    say(f"Exported in {report.duration_s:.0f} s")


def _is_exported(spec: "ExportSpec", model_dir: Path, say: Say) -> bool:
    """Whether the installed variants come from the same spec, module, data and libraries, and are intact."""
    from pilot_export import manifest

    version_dir = latest_version_dir(model_dir)
    installed = manifest.read_version(version_dir)
    if not installed or not (model_dir / CONFIG_FILE).is_file():
        return False
    say("Comparing the installed export with the spec")
    # Libraries that load weights talk about it on both streams.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        module = spec.load_module()
    now = (
        *(manifest.weights_sha256(module), manifest.batches_sha256(spec.evaluation), manifest.spec_sha256(spec)),
        manifest.library_versions(),
    )
    return all(
        (m.source_sha256, m.evaluation_sha256, m.spec_sha256, m.versions) == now
        and (version_dir / m.file).is_file()
        and manifest.file_sha256(version_dir / m.file) == m.file_sha256
        for m in installed
    ) and _answers_alike(spec, module, version_dir)


def _answers_alike(spec: "ExportSpec", module: Any, version_dir: Path) -> bool:
    """Whether the module still computes what the fp32 file does: equal weights do not say so. A trace would take the
    time that is to be saved."""
    from pilot_export.gate import EXACT_ERROR_SHARE
    from pilot_export.measures import max_abs_error
    from pilot_export.recipes import BASE, file_name
    from pilot_export.verify import onnx_runner, original_runner

    fp32 = version_dir / file_name(BASE)
    if not fp32.is_file():
        return False
    batches = spec.evaluation[:_NUM_COMPARED_BATCHES]
    expected, found = (list(map(run, batches)) for run in (original_runner(spec, module), onnx_runner(fp32)))
    largest = max(float(abs(array).max()) for batch in expected for array in batch.values())
    return max_abs_error(expected, found) <= EXACT_ERROR_SHARE * max(1.0, largest)


def _members(model_dir: Path) -> list[str]:
    """The models that an ensemble runs; none for what is none."""
    if not (model_dir / CONFIG_FILE).is_file():
        return []
    return sorted({step.model_name for step in model_config.read(model_dir).ensemble_scheduling.step})


def restore_untuned(model_dirs: Iterable[Path]) -> dict[Path, str]:
    """Undo an earlier tune, unless a configuration was edited since. Gives what was replaced, by model folder."""
    replaced = {}
    for model_dir in model_dirs:
        config, untuned = model_dir / CONFIG_FILE, model_dir / UNTUNED_FILE
        if untuned.is_file() and config.is_file() and _is_as_written(tuned := config.read_text()):
            _write(config, untuned.read_text())
            replaced[model_dir] = tuned
    return replaced


def put_back(tuned: Mapping[Path, str]) -> None:
    """Undo `restore_untuned`, but for a configuration that is no longer as it had left it."""
    for model_dir, text in tuned.items():
        config = model_dir / CONFIG_FILE
        if config.is_file() and config.read_text() == (model_dir / UNTUNED_FILE).read_text():
            _write(config, text)


def install_tuned(model_dir: Path, tuned_text: str) -> None:
    """Make `tuned_text` the model's configuration and keep the one that it replaces."""
    config = model_dir / CONFIG_FILE
    if config.is_file():
        shutil.copyfile(config, model_dir / UNTUNED_FILE)
    _write(config, f"{_MARK}{_digest(tuned_text)}\n{tuned_text}")


def _write(config: Path, text: str) -> None:
    """A server that loads the model meanwhile sees the old file or the new one."""
    beside = config.with_name(f".{CONFIG_FILE}.new")
    beside.write_text(text)
    beside.replace(config)


def _is_as_written(text: str) -> bool:
    first, _, rest = text.partition("\n")
    return first == f"{_MARK}{_digest(rest)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
