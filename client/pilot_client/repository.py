"""Controls a running server's model repository (explicit model control) over gRPC.

A failed load of a model that is being served leaves the old one serving. A load with an override replaces the whole
configuration, and a plain load afterwards does not bring the file's configuration back: unload first.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_client.connection import grpc_connection, one_line
from pilot_client.errors import ClientError, ModelNotReadyError, RequestTimeoutError, ServerUnreachableError
from pilot_client.model_config import to_json

POLL_S = 0.1


@dataclass(frozen=True)
class ModelState:
    """One row of the repository index. A model that was never loaded has no version and no state."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def is_ready(self) -> bool:
        return self.state == "READY"


@dataclass(frozen=True)
class TensorMetadata:
    """`shape` as a request carries it (with the batch dimension); -1 is free."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.datatype} [{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class ModelMetadata:
    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def load(url: str, model: str, config: ModelConfig | None = None, timeout_s: float = 120.0) -> None:
    """Load or reload `model`; with `config` (a full message), under that configuration instead of the file's.

    Raises:
        ModelNotReadyError: the model cannot be loaded; carries the server's reason.
    """
    override = None if config is None else to_json(config)
    with _refusal_blames(model, "loaded"), grpc_connection(url) as connection:
        connection.load_model(model, config=override, client_timeout=timeout_s)


def unload(url: str, model: str, timeout_s: float = 60.0) -> None:
    """Unload `model`, and return when its running requests have left and its instances are gone."""
    with _refusal_blames(model, "unloaded"), grpc_connection(url) as connection:
        connection.unload_model(model, client_timeout=timeout_s)
    deadline = time.monotonic() + timeout_s
    while any(row.name == model and row.state in ("READY", "UNLOADING") for row in list_models(url, timeout_s)):
        if time.monotonic() > deadline:
            raise RequestTimeoutError(f"model {model!r} was still unloading after {timeout_s:g} s")
        time.sleep(POLL_S)


def list_models(url: str, timeout_s: float = 10.0) -> list[ModelState]:
    """Every model that the server sees in its repository, loaded or not."""
    with grpc_connection(url) as connection:
        index = connection.get_model_repository_index(client_timeout=timeout_s)
    return [ModelState(row.name, row.version, row.state, row.reason) for row in index.models]


def wait_ready(url: str, model: str, timeout_s: float = 60.0) -> None:
    """Return once the server would answer a request to `model`.

    Raises:
        RequestTimeoutError: not ready in time; carries the state and the reason that the index gives.
        ServerUnreachableError: nothing answers at the address.
    """
    deadline = time.monotonic() + timeout_s
    with grpc_connection(url) as connection:
        while not connection.is_model_ready(model, client_timeout=timeout_s):
            if time.monotonic() > deadline:
                rows = [one_line(f"{row.state} {row.reason}") for row in list_models(url) if row.name == model]
                state = "; ".join(row for row in rows if row) or ("not loaded" if rows else "not in the repository")
                raise RequestTimeoutError(f"model {model!r} was not ready after {timeout_s:g} s ({state})")
            time.sleep(POLL_S)


def model_config(url: str, model: str, timeout_s: float = 10.0) -> ModelConfig:
    """The configuration that the server runs `model` with, defaults filled in."""
    with grpc_connection(url) as connection:
        response: Any = connection.get_model_config(model, client_timeout=timeout_s)
    config = ModelConfig()
    config.CopyFrom(response.config)
    return config


def model_metadata(url: str, model: str, timeout_s: float = 10.0) -> ModelMetadata:
    """Names, types and shapes of the tensors of `model`."""
    with grpc_connection(url) as connection:
        found: Any = connection.get_model_metadata(model, client_timeout=timeout_s)
    return ModelMetadata(
        name=found.name,
        versions=tuple(found.versions),
        platform=found.platform,
        inputs=tuple(TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in found.inputs),
        outputs=tuple(TensorMetadata(t.name, t.datatype, tuple(t.shape)) for t in found.outputs),
    )


@contextmanager
def _refusal_blames(model: str, verb: str) -> Iterator[None]:
    """Triton refuses to load or unload with many codes; whatever the code, it is the model that is not ready."""
    try:
        yield
    except (ServerUnreachableError, RequestTimeoutError):
        raise
    except ClientError as error:
        raise ModelNotReadyError(f"model {model!r} cannot be {verb}: {error}") from error
