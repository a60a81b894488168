"""A closed loop of requests from threads of this process: for models that answer a few hundred requests a second.

Each thread has a connection of its own, sends its next request when the last is answered, and takes the rows in turn.
"""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc
from tritonclient.utils import np_to_triton_dtype

Inputs = Mapping[str, np.ndarray[Any, Any]]


def requests_per_s(url: str, model: str, requests: Sequence[Inputs], concurrency: int, window_s: float) -> float:
    """Answers within `window_s`, per second; a failed request ends the program."""
    prepared = [_tensors(inputs) for inputs in requests]
    deadline_s = time.perf_counter() + window_s
    counts, failures = [0] * concurrency, []
    turn = itertools.count()

    def client(place: int) -> None:
        with tritonclient.grpc.InferenceServerClient(url) as connection:
            while time.perf_counter() < deadline_s and not failures:
                try:
                    connection.infer(model, prepared[next(turn) % len(prepared)], client_timeout=60)
                except Exception as error:  # noqa: BLE001  Whatever it is, it is shown and ends the program.
                    failures.append(error)
                    return
                if time.perf_counter() < deadline_s:
                    counts[place] += 1

    threads = [threading.Thread(target=client, args=(place,)) for place in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"{model}: a request failed: {failures[0]}")
    return sum(counts) / window_s


def _tensors(inputs: Inputs) -> list[Any]:
    tensors = []
    for name, array in inputs.items():
        tensor = tritonclient.grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensors.append(tensor.set_data_from_numpy(array))
    return tensors
