"""Instances against the devices and CPUs that are there."""

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelInstanceGroup

from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings

_DEFAULT_CPU_INSTANCES = {"onnxruntime": 2}


def check_devices(model: Model, surroundings: Surroundings) -> Iterator[Finding]:
    for index, group in enumerate(model.config.instance_group):
        kind = ModelInstanceGroup.Kind.Name(group.kind)
        if group.kind != ModelInstanceGroup.KIND_GPU:
            if group.gpus and group.kind != ModelInstanceGroup.KIND_AUTO:
                message = f"{kind} names GPUs {list(group.gpus)}"
                yield model.error("instance-gpu", message, "KIND_GPU, or no `gpus`", "instance_group", index, "gpus")
            continue
        if surroundings.num_gpus == 0:
            yield model.error(
                "instance-gpu",
                "KIND_GPU, but there is no GPU",
                "KIND_AUTO takes a GPU where there is one and the CPU elsewhere",
                *("instance_group", index, "kind"),
            )
        for device in group.gpus:
            if surroundings.num_gpus and not 0 <= device < surroundings.num_gpus:
                message = f"GPU {device} is not there: devices are 0 to {surroundings.num_gpus - 1}"
                yield model.error("instance-gpu", message, "name one that is", "instance_group", index, "gpus")


def check_oversubscription(model: Model, surroundings: Surroundings) -> Iterator[Finding]:
    """Threads of an onnxruntime model: each instance has a pool of its own, and waiting threads of a pool spin."""
    if model.backend != "onnxruntime":
        return
    count = num_cpu_instances(model, surroundings)
    field = "instance_group" if model.source.has("instance_group") else ""
    place = (field, 0, "count") if field else ()
    parameter = model.config.parameters.get("intra_op_thread_count")
    if parameter is None:
        if count > 1:
            yield model.note(
                "threads-default",
                f"intra_op_thread_count is not set: {count} instances share the CPUs here, but in NVIDIA's container "
                "each takes all cores",
                'parameters { key: "intra_op_thread_count" value { string_value: "..." } }',
                *place,
            )
        return
    if not parameter.string_value.strip().isdecimal():
        return
    threads = int(parameter.string_value) or surroundings.usable_cpus
    if count * threads > surroundings.usable_cpus and not (count == 1 and int(parameter.string_value) == 0):
        yield model.warning(
            "oversubscribed",
            f"{count} instances x {threads} intra-op threads are more than the {surroundings.usable_cpus} CPUs",
            f"at most {max(1, surroundings.usable_cpus // count)} threads for each, or fewer instances",
            *place,
        )


def num_cpu_instances(model: Model, surroundings: Surroundings) -> int:
    """Instances that run on the CPU, with the server's defaults for what the configuration leaves out."""
    default = _DEFAULT_CPU_INSTANCES.get(model.backend, 1)
    if not model.config.instance_group:
        return default if surroundings.num_gpus == 0 else 0
    on_cpu = {ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL}
    if surroundings.num_gpus == 0:
        on_cpu.add(ModelInstanceGroup.KIND_AUTO)
    return sum(group.count or default for group in model.config.instance_group if group.kind in on_cpu)
