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

    def names(self) -> list[str]:
        """The options that were given, as they are written on the command line."""
        options = {
            "--data": self.data is not None,
            "--name": self.name is not None,
            "--max-batch-size": self.max_batch_size is not None,
            "--free-axis": bool(self.free_axes),
        }
        return [option for option, is_given in options.items() if is_given]
