"""Carries an engine's outputs to Triton's response sender: tensors, errors with codes, exactly one final flag.

A Triton request of the tensorrtllm contract may hold several rows. Each row is a request of the engine with a sink of
its own; together they are one `ResponseGroup`, and the last one that finishes closes it:

    sink 0 --.
    sink 1 ---+--> ResponseGroup --> response_sender.send(response, flags)      FINAL once, on the last response
    sink 2 --'

The final response frees what Triton keeps for a request, and to ask for its cancellation then crashes the whole server
(2.51 reads freed memory). So a question and the final send exclude each other: who sends it first shuts the door to new
questions, and waits for the one under way (0.2 ms).

Shared state: the group's count of open rows, its error, `_is_ending` and `_num_questions`, under its lock, which is
never held across a send or a question.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import triton_python_backend_utils as pb_utils

from pilot_llm.contracts import Response, ResponseFormat
from pilot_llm.errors import ErrorCode
from pilot_llm.request import RequestError, RequestOutput

_log = logging.getLogger(__name__)

_FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class ResponseSender(Protocol):
    """The part of Triton's own object that is used here."""

    def send(self, response: Any = None, flags: int = 0) -> None: ...
    def is_cancelled(self) -> bool: ...


class ResponseGroup:
    """The one response stream of a Triton request, shared by its rows."""

    def __init__(self, sender: ResponseSender, num_rows: int, on_closed: Callable[[], None]) -> None:
        """`on_closed` is called once, when the final response has been sent."""
        self._sender = sender
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_open = num_rows
        self._error: RequestError | None = None
        self._is_ending = False
        self._num_questions = 0  # to Triton, under way

    def send(self, responses: list[Any], *, ends_row: bool) -> None:
        """Send what one row has to say; with `ends_row` it says no more."""
        with self._lock:
            # Only once every other row has sent all of its own is this row's last response the last of all.
            is_last = ends_row and self._num_open == 1
            is_given_up = self._error is not None
        is_final_sent = False
        try:
            if not is_given_up:
                for index, response in enumerate(responses, start=1):
                    if is_last and index == len(responses):
                        self._send_final(response)
                        is_final_sent = True
                    else:
                        self._sender.send(response)
        except Exception as error:
            if ends_row:
                with self._lock:
                    self._error = self._error or _lost(error)
            raise
        finally:
            if ends_row:
                self._close_rows(1, is_final_sent=is_final_sent)

    def give_up(self, num_rows: int, error: RequestError) -> None:
        """Answer the whole request with `error`, once the rows that are under way have ended.

        `num_rows` is the number of those that never started. What other rows still have to say is dropped.
        """
        with self._lock:
            self._error = error
        self._close_rows(num_rows, is_final_sent=False)

    def is_cancelled(self) -> bool:
        with self._lock:
            if self._is_ending:
                return False
            self._num_questions += 1
        try:
            return self._sender.is_cancelled()
        finally:
            with self._lock:
                self._num_questions -= 1
                self._changed.notify_all()

    def _send_final(self, response: Any) -> None:
        with self._lock:
            self._is_ending = True
            while self._num_questions:
                self._changed.wait()
        self._sender.send(response, flags=_FINAL)

    def _close_rows(self, num_rows: int, *, is_final_sent: bool) -> None:
        with self._lock:
            self._num_open -= num_rows
            is_closed = self._num_open == 0
            error = self._error
        if not is_closed:
            return
        try:
            if not is_final_sent:
                self._send_final(None if error is None else error_response(error))
        finally:
            self._on_closed()


class TritonSink:
    """The engine's ResponseSink for one row."""

    def __init__(self, group: ResponseGroup, response_format: ResponseFormat) -> None:
        self._group = group
        self._format = response_format

    def send(self, output: RequestOutput) -> None:
        try:
            if output.error is None:
                responses = [_data_response(response) for response in self._format.responses(output)]
            else:
                responses = [error_response(output.error)]
        except Exception as error:
            if not output.finished:
                raise
            # The engine has no more to say, and without a final response Triton would keep the request for good.
            _log.exception("request %s: its last response could not be made", output.request_id)
            responses = [error_response(_lost(error))]
        self._group.send(responses, ends_row=output.finished)

    def is_cancelled(self) -> bool:
        return self._group.is_cancelled()


def _lost(error: Exception) -> RequestError:
    return RequestError(ErrorCode.INTERNAL, f"a part of the answer could not be sent: {error}")


def error_response(error: RequestError) -> Any:
    """The code stands in the text too: an error on a gRPC stream reaches its client as text alone."""
    code = ErrorCode(error.code)
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError(f"{code.value}: {error.message}", getattr(pb_utils.TritonError, code.value))
    )


def _data_response(response: Response) -> Any:
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in response.items()])
