"""The server that `sweep` and `tune` start for one model."""

from pathlib import Path
from typing import TYPE_CHECKING

from pilot_base.progress import Say

if TYPE_CHECKING:
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
