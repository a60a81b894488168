"""The server that `sweep` and `tune` start for one model."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pilot_base.progress import Say

if TYPE_CHECKING:
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
    from pilot_client.repository import load
    from pilot_server.embedded import existing_repository, start_embedded

    repository = existing_repository(repository)
    require_models(repository, models_of(repository), [model])
    # Not told to load it at its start: a server that cannot would end, and the reason be somewhere in its log.
    server = start_embedded(repository, load=(), say=say)
    try:
        load(server.grpc_url, model, timeout_s=LOAD_TIMEOUT_S)
    except BaseException:
        server.stop(drain_s=0.0)
        raise
    return server
