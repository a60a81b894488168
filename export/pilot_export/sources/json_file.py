"""A JSON file of a model's folder."""

import json
from pathlib import Path
from typing import Any

from pilot_export.errors import SpecError


def read_json(path: Path, kind: type) -> Any:
    """What is in `path`, a `kind`.

    Raises:
        SpecError: it cannot be read, is no JSON, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(found, kind):
        raise SpecError(f"{path} holds a {type(found).__name__}, it must be a {kind.__name__}")
    return found
