"""An answer of a freshly exported model that a person can judge, asked over both protocols."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pilot_client.infer import infer

if TYPE_CHECKING:
    from pilot_export.spec import ExportSpec
    from pilot_server.running import RunningServer

_NUM_ROWS = 4


def show_answer(spec: "ExportSpec", server: "RunningServer", show: Callable[[str], None]) -> None:
    """Ask for a few of the spec's sample rows over HTTP and gRPC, and show what came back."""
    rows = {name: array[: min(_NUM_ROWS, spec.max_batch_size)] for name, array in spec.samples.items()}
    over_http = infer(server.http_url, spec.name, rows, protocol="http")
    over_grpc = infer(server.grpc_url, spec.name, rows, protocol="grpc")
    for name, answer in over_grpc.items():
        same = np.array_equal(answer, over_http[name])
        flat = answer.reshape(len(answer), -1)
        start = ", ".join(str(value) for value in flat[0, :4])
        equal = "the same over HTTP and gRPC" if same else "DIFFERENT over HTTP and gRPC"
        show(f"{name} {answer.dtype} {list(answer.shape)}, {equal}: [{start}, ...]")
