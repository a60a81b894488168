"""The knobs of one configuration. `config_override` writes them into a model configuration.

None leaves what the installed config.pbtxt says; the knobs that are all None are the untuned configuration.
"""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Knobs:
    """One configuration. Frozen and hashable: it is the key under which measurements are found."""

    # "fp32" serves 1/model.fp32.onnx, through default_model_filename.
    precision: str | None = None
    instances: int | None = None
    intra_op_threads: int | None = None
    # 1 switches dynamic batching off, anything above switches it on.
    max_batch: int | None = None
    queue_delay_us: int | None = None

    def __str__(self) -> str:
        named = (
            ("", self.precision),
            ("instances ", self.instances),
            ("threads ", self.intra_op_threads),
            ("max batch ", self.max_batch),
            ("delay us ", self.queue_delay_us if (self.max_batch or 2) > 1 else None),
        )
        return ", ".join(f"{name}{value}" for name, value in named if value is not None) or "untuned"

    @property
    def is_untuned(self) -> bool:
        return all(value is None for value in self.as_dict().values())

    def oversubscribes(self, cpus: int) -> bool:
        """Whether the instances' threads are known to outnumber the cores."""
        return (self.instances or 1) * (self.intra_op_threads or 1) > cpus

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


UNTUNED = Knobs()
