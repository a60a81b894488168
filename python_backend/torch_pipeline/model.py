"""A backend for PyTorch modules whose stages overlap: `backend: "torch_pipeline"`.

Triton starts one process (the stub) per instance and imports this file in it as `model`.

    auto_complete_config    in a stub of its own; completes the configuration from a torch.export package
    initialize              loads the module in eval mode, starts the pipeline
    execute                 copies the inputs, hands them to the pipeline and returns: Triton may send the next batch
    finalize                answers what is inside, ends the threads

Each answer is sent through its request's own sender, from the pipeline's last thread (pilot_torch/pipeline.py, which
lists the shared state); any client works, since the model is not decoupled. Each request gets exactly one.
"""

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from pilot_torch.errors import CancelledError, LoadError, RequestError
from pilot_torch.machine import usable_cpus
from pilot_torch.settings import DEFAULT_PACKAGE, read_settings


class TritonPythonModel:
    """One instance of a model."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what config.pbtxt leaves out, where a package tells it."""
        config = auto_complete_model_config.as_dict()
        if not (config.get("input") and config.get("output")) and "module" not in config.get("parameters", {}):
            # Imported only here: a complete configuration need not wait for torch.
            from pilot_torch.module_source import open_package
            from pilot_torch.signature import complete

            complete(config, open_package(_version_dir() / (config.get("default_model_filename") or DEFAULT_PACKAGE)))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """What this raises is shown to the one who loads the model."""
        config = json.loads(args["model_config"])
        settings = read_settings(config, usable_cpus())
        # A wrong parameter is told before torch is loaded, which takes seconds.
        import torch
        from pilot_torch.device import choose_device
        from pilot_torch.functions import make_functions
        from pilot_torch.module_source import load_module
        from pilot_torch.pipeline import Pipeline
        from pilot_torch.signature import check_types
        from pilot_torch.timeline import Timeline

        _check_that_arrays_pass()
        check_types(config, has_preprocess=bool(settings.preprocess), has_postprocess=bool(settings.postprocess))
        version_dir = Path(args["model_repository"]) / args["model_version"]
        device = choose_device(args["model_instance_kind"], int(args["model_instance_device_id"]))
        module = load_module(settings, version_dir, device.torch_device)
        self._arrays = {e["name"] for e in config["input"] if e["data_type"] in ("TYPE_BOOL", "TYPE_STRING")}
        self._pipeline = Pipeline(
            make_functions(module, settings, config, version_dir),
            device,
            is_batched=config["max_batch_size"] > 0,
            num_prepare_threads=settings.preprocess_threads,
            batches_in_flight=settings.batches_in_flight,
            num_compute_threads=settings.intra_op_threads,
            timeline=Timeline(Path(settings.timeline_file) if settings.timeline_file else None),
        )
        pb_utils.Logger.log_info(
            f"{args['model_instance_name']}: {type(module).__name__} on {device.torch_device}, "
            f"{settings.intra_op_threads} threads, {settings.batches_in_flight} batches in flight, "
            f"torch {torch.__version__}"
        )

    def execute(self, requests: list[Any]) -> None:
        """Hand the requests on. When this returns their memory is the server's again, so the inputs are copied."""
        from pilot_torch.pipeline import Request

        batch = []
        for request in requests:
            sender = request.get_response_sender()
            try:
                inputs = {tensor.name(): self._copied(tensor) for tensor in request.inputs()}
            # Whatever cannot be read is the answer to its request: nothing may stop the other requests.
            except Exception as error:  # noqa: BLE001
                _send(sender, error)
                continue
            batch.append(Request(inputs, partial(_send, sender), sender.is_cancelled))
        if batch:
            self._pipeline.submit(batch)

    def finalize(self) -> None:
        self._pipeline.close()

    def _copied(self, tensor: Any) -> Any:
        import torch

        # The stub's DLPack knows no text, and hands bool over as something else.
        if tensor.name() in self._arrays:
            return tensor.as_numpy().copy()
        return torch.utils.dlpack.from_dlpack(tensor).clone()


def _send(sender: Any, result: Any) -> None:
    try:
        response = _response(result)
    except Exception as error:  # noqa: BLE001  An answer that cannot be sent ends its request with the reason.
        response = _response(error)
    try:
        sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except Exception as error:  # noqa: BLE001  Its client has left; the pipeline goes on.
        pb_utils.Logger.log_warn(f"an answer could not be sent: {error}")


def _response(result: Any) -> Any:
    if isinstance(result, RequestError):
        return _error(str(result), pb_utils.TritonError.INVALID_ARG)
    if isinstance(result, CancelledError):
        return _error(str(result), pb_utils.TritonError.CANCELLED)
    if isinstance(result, Exception):
        return _error(f"{type(result).__name__}: {result}", pb_utils.TritonError.INTERNAL)
    return pb_utils.InferenceResponse([_tensor(name, value) for name, value in result.items()])


def _error(text: str, code: int) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, code))


def _tensor(name: str, value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor) and value.dtype != torch.bool:
        return pb_utils.Tensor.from_dlpack(name, value.contiguous())
    return pb_utils.Tensor(name, np.ascontiguousarray(value))


def _version_dir() -> Path:
    # No argument of ours holds it while the configuration is completed; the stub's command line always does.
    path = Path(Path("/proc/self/cmdline").read_bytes().split(b"\0")[1].decode())
    return path if path.is_dir() else path.parent


def _check_that_arrays_pass() -> None:
    """Refuse a numpy that this server's stub was not built for: it would answer with garbage, and not say so."""
    sent = np.arange(1, 7, dtype=np.int32).reshape(2, 3)
    received = pb_utils.Tensor.from_dlpack("probe", pb_utils.Tensor("probe", sent)).as_numpy()
    if not np.array_equal(sent, received):
        raise LoadError(
            f"this server's Python stub cannot read arrays of numpy {np.__version__}: requests would be answered with "
            'garbage. Install "numpy<2" in the environment that the server starts Python from'
        )
