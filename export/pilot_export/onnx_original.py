"""An ONNX file in the place of a PyTorch module: the original is then the file itself.

What its export proves: that the variants are as good as the file. What it cannot prove: that the file is as good as
the model that it once came from.
"""

from dataclasses import dataclass
from pathlib import Path

SAYS = (
    "the original is an ONNX file: variants are compared with it in fp32, and nothing here says that it equals the "
    "model it was made from"
)


@dataclass(frozen=True)
class OnnxOriginal:
    """What `load_module` returns for an ONNX file."""

    path: Path
