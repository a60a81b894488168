"""The server that `sweep` and `tune` start for one model.

They load the model with dozens of configurations. A server completes each of them first, in a process of its own, which
costs the Python backend more than a second (on its way out it waits for a second, every time). So one server completes
what the repository says, once, and another one, which completes nothing, is given that.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pilot_base.progress import Say

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from pilot_server.running import RunningServer

# A model may load weights for a long time.
LOAD_TIMEOUT_S = 600.0


@dataclass
class OwnServers:
    """Servers of our own on one model, one after the other; all are stopped at the end of the block."""

    repository: Path
    model: str
    say: Say
    _stack: ExitStack = field(default_factory=ExitStack)
    _current: "RunningServer | None" = None

    def start(self) -> "RunningServer":
        """Raises as `serve_model`."""
        self._current = self._stack.enter_context(serve_model(self.repository, self.model, self.say))
        return self._current

    @property
    def current(self) -> "RunningServer":
        """The one that was started last."""
        return self._current or self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def serve_model(repository: Path, model: str, say: Say) -> "RunningServer":
    """A ready server on `repository` that has loaded `model`.

    Raises:
        ServerError: no such model or files, or no server can be started.
        ModelNotReadyError: the server refuses the model; carries its reason.
    """
    from pilot_cli.servable import models_of, require_models
    from pilot_client import repository as model_control
    from pilot_server.embedded import existing_repository, start_embedded

    repository = existing_repository(repository)
    require_models(repository, models_of(repository), [model])
    # Not told to load it at its start: a server that cannot would end, and the reason be somewhere in its log.
    with start_embedded(repository, load=(), say=say) as server:
        model_control.load(server.grpc_url, model, timeout_s=LOAD_TIMEOUT_S)
        completed = _completed(server.grpc_url, model)
    server = start_embedded(repository, load=(), say=say, extra_args=["--disable-auto-complete-config"])
    try:
        for name, config in completed.items():
            model_control.load(server.grpc_url, name, config, timeout_s=LOAD_TIMEOUT_S)
    except BaseException:
        server.stop(drain_s=0.0)
        raise
    return server


def _completed(grpc_url: str, model: str) -> "dict[str, ModelConfig]":
    """The configurations of the model and of all that it runs if it is an ensemble, itself last."""
    from pilot_client.repository import model_config

    config = model_config(grpc_url, model)
    found: dict[str, ModelConfig] = {}
    for step in config.ensemble_scheduling.step:
        found |= _completed(grpc_url, step.model_name)
    return {**found, model: config}
