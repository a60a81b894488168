"""Where the folders that a server reads lie: in a checkout, or inside the installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = _PACKAGE.parents[1]


def backends_dir() -> Path:
    """The folder whose subfolders are our Python-based backends (`inflight`, `onnxruntime`, ...)."""
    in_checkout = _CHECKOUT / "python_backend"
    return in_checkout if in_checkout.is_dir() else _PACKAGE / "backends"


def model_repository_dir() -> Path:
    """The model repository as committed: configurations, without weights until they are exported."""
    in_checkout = _CHECKOUT / "model_repository"
    return in_checkout if in_checkout.is_dir() else _PACKAGE / "model_repository"
