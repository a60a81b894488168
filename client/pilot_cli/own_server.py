"""The servers that `sweep` and `tune` start for one model.

Sweeps load the model with dozens of configurations. A server completes each of them first, in a process of its own,
which costs the Python backend more than a second (on its way out it waits for a second, every time). So one server
completes what the repository says, once, and another one, which completes nothing, is given that.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pilot_base.progress import Say

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from pilot_server.running import RunningServer

# A model may load weights for a long time.
LOAD_TIMEOUT_S = 600.0


def serve_model(repository: Path, model: str, say: Say) -> "RunningServer":
    """A ready server on `repository` that has loaded `model`.

    Raises:
        ServerError: no such model or files, or no server can be started.
        ModelNotReadyError: the server refuses the model; carries its reason.
    """
    from pilot_cli.servable import models_of, require_models
    from pilot_server.embedded import existing_repository

    repository = existing_repository(repository)
    require_models(repository, models_of(repository), [model])
    return _serve(repository, {model: None}, say)


def starter(stack: ExitStack, repository: Path, model: str, say: Say) -> "Callable[[], RunningServer]":
    """What starts one server after the other, as `serve_for_reloads`; all are stopped with `stack`."""
    return lambda: stack.enter_context(serve_for_reloads(repository, model, say))


def serve_for_reloads(repository: Path, model: str, say: Say) -> "RunningServer":
    """The same for one that is going to load `model` with many configurations, each of them complete: it loads nothing
    that is not. Raises as `serve_model`.
    """
    from pilot_client.repository import model_config
    from pilot_perf.ensemble import members_of

    with serve_model(repository, model, say) as server:
        config_of = partial(model_config, server.grpc_url)
        config = config_of(model)
        members = members_of(config, config_of)
    return _serve(repository, {**members, model: config}, say, "--disable-auto-complete-config")


def _serve(repository: Path, models: "Mapping[str, ModelConfig | None]", say: Say, *extra_args: str) -> "RunningServer":
    from pilot_client.repository import load
    from pilot_server.embedded import start_embedded

    # Not told to load them at its start: a server that cannot would end, and the reason be somewhere in its log.
    server = start_embedded(repository, load=(), say=say, extra_args=extra_args)
    try:
        for name, config in models.items():
            load(server.grpc_url, name, config, timeout_s=LOAD_TIMEOUT_S)
    except BaseException:
        server.stop(drain_s=0.0)
        raise
    return server
