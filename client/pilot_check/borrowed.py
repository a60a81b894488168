"""Files that a model opens in the version folder of another model: a step of an ensemble shares its weights so.

    default_model_filename: "../../minilm/1/model.fp32.onnx"        opened from <model>/<version>/

The number stays as it was written. A new version of the other model, or a rollback, does not reach this one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

_PATH = re.compile(r"\.\./\.\./(?P<model>[^/]+)/(?P<version>[1-9]\d*)/.+")


@dataclass(frozen=True)
class Borrowed:
    """`key`: of the parameter that names the file, None for default_model_filename."""

    key: str | None
    model: str
    version: int


def borrowed_files(config: ModelConfig) -> Iterator[Borrowed]:
    """Every file of another model that `config` names by a number of its versions."""
    named = [(None, config.default_model_filename)]
    named += [(key, value.string_value) for key, value in sorted(config.parameters.items())]
    for key, text in named:
        if (match := _PATH.fullmatch(text)) is not None:
            yield Borrowed(key, match["model"], int(match["version"]))
