"""One request, one answer, over gRPC or HTTP.

`infer` opens a connection per call, so any thread may call it. A request that the server refuses as wrong is answered
with the model's real inputs, asked from the server.
"""

from collections.abc import Mapping
from typing import Any

import gevent  # type: ignore[import-untyped]
import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from pilot_client.address import Protocol
from pilot_client.connection import grpc_connection, http_connection
from pilot_client.errors import BadRequestError, ClientError
from pilot_client.repository import ModelMetadata, TensorMetadata, model_metadata

Arrays = Mapping[str, np.ndarray[Any, Any]]


def infer(
    url: str,
    model: str,
    inputs: Arrays,
    *,
    protocol: Protocol = "grpc",
    timeout_s: float = 30.0,
    num_classes: int | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Send `inputs` by name and return every output by name. Strings are arrays of str, bytes or objects.

    Args:
        num_classes: instead of its values, of each row of each output the largest ones as b"value:index:label".

    Raises:
        BadRequestError: a wrong name, type or shape; names the model's real inputs.
        ModelNotReadyError, RequestTimeoutError, ServerUnreachableError: see pilot_client.errors.
    """
    arrays = {name: _as_sendable(name, array) for name, array in inputs.items()}
    send = _infer_grpc if protocol == "grpc" else _infer_http
    try:
        outputs = [] if num_classes is None else metadata(url, model, protocol=protocol, timeout_s=timeout_s).outputs
        return send(url, model, arrays, timeout_s, {output.name: num_classes or 0 for output in outputs})
    except BadRequestError as error:
        raise BadRequestError(f"{error}{_real_inputs(url, model, protocol, timeout_s)}") from error


def metadata(url: str, model: str, *, protocol: Protocol, timeout_s: float = 10.0) -> ModelMetadata:
    """Names, types and shapes of the tensors of `model`, over either protocol."""
    if protocol == "grpc":
        return model_metadata(url, model, timeout_s)
    with http_connection(url, timeout_s) as connection:
        found = connection.get_model_metadata(model)
    inputs, outputs = (
        tuple(TensorMetadata(t["name"], t["datatype"], tuple(t["shape"])) for t in found.get(key, ()))
        for key in ("inputs", "outputs")
    )
    return ModelMetadata(found["name"], tuple(found.get("versions", ())), found.get("platform", ""), inputs, outputs)


def _as_sendable(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Text as the bytes that Triton's BYTES tensors hold; every other type as it is."""
    if array.dtype.kind == "U":
        try:
            array = np.char.encode(array, "utf-8").astype(np.object_)
        except UnicodeEncodeError as error:
            raise BadRequestError(f"input {name!r}: the text is no UTF-8 ({error})") from error
    if np_to_triton_dtype(array.dtype) is None:
        raise BadRequestError(f"input {name!r}: Triton has no tensor type for numpy's {array.dtype}")
    return array


def _infer_grpc(
    url: str, model: str, arrays: Arrays, timeout_s: float, classes: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    wanted = [tritonclient.grpc.InferRequestedOutput(name, count) for name, count in classes.items()] or None
    with grpc_connection(url) as connection:
        result = connection.infer(
            model, _tensors(tritonclient.grpc.InferInput, arrays), outputs=wanted, client_timeout=timeout_s
        )
        return {output.name: result.as_numpy(output.name) for output in result.get_response().outputs}


def _infer_http(
    url: str, model: str, arrays: Arrays, timeout_s: float, classes: Mapping[str, int]
) -> dict[str, np.ndarray[Any, Any]]:
    requested = tritonclient.http.InferRequestedOutput
    wanted = [requested(name, class_count=count) for name, count in classes.items()] or None
    # The connection's own timeout restarts with every packet; this one is for the whole request.
    with http_connection(url, timeout_s) as connection, gevent.Timeout(timeout_s, TimeoutError):
        result = connection.infer(model, _tensors(tritonclient.http.InferInput, arrays), outputs=wanted)
        return {output["name"]: result.as_numpy(output["name"]) for output in result.get_response()["outputs"]}


def _tensors(kind: type[Any], arrays: Arrays) -> list[Any]:
    tensors = []
    for name, array in arrays.items():
        tensor = kind(name, list(array.shape), np_to_triton_dtype(array.dtype))
        try:
            tensor.set_data_from_numpy(array)
        except InferenceServerException as error:
            raise BadRequestError(f"input {name!r} ({array.dtype}) cannot be sent: {error}") from error
        tensors.append(tensor)
    return tensors


def _real_inputs(url: str, model: str, protocol: Protocol, timeout_s: float) -> str:
    """What the model takes, as the tail of an error message; nothing where the server does not say."""
    try:
        found = metadata(url, model, protocol=protocol, timeout_s=timeout_s)
    except ClientError:
        return ""
    return f". {model} takes " + "; ".join(str(tensor) for tensor in found.inputs)
