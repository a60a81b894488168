"""How the tokens of an encoder become one embedding, as sentence-transformers saves it.

    modules.json             Transformer, Pooling, and Normalize where the embedding has length 1
    1_Pooling/config.json    the mean over the tokens, or the first token's

A folder without modules.json is a bare encoder: the mean, of length 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilot_export.errors import SpecError
from pilot_export.sources.json_file import read_json

_MEND = "write a spec in Python, export/examples/ has one to start from"
# In this order; the last may be missing.
_KNOWN = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """`by_first_token`: else the mean over the tokens. `is_normalized`: of length 1."""

    by_first_token: bool
    is_normalized: bool


def read_pooling(folder: Path) -> Pooling:
    """What makes an embedding of the tokens.

    Raises:
        SpecError: a module or a pooling that export does not know, or a file that cannot be read.
    """
    path = folder / "modules.json"
    if not path.is_file():
        if beside := sorted(folder.glob("[0-9]_*")):
            raise SpecError(
                f"{folder} has {beside[0].name}, but no modules.json that says how it is used: add the file"
            )
        return Pooling(by_first_token=False, is_normalized=True)
    modules = [_module(path, item) for item in read_json(path, list)]
    kinds = tuple(kind for kind, _ in modules)
    if unknown := [kind for kind in kinds if kind not in _KNOWN]:
        raise SpecError(
            f"{path} has a module {unknown[0]}, export knows {', '.join(_KNOWN)}: without it the embedding would be "
            f"another; {_MEND}"
        )
    if kinds not in (_KNOWN[:2], _KNOWN):
        raise SpecError(f"{path} has {', '.join(kinds) or 'no module'}, it must be {', '.join(_KNOWN)}; {_MEND}")
    config = folder / modules[1][1] / "config.json"
    return Pooling(_pools_by_first_token(config, read_json(config, dict)), is_normalized=kinds == _KNOWN)


def _module(path: Path, item: Any) -> tuple[str, str]:
    """The class's name without its package, and the folder."""
    try:
        return str(item["type"]).rpartition(".")[2], str(item["path"])
    except (KeyError, TypeError) as error:
        raise SpecError(f"{path}: a module has no type or no path: {item}") from error


def _pools_by_first_token(path: Path, config: dict[str, Any]) -> bool:
    modes = _modes(config)
    if modes not in (["cls"], ["mean"]):
        raise SpecError(f"{path}: pooling is {' and '.join(modes) or 'not named'}, mean or cls alone is known; {_MEND}")
    return modes == ["cls"]


def _modes(config: dict[str, Any]) -> Sequence[str]:
    """By the switches ("pooling_mode_cls_token": true), or by name ("pooling_mode": "cls")."""
    if (named := config.get("pooling_mode")) is not None:
        return [named] if isinstance(named, str) else list(map(str, named))
    switches = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    return sorted(key.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token") for key in switches)
