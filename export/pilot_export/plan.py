"""What an installation would change, before it changes anything: the files, and the configuration as a diff.

A new version comes whole (install.py). The latest is renewed file by file, each by one rename and before its manifest:
all files of a version are variants of one graph that passed the gate, so a server that loads it in between serves a
right one, and one that has loaded keeps the file that it opened. A variant of two files (onnx_files.py) would not
stand that, so it makes a new version.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilot_client.model_config import CONFIG_FILE, version_numbers
from pilot_export import manifest as manifests
from pilot_export.config_file import check_config, first_config, graph_signature, label_file, with_threads
from pilot_export.config_merge import diff, merge
from pilot_export.install import install_files
from pilot_export.onnx_files import data_file, files_of
from pilot_export.recipes import BASE, file_name
from pilot_export.report import VariantReport
from pilot_export.spec import ExportSpec
from pilot_export.spec_check import parse_extra
from pilot_export.versions import GENERATED, kept_config, kept_generated, next_number


@dataclass(frozen=True)
class Plan:
    """All changes to `model_dir`, in their order, as `install_files` takes them.

    config.pbtxt is among `files` where it changes: behind the version that it is for, and before what was generated of
    it, which alone would make the next merge take the export's news for a person's edits.
    """

    model_dir: Path
    version: int
    files: Mapping[str, Path | str]
    removed: Sequence[str]
    config_diff: str

    def apply(self) -> None:
        """Make the changes, all or none.

        Raises:
            InstallError: see install_files.
        """
        install_files(self.model_dir, self.files, self.removed)

    def describe(self) -> str:
        """For a person: a line for each file, then the configuration's diff."""
        lines = [f"Would change {self.model_dir}:"]
        for name in sorted({*self.files, *self.removed}):
            there = (self.model_dir / name).exists()
            mark = "remove" if name in self.removed else "replace" if there else "add"
            lines.append(f"  {mark:<8} {name}")
        return "\n".join([*lines, self.config_diff or f"  {CONFIG_FILE} stays as it is"]).rstrip("\n")


def plan_installation(
    spec: ExportSpec, model_dir: Path, build_dir: Path, variants: Sequence[VariantReport], going_in: Sequence[str]
) -> Plan:
    """The changes that install the variants whose precision is in `going_in`, from their files in `build_dir`.

    Another fp32 graph than the latest version's (other weights, another forward) makes a new version beside it; the
    same one renews the latest, and takes away variants of an earlier export that this one does not vouch for.

    Raises:
        InstallError: config.pbtxt does not fit the graph, or a person and the export changed the same lines of it.
        ConfigError: config.pbtxt cannot be read.
    """
    graph = next(variant.manifest.graph_sha256 for variant in variants if variant.manifest is not None)
    built = {
        variant.precision: files_of(build_dir / file_name(variant.precision))
        for variant in variants
        if variant.precision in going_in
    }
    version = _version(model_dir, graph, [file.name for pair in built.values() if len(pair) > 1 for file in pair])
    files: dict[str, Path | str] = {f"{version}/{name}": path for name, path in spec.assets.items()}
    files |= {label_file(output): "".join(f"{name}\n" for name in names) for output, names in spec.labels.items()}
    for variant in variants:
        if variant.precision in built and variant.manifest is not None:
            files |= {f"{version}/{file.name}": file for file in built[variant.precision]}
            files[f"{version}/{manifests.manifest_name(variant.precision)}"] = manifests.write_text(variant.manifest)
    # A broken manifest must not stop the export that would mend it.
    earlier = manifests.read_version(model_dir / str(version), skip_broken=True)
    judged = {variant.precision for variant in variants}
    stale = [m for m in earlier if f"{version}/{m.file}" not in files and m.precision in judged]
    removed = [
        f"{version}/{name}"
        for m in stale
        for name in (m.file, data_file(Path(m.file)).name, manifests.manifest_name(m.precision))
    ]
    served = {m.file for m in earlier if m not in stale} | {Path(name).name for name in files}
    before, after, generated = _configs(spec, model_dir, build_dir)
    check_config(
        after,
        model_dir / CONFIG_FILE,
        spec.max_batch_size,
        graph_signature(build_dir / file_name(BASE)),
        {name for name in served if name.endswith(".onnx")},
    )
    if before and (latest := max(version_numbers(model_dir), default=version)) != version:
        files[kept_config(latest)] = before
        if (base := model_dir / GENERATED).exists():
            files[kept_generated(latest)] = base.read_text()
    if after != before:
        files[CONFIG_FILE] = after
    if generated is not None:
        files[GENERATED] = generated
    return Plan(model_dir, version, files, removed, diff(before, after, CONFIG_FILE))


def _version(model_dir: Path, graph_sha256: str, pairs: Sequence[str]) -> int:
    """The latest, if it is of this graph and holds none of `pairs`, the files of variants that have two; else the next.

    Files that are no export of ours are not a version of this graph, nor of another.
    """
    versions = version_numbers(model_dir)
    if not versions:
        return next_number(model_dir)
    latest = model_dir / str(versions[-1])
    is_other = any(m.graph_sha256 != graph_sha256 for m in manifests.read_version(latest, skip_broken=True))
    return next_number(model_dir) if is_other or any((latest / name).exists() for name in pairs) else versions[-1]


def _configs(spec: ExportSpec, model_dir: Path, build_dir: Path) -> tuple[str, str, str | None]:
    """config.pbtxt before and after ("" where there is none), and what was generated: the base of the next merge.

    A file of which no export has ever generated a base is a person's own, and stays as it is but for the threads.
    """
    signature = graph_signature(build_dir / file_name(BASE))
    generated = first_config(spec.name, spec.max_batch_size, signature, spec.labels, parse_extra(spec))
    path, base = model_dir / CONFIG_FILE, model_dir / GENERATED
    if not path.exists():
        return "", generated, generated
    before = path.read_text()
    if not base.exists():
        return before, with_threads(before, path), None
    return before, merge(base.read_text(), before, generated, str(path)), generated
