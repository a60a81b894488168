"""Our backend through the real tritonserver: gRPC streams, as many clients as requests in flight, on the same cores.

Its clients take the next request as soon as they are done with one, so as many run at once as in the engine alone.
Options are fields of model.json, `stream_interval` above all. The figures hold the CPU of server, stub and clients.
"""

import json
import queue
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from precisions import SETTINGS
from protocol import Stamps, parse, report

arguments = parse(list(SETTINGS))

import grpc  # noqa: E402
import numpy as np  # noqa: E402
from tritonclient.grpc import InferInput, service_pb2, service_pb2_grpc  # noqa: E402

from pilot_server.embedded import start_embedded  # noqa: E402

_MODEL = "model"


def main() -> None:
    with tempfile.TemporaryDirectory() as room:
        repository = Path(room)
        version_dir = repository / _MODEL / "1"
        version_dir.mkdir(parents=True)
        (repository / _MODEL / "config.pbtxt").write_text('backend: "inflight"\n')
        settings = {
            "model": str(arguments.model),
            "max_model_len": 1024,
            "max_num_seqs": arguments.in_flight,
            **SETTINGS[arguments.precision],
            **arguments.options,
        }
        (version_dir / "model.json").write_text(json.dumps(settings))
        started_s = time.perf_counter()
        server = start_embedded(repository, log_file=repository / "server.log", ready_timeout_s=300)
        load_s = time.perf_counter() - started_s
        try:
            report(
                arguments,
                lambda requests, name: _run(server.grpc_url, requests),
                engine="inflight through tritonserver",
                load_s=load_s,
            )
        finally:
            server.stop(drain_s=0.0)


def _run(url: str, requests: Sequence[Mapping[str, Any]]) -> Stamps:
    stamps, errors = Stamps(), list[str]()
    waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    for request in requests:
        waiting.put(request)
    clients = [
        threading.Thread(target=_client, args=(url, waiting, stamps, errors)) for _ in range(arguments.in_flight)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if errors:
        raise SystemExit(errors[0])
    return stamps


def _client(url: str, waiting: "queue.SimpleQueue[Mapping[str, Any]]", stamps: Stamps, errors: list[str]) -> None:
    # A pool of its own: else all clients of this process would share one connection.
    with grpc.insecure_channel(url, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while True:
            try:
                request = waiting.get_nowait()
            except queue.Empty:
                return
            num_messages = 0
            for response in stub.ModelStreamInfer(_only(_message(request))):
                if response.error_message:
                    errors.append(response.error_message)
                    return
                num_messages += 1
                stamps.hit(request["id"])
            # A message may hold several tokens; to let each one say how many would make it dearer.
            stamps.hit(request["id"], request["max_tokens"] - num_messages)
            stamps.num_messages += num_messages


def _only(message: Any) -> Iterator[Any]:
    yield message


def _message(request: Mapping[str, Any]) -> Any:
    wishes = {"temperature": 0, "max_tokens": request["max_tokens"], "ignore_eos": True}
    tensors = {
        "input_ids": np.array(request["prompt"], dtype=np.int32),
        "stream": np.array([True]),
        "sampling_parameters": np.array([json.dumps(wishes).encode()], dtype=object),
    }
    kinds = {"input_ids": "INT32", "stream": "BOOL", "sampling_parameters": "BYTES"}
    message = service_pb2.ModelInferRequest(model_name=_MODEL)
    for name, array in tensors.items():
        tensor = InferInput(name, list(array.shape), kinds[name])
        tensor.set_data_from_numpy(array)
        message.inputs.append(tensor._get_tensor())
        message.raw_input_contents.append(tensor._get_content())
    return message


main()
