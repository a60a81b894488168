"""Where the server listens: `--url`, then the environment's TRITONPILOT_URL, then Triton's own default ports."""

import os
from typing import Literal
from urllib.parse import urlsplit

from pilot_client.errors import ClientError

Protocol = Literal["http", "grpc"]

URL_VARIABLE = "TRITONPILOT_URL"
DEFAULT_URLS: dict[Protocol, str] = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


def resolve_url(url: str | None, protocol: Protocol) -> str:
    """The address as host:port. A scheme that fits the protocol is taken off, since people paste it.

    Raises:
        ClientError: not an address; names where it came from.
    """
    source, text = "--url", url
    if not text:
        source, text = URL_VARIABLE, os.environ.get(URL_VARIABLE)
    if not text:
        return DEFAULT_URLS[protocol]
    scheme, separator, rest = text.strip().rpartition("://")
    if separator and scheme not in ("http", "grpc"):
        raise ClientError(
            f"{source} {text!r}: {scheme}:// is not supported; give host:port, as in {DEFAULT_URLS[protocol]}"
        )
    if scheme and scheme != protocol:
        raise ClientError(f"{source} {text!r} is an address for {scheme}, but {protocol} was asked for")
    try:
        parts = urlsplit(f"//{rest}")
        port = parts.port
    except ValueError:
        port = None
    if port is None or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise ClientError(f"{source} {text!r} is no address: give host:port, as in {DEFAULT_URLS[protocol]}")
    return parts.netloc
