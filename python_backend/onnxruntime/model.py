"""Stand-in for Triton's C++ onnxruntime backend on a server that has only the Python backend.

A model with `backend: "onnxruntime"` or `platform: "onnxruntime_onnx"` runs here as it is, and on the C++ backend of
NVIDIA's container. Triton starts one process (the stub) per instance and imports this file in it as `model`.

    auto_complete_config    in a stub of its own that sees only the configuration
    initialize              opens the session as config.pbtxt says; a disagreement with the graph fails the load
    execute                 one session run per shape among the requests (pilot_onnxruntime/batching.py)

A request that was cancelled while it waited is not run. Triton's dynamic batcher drops it; without that batcher it gets
here, and execute() asks for it. The question is a round trip to the server (0.2 ms), so it is asked only where the
runs are so long that it adds at most 2%.

Shared state: none. Instances are processes, and Triton calls execute() of one from a single thread.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from pilot_onnxruntime.errors import CancelledError, LoadError, RequestError

from pilot_base.cpus import usable_cpus

# What one `is_cancelled()` may be asked for: 50 times its cost of 0.2 ms.
_RUN_WORTH_A_QUESTION_S = 50 * 0.0002


class TritonPythonModel:
    """One instance of a model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what config.pbtxt leaves out. Not called with --disable-auto-complete-config."""
        from pilot_onnxruntime import autocomplete

        config = auto_complete_model_config.as_dict()
        if autocomplete.needs_completion(config):
            # Imported only here: a complete configuration need not wait for onnxruntime.
            from pilot_onnxruntime import session

            autocomplete.complete(config, session.read_signature(session.find_model_file(_model_path())))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session; what this raises is shown to the one who loads the model."""
        import onnxruntime
        from pilot_onnxruntime import instance, providers, session, settings

        config = json.loads(args["model_config"])
        kind, device_id = args["model_instance_kind"], int(args["model_instance_device_id"])
        _check_that_arrays_pass()
        path = session.find_model_file(_model_path())
        options = settings.session_settings(config, usable_cpus())
        available = onnxruntime.get_available_providers()
        chosen, ignored = providers.choose_providers(config, kind, device_id, available)
        opened = session.open_session(path, options, chosen, kind)
        self._instance = instance.Instance(opened, config, options.run_entries)
        self._has_one_output = len(self._instance.output_names) == 1
        self._last_run_s = 0.0
        for sentence in ignored:
            pb_utils.Logger.log_warn(f"{args['model_instance_name']}: ignored {sentence}")
        pb_utils.Logger.log_info(
            f"{args['model_instance_name']}: {path.name} on {opened.get_providers()[0]}, "
            f"{options.intra_op_threads} intra-op threads, onnxruntime {onnxruntime.__version__}"
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request, in their order."""
        instance = self._instance
        names = instance.output_names
        if not self._has_one_output:
            names = instance.wanted(request.requested_output_names() for request in requests)
        asks_for_cancellation = self._last_run_s > _RUN_WORTH_A_QUESTION_S * len(requests)
        feeds, refused = [], {}
        for index, request in enumerate(requests):
            try:
                if asks_for_cancellation and request.is_cancelled():
                    raise CancelledError("the request was cancelled before it ran")
                feeds.append(instance.feed({tensor.name(): tensor.as_numpy() for tensor in request.inputs()}))
            except RequestError as error:
                refused[index] = error
        started_s = time.monotonic()
        results = iter(instance.run(feeds, names) if feeds else ())
        if feeds:
            self._last_run_s = time.monotonic() - started_s
        return [
            _response(names, refused[index] if index in refused else next(results)) for index in range(len(requests))
        ]


def _response(names: list[str], result: Any) -> Any:
    if isinstance(result, Exception):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(result), _code(result)))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in zip(names, result, strict=True)])


def _code(error: Exception) -> Any:
    if isinstance(error, CancelledError):
        return pb_utils.TritonError.CANCELLED
    # onnxruntime says InvalidArgument when the request's values or shapes do not fit the graph.
    if isinstance(error, RequestError) or type(error).__name__ == "InvalidArgument":
        return pb_utils.TritonError.INVALID_ARG
    return pb_utils.TritonError.INTERNAL


def _model_path() -> Path:
    """The file or folder that Triton chose for this version, with default_model_filename applied."""
    # No argument of ours holds it while the configuration is completed; the stub's command line always does.
    return Path(Path("/proc/self/cmdline").read_bytes().split(b"\0")[1].decode())


def _check_that_arrays_pass() -> None:
    """Refuse a numpy that this stub was not built for.

    A stub built before numpy 2 reads numpy 2's arrays at the wrong offsets: inputs are garbage, outputs are empty, and
    nothing says so. The round trip through DLPack makes the stub build an array, which shows it.
    """
    sent = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    received = pb_utils.Tensor.from_dlpack("probe", pb_utils.Tensor("probe", sent)).as_numpy()
    if not np.array_equal(sent, received):
        raise LoadError(
            f"this server's Python stub cannot read arrays of numpy {np.__version__}: requests would be answered with "
            'garbage. Install "numpy<2" in the environment that the server starts Python from'
        )
