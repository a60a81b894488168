"""What the command line says about a model that is not a spec in Python."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Given:
    """None, or nothing, where the source's own default holds.

    `data`: rows.npz for ONNX and TorchScript, texts.txt (a text a line) for a Hugging Face folder.
    `free_axes`: as in ExportSpec; TorchScript says nothing of its own.
    """

    data: Path | None = None
    name: str | None = None
    max_batch_size: int | None = None
    free_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def words(self) -> tuple[str, ...]:
        """The options that were given, as they are written on the command line."""
        axes = [f"{name}:{axis}={label}" for name, free in self.free_axes.items() for axis, label in free.items()]
        return (
            *(("--data", str(self.data)) if self.data is not None else ()),
            *(("--name", self.name) if self.name is not None else ()),
            *(("--max-batch-size", str(self.max_batch_size)) if self.max_batch_size is not None else ()),
            *(word for axis in axes for word in ("--free-axis", axis)),
        )
