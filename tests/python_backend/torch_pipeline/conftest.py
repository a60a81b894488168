"""Puts the backend's folder on the path, as Triton does for `model.py`."""

import sys
from pathlib import Path

_BACKEND = Path(__file__).parents[3] / "python_backend" / "torch_pipeline"
sys.path.append(str(_BACKEND))
