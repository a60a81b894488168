"""An answer of a freshly exported model that a person can judge, asked over both protocols."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pilot_client.address import Protocol
from pilot_client.infer import infer

if TYPE_CHECKING:
    from pilot_export.spec import ExportSpec
    from pilot_server.running import RunningServer

Arrays = Mapping[str, np.ndarray[Any, Any]]

_NUM_ROWS = 4


def show_answer(spec: "ExportSpec", server: "RunningServer", show: Callable[[str], None]) -> None:
    """Ask the model over HTTP and over gRPC, and show the answer and whether both gave the same."""
    answers = [_answer(spec, _asker(spec.name, server, protocol)) for protocol in ("http", "grpc")]
    for line in answers[0].splitlines():
        show(line)
    show("The same over gRPC" if answers[0] == answers[1] else f"Over gRPC it is another answer:\n{answers[1]}")


def _asker(model: str, server: "RunningServer", protocol: Protocol) -> Callable[[Arrays], dict[str, Any]]:
    url = server.http_url if protocol == "http" else server.grpc_url
    return lambda inputs: infer(url, model, inputs, protocol=protocol)


def _answer(spec: "ExportSpec", ask: Callable[[Arrays], dict[str, Any]]) -> str:
    """In the sample's own words where it has some, else the outputs for a few sample rows."""
    from pilot_export.samples.answers import answerer
    from pilot_export.spec import SAMPLES

    if spec.source in SAMPLES and (sample := answerer(spec.name)) is not None:
        return sample.as_text(sample.answer(ask, ()))
    rows = {name: array[: min(_NUM_ROWS, spec.max_batch_size)] for name, array in spec.samples.items()}
    lines = []
    for name, output in ask(rows).items():
        start = ", ".join(str(value) for value in output.reshape(len(output), -1)[0, :4])
        lines.append(f"{name} {output.dtype} {list(output.shape)}: [{start}, ...]")
    return "\n".join(lines)
