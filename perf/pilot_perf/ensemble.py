"""An ensemble is tuned through its members: each has knobs of its own, which a reload of that member applies.

The ensemble itself has nothing to tune, and stays loaded while a member is exchanged beneath it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.config_override import THREADED_BACKENDS, backend_of
from pilot_perf.default_space import Levels, same_as_installed, space_for
from pilot_perf.errors import KnobError
from pilot_perf.knobs import Knobs
from pilot_perf.search.space import Space

# Fewer than for a single model: what the members may do multiplies.
BATCHES = (1, 8, 32)
DELAYS_US = (0, 1000)

Members = Mapping[str, ModelConfig]


def is_ensemble(config: ModelConfig) -> bool:
    return bool(config.HasField("ensemble_scheduling"))


def members_of(config: ModelConfig, config_of: Callable[[str], ModelConfig]) -> dict[str, ModelConfig]:
    """The models that an ensemble runs, by name, those of ensembles within it too; empty for what is none."""
    found: dict[str, ModelConfig] = {}
    for step in config.ensemble_scheduling.step:
        if step.model_name in found:
            continue
        member = config_of(step.model_name)
        found |= members_of(member, config_of) if is_ensemble(member) else {step.model_name: member}
    return found


def num_steps(config: ModelConfig, member: str) -> int:
    """How often a request of the ensemble runs `member`, where no other ensemble lies between."""
    return sum(1 for step in config.ensemble_scheduling.step if step.model_name == member) or 1


def ensemble_space(
    ensemble: ModelConfig, members: Members, levels: Levels, cpus: int, version_dir_of: Callable[[str], Path | None]
) -> Space:
    """Every combination of the members' configurations. `levels` are for each member that can take them.

    Raises:
        KnobError: a level was asked for that no member can take, or a batch below the ensemble's.
    """
    if small := [size for size in levels.max_batches or () if size < ensemble.max_batch_size]:
        raise KnobError(
            f"{ensemble.name} takes batches of up to {ensemble.max_batch_size}, and so must its members: leave "
            f"{', '.join(map(str, small))} out of --max-batch, or give the ensemble a smaller max_batch_size"
        )
    spaces, taken = [], set()
    for name, config in sorted(members.items()):
        own = _for_member(config, levels, ensemble.max_batch_size)
        taken |= set(own.named) & set(levels.named)
        spaces.append((name, space_for(config, own, cpus, version_dir_of(name))))
    if missing := [name for name in levels.named if name not in taken]:
        raise KnobError(f"{ensemble.name}: none of its members ({', '.join(members)}) can take {', '.join(missing)}")
    return Space(members=tuple(spaces), max_concurrency=levels.max_concurrency)


def same_as_installed_members(members: Members, space: Space) -> Knobs | None:
    """The configuration of `space` that changes no member, if there is one."""
    same = [(name, same_as_installed(members[name], inner)) for name, inner in space.members]
    if any(knobs is None for _, knobs in same):
        return None
    return Knobs(members=tuple((name, knobs) for name, knobs in same if knobs is not None and not knobs.is_untuned))


def _for_member(config: ModelConfig, levels: Levels, least_batch: int) -> Levels:
    """What of `levels` this member can take, with the defaults for ensembles.

    A member must take the ensemble's largest batch, `least_batch`, or the server refuses it.
    """
    own = replace(levels, max_num_seqs=None, max_num_batched_tokens=None, block_sizes=None, shared_memories=None)
    if backend_of(config) not in THREADED_BACKENDS:
        own = replace(own, precisions=None, intra_op_threads=None)
    if config.max_batch_size < 1 or config.HasField("sequence_batching"):
        return replace(own, max_batches=None, queue_delays_us=None, preferred_batches=None)
    most = config.max_batch_size if backend_of(config) not in THREADED_BACKENDS else max(BATCHES)
    usual = {size for size in BATCHES if least_batch <= size <= most} | {config.max_batch_size}
    return replace(
        own,
        max_batches=tuple(sorted(levels.max_batches or usual)),
        queue_delays_us=levels.queue_delays_us or DELAYS_US,
    )
