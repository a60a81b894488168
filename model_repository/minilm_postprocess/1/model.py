"""An embedding of length 1 -> int8: each value times 127, rounded.

No value is above 1, so none is cut. Triton calls execute() of an instance from a single thread; nothing is shared.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

_SCALE = 127.0


class TritonPythonModel:
    def initialize(self, args):
        _check_that_arrays_pass()

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        embedding = pb_utils.get_input_tensor_by_name(request, "sentence_embedding").as_numpy()
        if not np.isfinite(embedding).all():
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("the encoder's answer is not finite"))
        whole = np.clip(np.rint(embedding * _SCALE), -_SCALE, _SCALE).astype(np.int8)
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding_int8", whole)])


def _check_that_arrays_pass():
    """Refuse a numpy that this server's stub was not built for: it would answer with garbage, and not say so."""
    sent = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    received = pb_utils.Tensor.from_dlpack("probe", pb_utils.Tensor("probe", sent)).as_numpy()
    if not np.array_equal(sent, received):
        raise pb_utils.TritonModelException(
            f'this server\'s Python stub cannot read arrays of numpy {np.__version__}: install "numpy<2"'
        )
