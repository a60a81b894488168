"""Runs a plan on a GPU, with torch's tensors as its memory, so that it can be compared with the original."""

from typing import Any

from pilot_export.errors import TensorRtError
from pilot_export.spec import Batch
from pilot_export.tensorrt.library import Library


class PlanRunner:
    """One execution context; call it from one thread at a time."""

    def __init__(self, content: bytes, library: Library) -> None:
        trt = library.module
        self._logger = trt.Logger(trt.Logger.ERROR)
        self._engine = trt.Runtime(self._logger).deserialize_cuda_engine(content)
        if self._engine is None:
            raise TensorRtError(f"{library.name} cannot load the plan: it is of another version or for another GPU")
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self._outputs = [name for name in names if self._engine.get_tensor_mode(name) == trt.TensorIOMode.OUTPUT]
        self._dtypes = {name: _torch_type(trt, self._engine.get_tensor_dtype(name)) for name in names}

    def __call__(self, batch: Batch) -> Batch:
        """Outputs of `batch`, on the CPU again.

        Raises:
            TensorRtError: a shape outside the profile, or a failed run.
        """
        import torch

        inputs = {name: torch.from_numpy(array).cuda().contiguous() for name, array in batch.items()}
        for name, tensor in inputs.items():
            if not self._context.set_input_shape(name, tuple(tensor.shape)):
                raise TensorRtError(f"{name} {list(tensor.shape)} is outside the profile that the plan was built for")
            self._context.set_tensor_address(name, tensor.data_ptr())
        outputs = {
            name: torch.empty(tuple(self._context.get_tensor_shape(name)), dtype=self._dtypes[name], device="cuda")
            for name in self._outputs
        }
        for name, tensor in outputs.items():
            self._context.set_tensor_address(name, tensor.data_ptr())
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        # The inputs were copied on the default stream.
        stream.wait_stream(torch.cuda.current_stream())
        if not self._context.execute_async_v3(stream.cuda_stream):
            raise TensorRtError("the plan failed to run")
        stream.synchronize()
        return {name: tensor.float().cpu().numpy() for name, tensor in outputs.items()}


def has_cuda_torch() -> bool:
    import torch

    return torch.cuda.is_available()


def _torch_type(trt: Any, kind: Any) -> Any:
    import torch

    types = {
        trt.float32: torch.float32,
        trt.float16: torch.float16,
        trt.bfloat16: torch.bfloat16,
        trt.int32: torch.int32,
        trt.int64: torch.int64,
        trt.int8: torch.int8,
        trt.uint8: torch.uint8,
        trt.bool: torch.bool,
    }
    return types[kind]
