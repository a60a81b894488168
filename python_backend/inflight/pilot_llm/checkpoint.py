"""Reads the tensors of a Hugging Face folder: one model.safetensors, or shards with an index.

Files are mapped, not read: a tensor costs memory only once it is copied or packed.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pilot_llm.errors import ConfigError


class Checkpoint:
    """Tensors by name. It remembers which were taken, so that a forgotten one is noticed."""

    def __init__(self, folder: Path) -> None:
        """
        Raises:
            ConfigError: no weights, a missing shard, or a file that is cut or no safetensors file.
        """
        self._folder = folder
        self._file_of_tensor: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ConfigError(f"{path} cannot be read ({error}): copy or export it again") from error
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                self._file_of_tensor[name] = file
        self._untaken = set(self._file_of_tensor)

    def take(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor as it is stored; one in 8 bit as float32, multiplied by its scales (`name`_scale, one per row).

        Raises:
            ConfigError: it is missing, or has another shape.
        """
        file = self._file_of_tensor.get(name)
        if file is None:
            raise ConfigError(f"the weights in {self._folder} lack {name}, which config.json asks for")
        stored: torch.Tensor = file.get_tensor(name)
        if stored.shape != torch.Size(shape):
            raise ConfigError(
                f"{name} in {self._folder} has shape {list(stored.shape)}, config.json asks for {list(shape)}"
            )
        self._untaken.discard(name)
        scale_name = f"{name}_scale"
        if stored.dtype == torch.int8 and scale_name in self._file_of_tensor:
            return stored.float() * self.take(scale_name, (shape[0], 1)).float()
        if not stored.is_floating_point():
            raise ConfigError(
                f"{name} in {self._folder} is {stored.dtype}, which is read only as int8 beside {scale_name}"
            )
        return stored

    def take_stacked(self, names: Sequence[str], shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> torch.Tensor:
        """Several tensors, one below the other, as one new tensor of `dtype`."""
        parts = [self.take(name, shape) for name, shape in zip(names, shapes, strict=True)]
        stacked = torch.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), dtype=dtype)
        torch.cat([part.to(dtype) for part in parts], out=stacked)
        return stacked

    def untaken(self, harmless_endings: Iterable[str]) -> list[str]:
        """Names that nobody took, but for those that end so."""
        endings = tuple(harmless_endings)
        return sorted(name for name in self._untaken if not name.endswith(endings))


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or what the index names, whatever the names are.

    Raises:
        ConfigError: neither is there, or the index names what is not in the folder.
    """
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ConfigError(
            f"{folder} holds neither model.safetensors nor model.safetensors.index.json; "
            "weights in other formats are turned into these by `tritonpilot export llm`"
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{index} is no index of safetensors files: {error!r}") from error
    for name in names:
        # A shard lies in the folder itself: an index must not reach elsewhere.
        if Path(name).name != name or not (folder / name).is_file():
            raise ConfigError(f"{index} names {name}, which is not in {folder}")
    return [folder / name for name in names]
