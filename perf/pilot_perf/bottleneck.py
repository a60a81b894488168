"""Names what bounds a configuration at a load, with the evidence, and what to try next.

    client     it cannot send what was asked, or takes more of the machine than the server
    queue      requests wait while instances are free: the batcher waits for more of them
    cpu        the cores are busy, most of them with the server
    transfer   most of the time goes into moving tensors
    compute    instances (or the GPU) are busy while cores are idle: the model itself takes its time
    nothing    none of these: a higher load would find one

The rules are asked in this order and the first that applies is the answer: a client that cannot keep up makes every
number behind it one about the client, and a wait for busy instances is no matter of the queue.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_perf.config_override import apply
from pilot_perf.ensemble import num_steps
from pilot_perf.knobs import UNTUNED
from pilot_perf.measures import Figures, Measurement
from pilot_perf.proof import Proof

Bound = Literal["client", "queue", "cpu", "transfer", "compute", "nothing"]

# In flight of what was asked (Little's law), and requests sent late, beyond which the client does not keep the load up.
MIN_IN_FLIGHT, MAX_LATE = 0.8, 0.1
# Of the machine's cores.
SATURATED = 0.85
# Of a request's time: more than this is most of it.
MOST = 0.5
# Of the time in which an instance has a batch.
BUSY, FREE = 0.85, 0.7
# Of a request's time, which is worth looking at.
NOTABLE = 0.25


@dataclass(frozen=True)
class Bottleneck:
    bound: Bound
    evidence: str
    try_next: str

    @property
    def text(self) -> str:
        what = "Nothing bounds it at this load" if self.bound == "nothing" else f"Bound by: {self.bound}"
        return f"{what}. {self.evidence}. Next: {self.try_next}"


@dataclass(frozen=True)
class Facts:
    """What the rules look at. None: not known."""

    figures: Figures
    concurrency: int
    rate_per_s: float | None
    cpus: int
    instances: int
    delay_ms: float
    # How often a request runs the model: more than once only for a member of an ensemble.
    runs: int = 1

    @property
    def is_streamed(self) -> bool:
        """A language model's engine: Triton's times end when it has taken the request."""
        return self.figures.ttft_ms is not None

    @property
    def latency_ms(self) -> float:
        return self.figures.latency_ms["avg"]

    @property
    def queue_ms(self) -> float | None:
        return None if self.figures.stages is None else self.figures.stages.queue_ms

    @property
    def batch_ms(self) -> float | None:
        """Time of one batch in its instance."""
        stages = self.figures.stages
        if stages is None or stages.compute_infer_ms is None:
            return None
        return (stages.compute_input_ms or 0.0) + stages.compute_infer_ms + (stages.compute_output_ms or 0.0)

    @property
    def moved_ms(self) -> float | None:
        """Time outside queue and model: client, network, copies."""
        stages = self.figures.stages
        if stages is None or stages.compute_infer_ms is None or self.is_streamed:
            return None
        return max(0.0, self.latency_ms - (stages.queue_ms or 0.0) - stages.compute_infer_ms)

    @property
    def instances_busy(self) -> float | None:
        """Share of the time in which an instance has a batch."""
        stages = self.figures.stages
        if self.batch_ms is None or stages is None or not stages.mean_batch or self.is_streamed:
            return None
        return self.runs * self.figures.throughput_per_s / stages.mean_batch * self.batch_ms / 1000.0 / self.instances

    @property
    def server_cores(self) -> float | None:
        return None if self.figures.usage is None else self.figures.usage.server_cpu_cores

    @property
    def client_cores(self) -> float | None:
        return None if self.figures.usage is None else self.figures.usage.client_cpu_cores

    @property
    def machine_cores(self) -> float | None:
        return None if self.figures.usage is None else self.figures.usage.machine_cpu_cores

    @property
    def gpu_busy(self) -> float | None:
        return None if self.figures.usage is None else self.figures.usage.gpu_busy

    @property
    def machine_cpus(self) -> int:
        """The cores that `machine_cores` is of."""
        usage = self.figures.usage
        return self.cpus if usage is None or usage.machine_cpus is None else usage.machine_cpus

    @property
    def own_cores(self) -> float:
        """What server and client use, as far as they can be seen."""
        return (self.server_cores or 0.0) + (self.client_cores or 0.0)

    @property
    def is_host_full(self) -> bool:
        return self.machine_cores is not None and self.machine_cores >= SATURATED * self.machine_cpus

    @property
    def is_machine_full(self) -> bool:
        """Whether the cores that may be used are: a container has its share long before its host is full."""
        return self.is_host_full or self.own_cores >= SATURATED * self.cpus


Rule = Callable[[Facts], Bottleneck | None]


def last_of_answer(winner: Measurement | None, proof: Proof) -> Measurement | None:
    """The last measurement of the answer; of a study that is not finished the winner of the search."""
    if proof.answer is None:
        return winner
    return next((m for m in reversed(proof.answer.all_rounds) if m.figures is not None), None)


def bottleneck_as_run(
    measurement: Measurement, untuned: ModelConfig, members: Mapping[str, ModelConfig], cpus: int
) -> Bottleneck | None:
    """Of a measurement whose knobs were applied to `untuned`, or to the `members` of an ensemble."""
    if not members:
        return bottleneck(measurement, apply(untuned, measurement.trial.knobs), cpus)
    own = dict(measurement.trial.knobs.members)
    running = {name: apply(config, own.get(name, UNTUNED)) for name, config in members.items()}
    return bottleneck_of_members(measurement, untuned, running, cpus)


def bottleneck(measurement: Measurement, config: ModelConfig, cpus: int) -> Bottleneck | None:
    """Of a measurement under `config`, the full configuration that it ran with; None without figures."""
    if measurement.figures is None:
        return None
    return _verdict(_facts(measurement, measurement.figures, config, cpus), _RULES)


def bottleneck_of_members(
    measurement: Measurement, ensemble: ModelConfig, members: Mapping[str, ModelConfig], cpus: int
) -> Bottleneck | None:
    """The same of an ensemble whose members run under `members`: that of the member whose instances are busiest."""
    figures = measurement.figures
    if figures is None or not figures.members:
        return bottleneck(measurement, ensemble, cpus)
    if (client := _client(_facts(measurement, figures, ensemble, cpus))) is not None:
        return client
    facts = {}
    for name, config in members.items():
        stages = figures.members[name]
        parts = (stages.queue_ms, stages.compute_input_ms, stages.compute_infer_ms, stages.compute_output_ms)
        # The latency is then what a request spends at the member, whose client the ensemble is.
        own = replace(figures, stages=stages, latency_ms={"avg": sum(part or 0.0 for part in parts)})
        # A request may run a member several times.
        facts[name] = replace(_facts(measurement, own, config, cpus), runs=num_steps(ensemble, name))
    busiest = max(facts, key=lambda name: facts[name].instances_busy or 0.0)
    found = _verdict(facts[busiest], _RULES[1:])
    return replace(found, evidence=f"Its busiest member is {busiest}: {found.evidence}")


def _verdict(facts: Facts, rules: Sequence[Rule]) -> Bottleneck:
    return next(found for rule in rules if (found := rule(facts)) is not None)


def _facts(measurement: Measurement, figures: Figures, config: ModelConfig, cpus: int) -> Facts:
    trial = measurement.trial
    instances = sum(max(group.count, 1) * max(len(group.gpus), 1) for group in config.instance_group) or 1
    delay_ms = config.dynamic_batching.max_queue_delay_microseconds / 1000.0
    return Facts(figures, trial.concurrency, trial.rate_per_s, cpus, instances, delay_ms)


def _client(facts: Facts) -> Bottleneck | None:
    mend = "run the client on a machine of its own (--url), or send with fewer threads"
    if facts.rate_per_s is not None:
        late = facts.figures.late_sends or 0.0
        if late > MAX_LATE:
            return Bottleneck("client", f"{late:.0%} of the requests were sent late", mend)
    elif (ratio := facts.figures.littles_law_ratio(facts.concurrency)) < MIN_IN_FLIGHT:
        evidence = f"on average {ratio * facts.concurrency:.1f} of {facts.concurrency} requests were in flight"
        return Bottleneck("client", evidence, mend)
    client, server = facts.client_cores, facts.server_cores
    if client is not None and server is not None and facts.is_machine_full and client > server:
        evidence = f"the client keeps {client:.2f} of {facts.cpus} cores busy, the server {server:.2f}"
        return Bottleneck("client", evidence, mend)
    return None


def _queue(facts: Facts) -> Bottleneck | None:
    busy, queue_ms = facts.instances_busy, facts.queue_ms
    if busy is None or queue_ms is None or busy >= FREE or queue_ms < NOTABLE * facts.latency_ms:
        return None
    evidence = (
        f"a request waits {queue_ms:.1f} of {facts.latency_ms:.1f} ms in the queue, while the instances are busy "
        f"{busy:.0%} of the time (the batcher waits up to {facts.delay_ms:g} ms)"
    )
    return Bottleneck("queue", evidence, "a shorter --delay-us, or a --preferred-batch that this load fills")


def _cpu(facts: Facts) -> Bottleneck | None:
    machine, server = facts.machine_cores, facts.server_cores
    if not facts.is_machine_full:
        return None
    if facts.is_host_full:
        evidence = f"{machine:.2f} of {facts.machine_cpus} cores are busy"
    else:
        evidence = f"{facts.own_cores:.2f} of {facts.cpus} cores that may be used are busy"
    if server is None:
        return Bottleneck("cpu", evidence, "look at who uses them: the server's processes cannot be seen from here")
    others = 0.0 if machine is None else machine - facts.own_cores
    evidence += f", {server:.2f} with the server"
    if facts.is_host_full and others > server:
        return Bottleneck("cpu", f"{evidence} and {others:.2f} with other programs", "a machine that is quiet")
    cheaper = "a lower quantization of the weights" if facts.is_streamed else "a lower --precision, larger batches"
    return Bottleneck("cpu", evidence, f"{cheaper}, more cores, or another replica")


def _transfer(facts: Facts) -> Bottleneck | None:
    moved = facts.moved_ms
    if moved is None or moved < MOST * facts.latency_ms:
        return None
    evidence = f"{moved:.2f} of {facts.latency_ms:.2f} ms pass outside the queue and the model"
    return Bottleneck(
        "transfer", evidence, "--shared-memory system, or smaller tensors (do the last step in the model)"
    )


def _compute(facts: Facts) -> Bottleneck | None:
    if facts.gpu_busy is not None and facts.gpu_busy >= BUSY:
        return Bottleneck("compute", f"the GPU is busy {facts.gpu_busy:.0%} of the time", "a lower --precision")
    busy, cores = facts.instances_busy, facts.server_cores
    idle = "" if cores is None else f", with {cores:.2f} of {facts.cpus} cores"
    if busy is not None and busy >= BUSY and facts.batch_ms is not None:
        many = f"{facts.instances} instances are" if facts.instances > 1 else "the instance is"
        evidence = f"{many} busy {min(busy, 1.0):.0%} of the time ({facts.batch_ms:.1f} ms a batch{idle})"
        return Bottleneck("compute", evidence, "more --instances or --threads while cores are idle, or larger batches")
    if facts.is_streamed:
        rate = facts.figures.output_tokens_per_s or 0.0
        evidence = f"the engine makes {rate:.0f} tokens/s{idle}"
        return Bottleneck("compute", evidence, "more --max-num-seqs, a lower precision, or a higher load")
    return None


def _nothing(facts: Facts) -> Bottleneck:
    parts = []
    if facts.instances_busy is not None:
        parts.append(f"instances are busy {facts.instances_busy:.0%} of the time")
    if facts.machine_cores is not None:
        parts.append(f"{facts.machine_cores:.2f} of {facts.machine_cpus} cores are busy")
    return Bottleneck("nothing", "; ".join(parts) or "nothing was seen to be full", "a higher load")


_RULES: tuple[Rule, ...] = (_client, _queue, _cpu, _transfer, _compute, _nothing)
