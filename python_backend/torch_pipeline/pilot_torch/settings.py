"""What `parameters` of a config.pbtxt say about the module and the pipeline. An unknown key is an error.

key                     default                 meaning
module                  -                       FILE.py:FUNCTION in the version folder, or MODULE:FUNCTION: gives the
                                                torch.nn.Module. Without it the version folder holds model.pt2
weights                 model.safetensors       of `module`, in the version folder
preprocess              -                       FILE.py:FUNCTION: arrays of one request by name -> the module's inputs
postprocess             -                       FILE.py:FUNCTION: the module's outputs of one request -> its answer
module_outputs          the model's outputs     names of what the module returns, in order, for `postprocess`
intra_op_thread_count   CPUs / instances        torch.set_num_threads
preprocess_threads      1                       threads that run `preprocess`, or gather batches
batches_in_flight       3                       batches in the pipeline at once; 1: one after the other
timeline_file           -                       a file that gets a JSON line for each stage of each batch
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilot_torch.errors import LoadError

KNOWN_PARAMETERS = (
    "module",
    "weights",
    "preprocess",
    "postprocess",
    "module_outputs",
    "intra_op_thread_count",
    "preprocess_threads",
    "batches_in_flight",
    "timeline_file",
)
# Read by Triton's Python backend, in which this one runs.
_HOST_PARAMETERS = ("EXECUTION_ENV_PATH",)
DEFAULT_WEIGHTS = "model.safetensors"
DEFAULT_PACKAGE = "model.pt2"


@dataclass(frozen=True)
class Settings:
    """As in the table above; "" where nothing is said."""

    module: str
    weights: str
    package: str
    preprocess: str
    postprocess: str
    module_outputs: tuple[str, ...]
    intra_op_threads: int
    preprocess_threads: int
    batches_in_flight: int
    timeline_file: str


def read_settings(config: Mapping[str, Any], usable_cpus: int) -> Settings:
    """The settings of one instance, from Triton's model configuration as JSON.

    Raises:
        LoadError: an unknown parameter, or a value that its parameter does not take.
    """
    texts = {key: str(value.get("string_value", "")).strip() for key, value in config.get("parameters", {}).items()}
    if unknown := sorted(set(texts) - {*KNOWN_PARAMETERS, *_HOST_PARAMETERS}):
        raise LoadError(
            f"parameters {{ key: {unknown[0]!r} }} is not known to the torch_pipeline backend. "
            f"It knows {', '.join(KNOWN_PARAMETERS)}"
        )
    if empty := sorted(key for key, text in texts.items() if not text):
        raise LoadError(f"parameters {{ key: {empty[0]!r} }} is empty: give it a value, or leave it out")
    if "weights" in texts and "module" not in texts:
        raise LoadError("parameters say `weights` but no `module` to put them into: add `module`")
    outputs = tuple(entry["name"] for entry in config.get("output", ()))
    named = tuple(name.strip() for name in texts["module_outputs"].split(",")) if "module_outputs" in texts else outputs
    if named != outputs and "postprocess" not in texts:
        raise LoadError(
            f"module_outputs {named} are not the model's outputs {outputs}: only `postprocess` can turn them"
        )
    return Settings(
        module=texts.get("module", ""),
        weights=texts.get("weights", DEFAULT_WEIGHTS),
        package=config.get("default_model_filename") or DEFAULT_PACKAGE,
        preprocess=texts.get("preprocess", ""),
        postprocess=texts.get("postprocess", ""),
        module_outputs=named,
        intra_op_threads=_count(texts, "intra_op_thread_count", max(1, usable_cpus // num_instances(config))),
        preprocess_threads=_count(texts, "preprocess_threads", 1),
        batches_in_flight=_count(texts, "batches_in_flight", 3),
        timeline_file=texts.get("timeline_file", ""),
    )


def num_instances(config: Mapping[str, Any]) -> int:
    """Instances of the model on this machine, each of which is a process of its own."""
    groups = config.get("instance_group", ())
    return max(1, sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", ()))) for group in groups))


def _count(texts: Mapping[str, str], key: str, default: int) -> int:
    text = texts.get(key, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise LoadError(f"parameters {{ key: {key!r} }} is {text!r}: a whole number of at least 1 is needed")
    return int(text)
