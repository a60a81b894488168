"""Text tensors: Triton carries bytes, ONNX strings are UTF-8 text.

Object arrays only: numpy's fixed-width bytes type drops zero bytes at the end.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot_onnxruntime.errors import RequestError


def decoded(array: NDArray[Any], name: str) -> NDArray[Any]:
    """`array` of bytes as one of str.

    Raises:
        RequestError: an element is not UTF-8, which onnxruntime's strings must be.
    """
    texts = np.empty(array.size, dtype=np.object_)
    try:
        texts[:] = [element.decode() if isinstance(element, bytes) else str(element) for element in array.flat]
    except UnicodeDecodeError as error:
        raise RequestError(
            f"input {name!r} holds bytes that are not UTF-8 ({error.reason}). Encode them, for example as base64"
        ) from error
    return texts.reshape(array.shape)
