"""The knobs of one configuration. `config_override` writes them into a model configuration.

None leaves what the installed config.pbtxt says; the knobs that are all None are the untuned configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

SharedMemory = Literal["none", "system", "cuda"]


@dataclass(frozen=True)
class Knobs:
    """One configuration. Frozen and hashable: it is the key under which measurements are found."""

    # "fp32" serves 1/model.fp32.onnx, through default_model_filename.
    precision: str | None = None
    # On a machine with GPUs: for each GPU.
    instances: int | None = None
    intra_op_threads: int | None = None
    # 1 switches dynamic batching off, anything above switches it on.
    max_batch: int | None = None
    queue_delay_us: int | None = None
    # The batcher waits (up to the queue delay) for a batch of this size, and does not wait once it is there.
    preferred_batch: int | None = None
    # Of a language model: the engine's own arguments, by vLLM's names.
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    # "system" or "cuda": the client passes tensors through shared memory. No configuration says so; None: as the study
    # sends otherwise.
    shared_memory: SharedMemory | None = None
    # The queue's policy, which protects what was tuned (queue_policy.py); no search moves it. A request that finds so
    # many waiting is refused, and so is one that has waited so long.
    max_queue_size: int | None = None
    queue_timeout_us: int | None = None
    # Of an ensemble: the knobs of its members, by name, each member at most once and in the order of names.
    members: tuple[tuple[str, "Knobs"], ...] = ()

    def __str__(self) -> str:
        batches = (self.max_batch or 2) > 1
        named = (
            ("", self.precision),
            ("instances ", self.instances),
            ("threads ", self.intra_op_threads),
            ("max batch ", self.max_batch),
            ("preferred batch ", self.preferred_batch if batches else None),
            ("delay us ", self.queue_delay_us if batches else None),
            ("max seqs ", self.max_num_seqs),
            ("max batched tokens ", self.max_num_batched_tokens),
            ("block size ", self.block_size),
            ("shared memory ", self.shared_memory),
            ("queue at most ", self.max_queue_size),
            ("queue timeout us ", self.queue_timeout_us),
        )
        own = [f"{name}{value}" for name, value in named if value is not None]
        return ", ".join([*own, *(f"{name} ({knobs})" for name, knobs in self.members)]) or "untuned"

    @property
    def is_untuned(self) -> bool:
        return self == UNTUNED

    def oversubscribes(self, cpus: int) -> bool:
        """Whether the instances' threads, those of all members together, are known to outnumber the cores."""
        parts = [knobs for _, knobs in self.members] or [self]
        return sum((part.instances or 1) * (part.intra_op_threads or 1) for part in parts) > max(cpus, len(parts))

    def with_member(self, name: str, knobs: "Knobs") -> "Knobs":
        """These with the knobs of one member exchanged; the member that is left as it is installed is left out."""
        members = {**dict(self.members), name: knobs}
        return replace(self, members=tuple(sorted((n, k) for n, k in members.items() if not k.is_untuned)))

    def as_dict(self) -> dict[str, Any]:
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "members"}
        return {**own, "members": {name: knobs.as_dict() for name, knobs in self.members}} if self.members else own

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`."""
        own = dict(content)
        members = own.pop("members", {})
        return cls(**own, members=tuple((name, Knobs.from_dict(knobs)) for name, knobs in sorted(members.items())))


UNTUNED = Knobs()
