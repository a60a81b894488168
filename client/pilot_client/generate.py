"""Text from a language model over a gRPC stream: token by token, or in one piece.

Works with any model that takes the tensors of Triton's vllm_backend or of TensorRT-LLM: which of the two is read from
the model's metadata. Sampling parameters have vLLM's names in both.

    for piece in stream("127.0.0.1:8001", "smollm2", "Why is the sky blue?", {"max_tokens": 64}):
        print(piece.text, end="", flush=True)

One call is one stream with one deadline, so a server that never answers ends in an error, not in a hang. Leaving the
loop, or closing the iterator, cancels the request on the server. Any thread may call; nothing is shared.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import grpc
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from pilot_client.connection import one_line, translated
from pilot_client.errors import (
    BadRequestError,
    ClientError,
    ModelNotReadyError,
    RequestCancelledError,
    RequestTimeoutError,
)
from pilot_client.generate_tensors import Piece, dialect_of, join

DEFAULT_TIMEOUT_S = 300.0

_CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
# On a stream an error is text only, without a status; our backend puts Triton's code in front.
_BY_CODE_WORD: dict[str, type[ClientError]] = {
    "INVALID_ARG": BadRequestError,
    "UNAVAILABLE": ModelNotReadyError,
    "CANCELLED": RequestCancelledError,
}


def stream(
    url: str,
    model: str,
    prompt: str | Sequence[int],
    params: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Iterator[Piece]:
    """The pieces of the answer as they are made; the last one carries the finish reasons.

    Args:
        prompt: text, or token ids.
        params: sampling parameters, and `priority`, `timeout` (microseconds), `cache_salt`, `add_special_tokens`.
        timeout_s: from the call to the last piece.

    Raises:
        BadRequestError: refused as wrong; names the field.
        ModelNotReadyError: unknown, not loaded, no language model, or too busy for now.
        RequestTimeoutError: no end within the deadline.
        RequestCancelledError: ended by the server before it was done.
        ServerUnreachableError: nothing answers at `url`.
    """
    return _pieces(url, model, prompt, params or {}, timeout_s, is_stream=True)


def generate(
    url: str,
    model: str,
    prompt: str | Sequence[int],
    params: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Piece:
    """The whole answer, without the prompt, sent by the server when it is done. Arguments and errors as in `stream`."""
    pieces = list(_pieces(url, model, prompt, params or {}, timeout_s, is_stream=False))
    if not pieces:
        raise ClientError(f"model {model!r} ended its answer without any response")
    return join(pieces)


def _pieces(
    url: str, model: str, prompt: str | Sequence[int], params: Mapping[str, Any], timeout_s: float, *, is_stream: bool
) -> Iterator[Piece]:
    with _rpc(url, timeout_s), closing(grpc.insecure_channel(url, options=_CHANNEL_OPTIONS)) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=model), timeout=timeout_s)
        dialect = dialect_of(model, {tensor.name for tensor in metadata.inputs})
        request = dialect.request(model, prompt, params, is_stream=is_stream)
        # Not tritonclient's own stream: it leaves a blocked thread behind for every cancelled request.
        call = stub.ModelStreamInfer(iter([request]), timeout=timeout_s)
        error: ClientError | InferenceServerException | None = None
        try:
            # Read to the end, beyond the last piece and beyond an error: to cancel a stream while the server is ending
            # it makes 2.51 keep the request for good, and with it a model that can never be unloaded.
            for response in call:
                if response.error_message:
                    error = error or _model_error(response.error_message)
                # A response without tensors only tells that the end has come.
                elif error is None and response.infer_response.outputs:
                    yield dialect.piece(InferResult(response.infer_response), params)
        finally:
            call.cancel()
        if error is not None:
            raise error


@contextmanager
def _rpc(url: str, timeout_s: float) -> Iterator[None]:
    """Raise what gRPC raises in the block as a ClientError."""
    with translated(url, "grpc"):
        try:
            yield
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise RequestTimeoutError(
                    f"no end of the answer within {timeout_s:g} s; raise the timeout, ask for fewer tokens, or see "
                    "whether the model still runs (a killed backend process leaves its streams open)"
                ) from error
            raise InferenceServerException(msg=error.details(), status=str(error.code())) from error


def _model_error(message: str) -> ClientError | InferenceServerException:
    word, separator, rest = message.partition(": ")
    if rest.startswith("the request's timeout of"):
        # Triton has no code for it; our backend, like Triton's own queues, answers UNAVAILABLE.
        return RequestTimeoutError(one_line(rest))
    if separator and word in _BY_CODE_WORD:
        return _BY_CODE_WORD[word](one_line(rest))
    if "is not healthy" in message:
        return ModelNotReadyError(f"the model's backend process has died: {one_line(message)}")
    return InferenceServerException(msg=message)
