"""What the GPUs of this machine do, through NVML; nothing where there is no NVML, no driver or no GPU.

NVML comes with the driver; its Python binding (the package nvidia-ml-py) is optional.
"""

from dataclasses import dataclass
from typing import Any

MW_PER_W = 1000.0


@dataclass(frozen=True)
class GpuReading:
    """`busy` is the share of NVML's own last sampling period, mean over the GPUs; the others are sums over them."""

    busy: float
    memory_bytes: int
    power_w: float | None


class Gpus:
    """The GPUs that NVML shows. Used by one thread."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            import pynvml
        except ImportError:
            return
        try:
            pynvml.nvmlInit()
            self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError:
            return
        self._nvml = pynvml

    def names(self) -> list[str]:
        """The product name of each."""
        if self._nvml is None:
            return []
        names = [self._nvml.nvmlDeviceGetName(handle) for handle in self._handles]
        return [name.decode() if isinstance(name, bytes) else str(name) for name in names]

    def read(self) -> GpuReading | None:
        """None where there is no GPU, or it does not answer."""
        if self._nvml is None or not self._handles:
            return None
        try:
            busy = [self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100.0 for handle in self._handles]
            memory = [int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in self._handles]
        except self._nvml.NVMLError:
            return None
        return GpuReading(sum(busy) / len(busy), sum(memory), self._power_w())

    def _power_w(self) -> float | None:
        """Some GPUs do not tell."""
        try:
            return float(sum(map(self._nvml.nvmlDeviceGetPowerUsage, self._handles)) / MW_PER_W)
        except self._nvml.NVMLError:
            return None
