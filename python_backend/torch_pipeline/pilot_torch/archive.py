"""Whether a torch.export package (.pt2) may be opened: it may hold pickles, and those run code.

torch.export.load opens some of them with full unpickling, so this looks first. What a plain module gives is let in:

    <name>/data/weights/model_weights_config.json       each weight as raw bytes (use_pickle false)
    <name>/data/constants/model_constants_config.json   the same; custom objects are refused
    <name>/data/sample_inputs/model.pt                   tensors alone: must load with weights_only
    <name>/models/model.json                             the graph, as JSON
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from pilot_torch.errors import LoadError

_MEND = "export it anew with torch.export.save of a torch this new, from a module of plain tensors"


def check_archive(path: Path) -> None:
    """
    Raises:
        LoadError: no such file, no package, of an old format, or with something pickled in it.
    """
    if not path.is_file():
        raise LoadError(f"{path} does not exist. Put a package of torch.export.save there, or set `module` and weights")
    try:
        with zipfile.ZipFile(path) as archive:
            _check(path, archive)
    except (zipfile.BadZipFile, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LoadError(f"{path} is no package of torch.export.save: {error!r}") from error


def _check(path: Path, archive: zipfile.ZipFile) -> None:
    members = archive.namelist()
    if not any(name.endswith("/archive_format") for name in members):
        raise LoadError(f"{path} is a package of an older format, which holds pickles: {_MEND}")
    for name in members:
        part = name.partition("/data/")[2]
        if part.endswith("_config.json"):
            for entry, payload in json.loads(archive.read(name))["config"].items():
                if payload["use_pickle"] or not Path(payload["path_name"]).name.startswith(("weight_", "tensor_")):
                    raise LoadError(f"{path}: {entry!r} is pickled in it: {_MEND}")
        elif part.startswith("sample_inputs/"):
            _check_tensors(path, archive.read(name))
        elif "/data/aotinductor/" in name or name.endswith(".so"):
            raise LoadError(f"{path} holds compiled code ({name}): {_MEND}")


def _check_tensors(path: Path, content: bytes) -> Any:
    import torch

    try:
        return torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise LoadError(f"{path}: its sample inputs are more than tensors: {_MEND}") from error
