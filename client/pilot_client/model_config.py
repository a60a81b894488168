"""Reads and writes `config.pbtxt` through Triton's own protobuf message, and makes load overrides of it.

The protobuf text format is the whole grammar: nothing here parses text by hand. Comments are lost when a
message is written back, so a file that a person may have edited is written anew only where the caller says so.
"""

from pathlib import Path

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_client.errors import ConfigError

CONFIG_FILE = "config.pbtxt"


def parse(text: str, where: str = CONFIG_FILE, *, allow_unknown_field: bool = False) -> ModelConfig:
    """The message that `text` says. An unknown field may be one that a newer server knows.

    Raises:
        ConfigError: not the protobuf text format, or an unknown field; names `where` and the line.
    """
    config = ModelConfig()
    try:
        text_format.Parse(text, config, allow_unknown_field=allow_unknown_field)
    except text_format.ParseError as error:
        line = error.GetLine()
        place = where if line is None else f"{where}:{line}"
        reason = str(error).split(" : ", 1)[-1]
        raise ConfigError(
            f"{place}: {reason}. Field names and nesting are those of Triton's model_config.proto", reason, line
        ) from None
    return config


def read(model_dir: Path) -> ModelConfig:
    """The configuration of the model in `model_dir`.

    Raises:
        ConfigError: no config.pbtxt, or one that cannot be parsed.
    """
    path = model_dir / CONFIG_FILE
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse(text, str(path))


def version_numbers(model_dir: Path) -> list[int]:
    """The numbers of the version folders in `model_dir`, ascending; none where there is no such folder."""
    if not model_dir.is_dir():
        return []
    names = [path.name for path in model_dir.iterdir() if path.is_dir() and path.name.isascii()]
    # As Triton reads them: "01" is no version.
    return sorted(int(name) for name in names if name.isdecimal() and (name == "0" or not name.startswith("0")))


def latest_version_dir(model_dir: Path) -> Path:
    """The folder of the highest version, which Triton serves by default; "1" where there is none yet."""
    return model_dir / str(max(version_numbers(model_dir), default=1))


def to_text(config: ModelConfig) -> str:
    """`config` as the text of a config.pbtxt."""
    return str(text_format.MessageToString(config, as_utf8=True))


def to_json(config: ModelConfig) -> str:
    """`config` as the JSON that a load request takes as its `config` override.

    An override replaces the whole configuration (a field left out falls back to Triton's default, not to the
    file's value), so it is always made of a full message.
    """
    return str(json_format.MessageToJson(config, preserving_proto_field_name=True, indent=None))


def write(config: ModelConfig, model_dir: Path) -> Path:
    """Write `config` as `model_dir`/config.pbtxt by renaming, so that a server never reads half of it."""
    path = model_dir / CONFIG_FILE
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.write_text(to_text(config))
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
    return path
