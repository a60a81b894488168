"""Writes the knobs of a trial into a full model configuration, for a load override or for a config.pbtxt."""

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from pilot_perf.errors import KnobError
from pilot_perf.knobs import Knobs

INTRA_OP_PARAMETER = "intra_op_thread_count"
# The backends that read INTRA_OP_PARAMETER.
THREADED_BACKENDS = ("onnxruntime", "torch_pipeline")
# The backends that read arguments of their engine from config.pbtxt's parameters, over those in model.json.
ENGINE_BACKENDS = ("inflight",)
ENGINE_KNOBS = ("max_num_seqs", "max_num_batched_tokens", "block_size")


def model_file(precision: str) -> str:
    return f"model.{precision}.onnx"


def backend_of(config: ModelConfig) -> str:
    """The backend's name, also where the file says it through the older field `platform`."""
    return "onnxruntime" if config.platform == "onnxruntime_onnx" else str(config.backend)


def with_backend(written: ModelConfig, installed: ModelConfig) -> ModelConfig:
    """A copy of `written` that names its backend: where a person left that to the server, as it has completed it."""
    result = ModelConfig()
    result.CopyFrom(written)
    if not written.backend and not written.platform:
        result.backend, result.platform = installed.backend, installed.platform
    return result


def apply(config: ModelConfig, knobs: Knobs) -> ModelConfig:
    """A copy of `config` with `knobs` written into it.

    Raises:
        KnobError: a knob that means nothing for this model.
    """
    result = ModelConfig()
    result.CopyFrom(config)
    if knobs.precision is not None:
        if backend_of(config) != "onnxruntime":
            raise KnobError(
                f"{config.name}: precisions are files {model_file(knobs.precision)}, which only the onnxruntime "
                f"backend serves; this model's is {backend_of(config)!r}. Leave --precision out"
            )
        result.default_model_filename = model_file(knobs.precision)
    if knobs.instances is not None:
        _set_instances(result, knobs.instances)
    if knobs.intra_op_threads is not None:
        if backend_of(config) not in THREADED_BACKENDS:
            raise KnobError(
                f"{config.name}: backend {backend_of(config)!r} has no {INTRA_OP_PARAMETER}; "
                f"only {' and '.join(THREADED_BACKENDS)} have one. Leave --threads out"
            )
        result.parameters[INTRA_OP_PARAMETER].string_value = str(knobs.intra_op_threads)
    if knobs.max_batch is not None:
        _set_max_batch(result, knobs.max_batch)
    if knobs.queue_delay_us is not None and result.HasField("dynamic_batching"):
        result.dynamic_batching.max_queue_delay_microseconds = knobs.queue_delay_us
    if knobs.preferred_batch is not None:
        _set_preferred_batch(result, knobs.preferred_batch)
    for name in ENGINE_KNOBS:
        if (value := getattr(knobs, name)) is not None:
            _set_engine_argument(result, name, value)
    if knobs.max_queue_size is not None or knobs.queue_timeout_us is not None:
        _set_queue_policy(result, knobs)
    return result


def _set_instances(config: ModelConfig, count: int) -> None:
    """Per device: a group of KIND_AUTO has that many on each GPU of the server, or that many on its CPUs."""
    if backend_of(config) in ENGINE_BACKENDS and count > 1:
        raise KnobError(
            f"{config.name}: one engine batches all requests, and a second would only hold the weights again. "
            "Leave --instances out"
        )
    if not config.instance_group:
        config.instance_group.add(kind=ModelInstanceGroup.KIND_AUTO)
    if len(config.instance_group) > 1:
        raise KnobError(f"{config.name}: several instance groups; which one --instances should change is not clear")
    config.instance_group[0].count = count


def _set_max_batch(config: ModelConfig, max_batch: int) -> None:
    if config.HasField("sequence_batching"):
        raise KnobError(f"{config.name}: sequence batching and dynamic batching exclude each other")
    config.max_batch_size = max_batch
    if max_batch == 1:
        config.ClearField("dynamic_batching")
        return
    # Present is what switches it on; priorities and queue policies in it stay. Preferred sizes do not: they were
    # chosen for (or filled in from) the old maximum, and the batcher goes for them before a full batch.
    config.dynamic_batching.SetInParent()
    config.dynamic_batching.ClearField("preferred_batch_size")


def _set_preferred_batch(config: ModelConfig, size: int) -> None:
    if not config.HasField("dynamic_batching"):
        return
    if size > config.max_batch_size:
        raise KnobError(f"{config.name}: a preferred batch of {size} is above the largest, {config.max_batch_size}")
    config.dynamic_batching.preferred_batch_size[:] = [size]


def _set_queue_policy(config: ModelConfig, knobs: Knobs) -> None:
    """Replaces the policy that was there. The policy is the dynamic batcher's, which also takes batches of 1."""
    if config.HasField("sequence_batching") or config.HasField("ensemble_scheduling") or config.max_batch_size < 1:
        raise KnobError(f"{config.name}: only the dynamic batcher has a queue policy, and this model cannot have one")
    if config.model_transaction_policy.decoupled:
        raise KnobError(f"{config.name}: its requests wait inside the model, not in the dynamic batcher's queue")
    policy = config.dynamic_batching.default_queue_policy
    policy.Clear()
    policy.timeout_action = policy.REJECT
    policy.max_queue_size = knobs.max_queue_size or 0
    policy.default_timeout_microseconds = knobs.queue_timeout_us or 0
    # allow_timeout_override stays off: a client could lengthen its own wait beyond the budget.


def _set_engine_argument(config: ModelConfig, name: str, value: int) -> None:
    if backend_of(config) not in ENGINE_BACKENDS:
        raise KnobError(
            f"{config.name}: {name} is an argument of a language model's engine, which only the backend "
            f"{', '.join(ENGINE_BACKENDS)} reads from config.pbtxt; this model's is {backend_of(config)!r}. "
            f"Leave --{name.replace('_', '-')} out"
        )
    config.parameters[name].string_value = str(value)
