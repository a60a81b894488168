"""`tensorrt` on a machine with a GPU, `tensorrt_rtx` on one without: what builds here, and under which name."""

import importlib
import subprocess
from dataclasses import dataclass
from typing import Any

from pilot_export.errors import TensorRtError

NVIDIA_SMI = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Library:
    """`module` is the imported package; `gpu` the name of the first GPU, "" for none."""

    module: Any
    gpu: str

    @property
    def is_rtx(self) -> bool:
        return str(self.module.__name__) == "tensorrt_rtx"

    @property
    def name(self) -> str:
        return f"{'TensorRT-RTX' if self.is_rtx else 'TensorRT'} {self.module.__version__}"


def find_library() -> Library:
    """The package that can build on this machine.

    Raises:
        TensorRtError: none is installed, with what to install.
    """
    gpu = first_gpu()
    for name in ("tensorrt", "tensorrt_rtx") if gpu else ("tensorrt_rtx",):
        try:
            return Library(importlib.import_module(name), gpu)
        except ImportError:
            continue
    wanted = "tensorrt" if gpu else "tritonpilot[tensorrt-rtx]"
    raise TensorRtError(f"no TensorRT package is installed that builds on this machine: pip install {wanted}")


def first_gpu() -> str:
    """The first GPU's name, "" where nvidia-smi finds none."""
    try:
        done = subprocess.run(NVIDIA_SMI, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""
