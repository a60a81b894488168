"""llama.cpp's server on a local port, one slot for each request in flight, token ids in, tokens streamed back."""

import http.client
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from protocol import THREADS, Stamps, parse, report

_FILES = {"fp32": "f32", "int8": "q8_0", "int4": "q4_0"}

arguments = parse(list(_FILES))


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started_s = time.perf_counter()
    command = [
        *(str(arguments.data / "llama-server"), "-m", str(arguments.data / f"{_FILES[arguments.precision]}.gguf")),
        *("-c", str(1024 * arguments.in_flight), "-np", str(arguments.in_flight), "-t", str(THREADS)),
        *("-tb", str(THREADS), "--host", "127.0.0.1", "--port", str(port), "--no-webui", "--threads-http", "80"),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with (arguments.data / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        _wait_until_ready(server, port)
        load_s = time.perf_counter() - started_s
        report(arguments, lambda requests, name: _run(port, requests), engine="llama.cpp", load_s=load_s)
    finally:
        server.terminate()
        server.wait(20)


def _wait_until_ready(server: "subprocess.Popen[bytes]", port: int) -> None:
    while server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"llama-server has ended: see {arguments.data / 'server.log'}")


def _run(port: int, requests: Sequence[Mapping[str, Any]]) -> Stamps:
    stamps = Stamps()
    threads = [threading.Thread(target=_complete, args=(port, request, stamps)) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return stamps


def _complete(port: int, request: Mapping[str, Any], stamps: Stamps) -> None:
    wishes = {"n_predict": request["max_tokens"], "ignore_eos": True, "temperature": 0, "samplers": ["temperature"]}
    body = {"prompt": request["prompt"], "stream": True, "cache_prompt": True, "return_tokens": True, **wishes}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            tokens = json.loads(line[len(b"data: ") :]).get("tokens")
            if tokens:
                stamps.hit(request["id"], len(tokens))
    connection.close()


main()
