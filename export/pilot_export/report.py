"""What an export found: one row per variant, installed or not, with the reasons."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pilot_export.manifest import Manifest
from pilot_export.measures import Quality
from pilot_export.speed import Speed
from pilot_export.steps import StepRecord

VariantStatus = Literal["installed", "passed", "failed gate", "forced", "not made", "built, unjudged"]


@dataclass(frozen=True)
class VariantReport:
    """`passed`: good, but not installed (a dry run, or a TensorRT plan, which stays in the build folder); `forced`:
    failed its gate and is installed nevertheless; `built, unjudged`: as good as it must be, but made for hardware that
    this machine has not, or for another backend, so it stays in the build folder.

    `reasons` say why the gate failed, or why the variant could not be made (then there are no measures).
    """

    precision: str
    target: str
    status: VariantStatus
    reasons: tuple[str, ...]
    quality: Quality | None = None
    speed: Speed | None = None
    manifest: Manifest | None = None

    @property
    def is_installed(self) -> bool:
        return self.status in ("installed", "forced")


@dataclass(frozen=True)
class ExportReport:
    """`model_dir` is None where nothing was installed; `version` and `changes` are what was, or would be."""

    model: str
    spec: str
    build_dir: Path
    model_dir: Path | None
    version: int
    changes: str
    variants: tuple[VariantReport, ...]
    steps: tuple[StepRecord, ...]
    duration_s: float

    @property
    def installed(self) -> tuple[str, ...]:
        """Precisions that the repository now holds from this export."""
        return tuple(variant.precision for variant in self.variants if variant.is_installed)
