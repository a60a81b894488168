"""Triton's door to the engine: `backend: "inflight"` in a config.pbtxt brings a model here.

Triton starts one process (the stub) per instance and imports this file in it as `model`.

    auto_complete_config    in a stub of its own: model.json names the contract, which completes config.pbtxt
    initialize              model.json, tokenizer, weights -> engine and metrics; whatever is wrong fails the load
    execute                 Triton's thread: reads and checks fields, submits, returns at once; never waits
    finalize                running requests get `drain_s` to end, the rest is cancelled; no thread is left

Nothing is decided here: pilot_llm/contracts reads and writes tensors, pilot_llm/triton_sink.py sends responses, and the
life of a request is drawn in pilot_llm/engine.py.

Shared state: `_engine` and `_metrics`, set once before the first request; both may be called from any thread.
"""

import gc
import itertools
import json
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pilot_llm.config import EngineConfig
from pilot_llm.contracts import contract_named
from pilot_llm.contracts.model_config import check, complete, engine_arguments, with_device
from pilot_llm.errors import ConfigError, ErrorCode, InvalidRequestError, UnavailableError
from pilot_llm.request import Request, RequestError
from pilot_llm.triton_control import is_explicit, server_command_line
from pilot_llm.triton_log import log_to_triton
from pilot_llm.triton_metrics import TritonMetrics
from pilot_llm.triton_sink import ResponseGroup, TritonSink, error_response

_MODEL_JSON = "model.json"


class TritonPythonModel:
    """One instance: one engine with its weights and its KV cache."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Write the contract's tensors. Not called with --disable-auto-complete-config."""
        # Triton does not say which model this is about; the stub's own command line does.
        version_dir = Path(Path("/proc/self/cmdline").read_bytes().split(b"\0")[1].decode()).parent
        config = EngineConfig.from_json(version_dir / _MODEL_JSON, version_dir)
        complete(auto_complete_model_config, contract_named(config.inflight.contract))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; what this raises is shown to the one who loads it."""
        from pilot_llm.engine import Engine
        from pilot_llm.runner import load_runner
        from pilot_llm.tokenizer import HfTokenizer

        log_to_triton()
        _check_that_arrays_pass()
        self._name = args["model_name"]
        version_dir = Path(args["model_repository"]) / args["model_version"]
        arguments = engine_arguments(json.loads(args["model_config"]))
        config = EngineConfig.from_json(version_dir / _MODEL_JSON, version_dir, arguments)
        config = with_device(config, args["model_instance_kind"], int(args["model_instance_device_id"]))
        self._contract = contract_named(config.inflight.contract)
        check(json.loads(args["model_config"]), self._contract, is_complete=True)
        tokenizer = HfTokenizer.from_folder(config.tokenizer)
        self._engine = Engine(config, load_runner(config), tokenizer, on_dead=self._unload)
        self._metrics = TritonMetrics(self._engine.metrics.snapshot, self._name, args["model_version"])
        self._request_numbers = itertools.count()
        # What is loaded stays: a full collection that walks through it holds up a step for a tenth of a second.
        gc.collect()
        gc.freeze()
        self._engine.start()

    def is_ready(self) -> bool:
        """Asked by servers that know it (2.51 does not: there, a dead engine unloads its model)."""
        return self._engine.is_healthy

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests to the engine. Every one of them gets its final response from elsewhere, later, or an
        error at once; so nothing is returned."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._submit(request, sender)
            except Exception as error:  # noqa: BLE001 a defect of ours must cost this request only
                _refuse(sender, self._request_error(error))

    def finalize(self) -> None:
        """Called by Triton once the model takes no more requests."""
        left = self._engine.shutdown()
        if left:
            pb_utils.Logger.log_error(f"{self._name}: threads that do not end: {', '.join(left)}")
        self._metrics.close()

    def _submit(self, request: Any, sender: Any) -> None:
        arrays = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        parsed = self._contract.parse(arrays, json.loads(request.parameters() or "{}"), request.timeout())
        group = ResponseGroup(sender, len(parsed), on_closed=self._metrics.request_closed)
        self._metrics.request_opened()
        submitted: list[str] = []
        for index, row in enumerate(parsed):
            # Ids that clients choose may repeat; the engine's may not.
            request_id = f"{request.request_id() or 'request'}#{next(self._request_numbers)}"
            try:
                self._engine.submit(
                    Request(
                        request_id=request_id,
                        prompt=row.prompt,
                        params=row.params,
                        stream=row.stream,
                        priority=row.priority,
                        timeout_s=row.timeout_s,
                        cache_salt=row.cache_salt,
                        add_special_tokens=row.add_special_tokens,
                        return_cumulative_logprob=row.return_cumulative_logprob,
                        sink=TritonSink(group, row.format),
                    )
                )
            except Exception as error:  # noqa: BLE001 a defect of ours, like a refusal, ends this request by its group
                group.give_up(len(parsed) - index, self._request_error(error))
                # Nobody will read what the rows before it have to say, and the refusal comes when they have ended.
                for row_id in submitted:
                    self._engine.cancel(row_id)
                return
            submitted.append(request_id)

    def _request_error(self, error: Exception) -> RequestError:
        """What the client is told; a defect of ours is logged, too."""
        if isinstance(error, (InvalidRequestError, UnavailableError)):
            return RequestError(error.code, str(error))
        pb_utils.Logger.log_error(f"{self._name}: a request failed in execute: {traceback.format_exc()}")
        return RequestError(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")

    def _unload(self, reason: str) -> None:
        """The engine is dead: make /ready say so. Triton goes on serving what is in flight, then calls finalize."""
        if is_explicit(server_command_line()):
            pb_utils.Logger.log_error(f"{self._name}: the engine is dead, the model unloads itself: {reason}")
            pb_utils.unload_model(self._name)
        else:
            pb_utils.Logger.log_error(
                f"{self._name}: the engine is dead, and every request is refused until the server is started anew; to "
                f"unload itself the model needs --model-control-mode=explicit: {reason}"
            )


def _refuse(sender: Any, error: RequestError) -> None:
    sender.send(error_response(error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _check_that_arrays_pass() -> None:
    """Refuse a numpy that this stub was not built for.

    A stub built before numpy 2 reads numpy 2's arrays at the wrong offsets: inputs are garbage, outputs are empty, and
    nothing says so. The round trip through DLPack makes the stub build an array, which shows it.
    """
    sent = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    received = pb_utils.Tensor.from_dlpack("probe", pb_utils.Tensor("probe", sent)).as_numpy()
    if not np.array_equal(sent, received):
        raise ConfigError(
            f"this server's Python stub cannot read arrays of numpy {np.__version__}: requests would be answered with "
            'garbage. Install "numpy<2" in the environment that the server starts Python from'
        )
