"""Who runs the model: backend and platform, and what the onnxruntime backend is told."""

from collections.abc import Iterator

from pilot_check.backends import BACKENDS, ENSEMBLE_PLATFORM, ONNXRUNTIME_PARAMETERS, PLATFORMS
from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings


def check_backend(model: Model, surroundings: Surroundings) -> Iterator[Finding]:
    config = model.config
    if model.is_ensemble:
        return  # rules/ensemble.py
    if config.platform and config.platform not in PLATFORMS and not config.backend:
        yield model.error(
            "platform-unknown",
            f"platform {config.platform!r} is not known",
            f"one of {', '.join([*PLATFORMS, ENSEMBLE_PLATFORM])}; or name a backend",
            "platform",
        )
        return
    if not model.backend:
        yield model.error(
            "backend-missing",
            "neither backend nor platform is named, and no file in the version folder tells it",
            'add `backend: "..."`',
        )
        return
    known = BACKENDS.get(model.backend)
    if known and known.platforms and config.platform and config.platform not in known.platforms:
        yield model.error(
            "platform-backend",
            f"platform {config.platform!r} does not belong to backend {model.backend!r}",
            f"platform: {known.platforms[0]!r}, or leave it out",
            "platform",
        )
    if model.backend in surroundings.backends:
        return
    if known:
        yield model.warning(
            "backend-absent",
            f"backend {model.backend!r} is not in this server, which has {', '.join(sorted(surroundings.backends))}",
            f"serve it from {known.image}",
            "backend",
        )
    else:
        yield model.error(
            "backend-unknown",
            f"backend {model.backend!r} is not known",
            f"one of {', '.join(sorted({*BACKENDS, *surroundings.backends}))}",
            "backend",
        )


def check_onnxruntime_settings(model: Model, _surroundings: Surroundings) -> Iterator[Finding]:
    """What the onnxruntime backend would refuse (ours) or drop without a word (the C++ one)."""
    if model.backend != "onnxruntime":
        return
    for key in model.config.parameters:
        if key not in ONNXRUNTIME_PARAMETERS:
            yield model.error(
                "parameter-unknown",
                f"parameter {key!r} is not known to the onnxruntime backend",
                f"one of {', '.join(ONNXRUNTIME_PARAMETERS)}",
                *("parameters", model.source.entry("parameters", key)),
            )
    for key in ("intra_op_thread_count", "inter_op_thread_count"):
        text = model.config.parameters[key].string_value if key in model.config.parameters else "0"
        if not text.strip().isdecimal():
            place = ("parameters", model.source.entry("parameters", key), "value")
            yield model.error("parameter-value", f"{key} is {text!r}", "a whole number, 0 for the default", *place)
