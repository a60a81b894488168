"""The model control and health endpoints of a server, over the standard library's HTTP alone.

A server is started and watched without tritonclient, so that starting one costs no heavy import.
"""

import json
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any

from pilot_server.errors import ServerError

# A model may load weights for a long time.
_LOAD_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class ModelState:
    """One version of a model, as the repository index tells it. `state` is "READY", "UNAVAILABLE", "LOADING", ..."""

    name: str
    version: str
    state: str
    reason: str


def list_states(http_url: str) -> list[ModelState]:
    """Every model that the server has been asked to load, with its state."""
    entries = _call(http_url, "POST", "/v2/repository/index", {})
    return [
        ModelState(item["name"], item.get("version", ""), item["state"], item.get("reason", ""))
        for item in entries
        if item.get("state")
    ]


def busy_models(http_url: str) -> set[str]:
    """Models that serve requests, or are unloading and still have some."""
    return {item.name for item in list_states(http_url) if item.state in ("READY", "UNLOADING")}


def load(http_url: str, model: str, config: dict[str, Any] | None = None) -> None:
    """Load the model from its files, with `config` in place of its own if given. Returns when it is ready.

    Raises:
        ServerError: the server says why it cannot.
    """
    body = {} if config is None else {"parameters": {"config": json.dumps(config)}}
    _call(http_url, "POST", f"/v2/repository/models/{model}/load", body, timeout_s=_LOAD_TIMEOUT_S)


def unload(http_url: str, model: str) -> None:
    """Ask for the unload; the model is gone when its running requests are done."""
    _call(http_url, "POST", f"/v2/repository/models/{model}/unload", {})


def read_config(http_url: str, model: str) -> dict[str, Any]:
    """The configuration that the model is served with, completed by the server."""
    config: dict[str, Any] = _call(http_url, "GET", f"/v2/models/{model}/config")
    return config


def _call(http_url: str, method: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = 10.0) -> Any:
    connection = HTTPConnection(http_url, timeout=timeout_s)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise ServerError(f"The server at {http_url} does not answer {method} {path}: {error}") from error
    finally:
        connection.close()
    try:
        answer = json.loads(text) if text else None
    except ValueError:
        answer = {"error": text}
    if response.status != 200:
        reason = answer.get("error") if isinstance(answer, dict) else text
        raise ServerError(str(reason or f"{method} {path} gave {response.status}"))
    return answer
