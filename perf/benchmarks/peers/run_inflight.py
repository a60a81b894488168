"""Our own engine, in process: no server, token ids in and out. Options are fields of model.json, and ways to ask:

bench_static         batches of as many requests as run at once, each begun when all of the one before have ended
bench_no_kv_cache    every token is a new request with all that is known by then as its prompt
bench_twice          all requests once more; the second time counts
"""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precisions import SETTINGS
from protocol import Stamps, parse, report

arguments = parse(list(SETTINGS))

from pilot_llm.config import EngineConfig  # noqa: E402  the number of threads is set before torch comes
from pilot_llm.engine import Engine  # noqa: E402
from pilot_llm.request import Request, RequestOutput  # noqa: E402
from pilot_llm.runner import load_runner  # noqa: E402
from pilot_llm.sampling import SamplingParams  # noqa: E402
from pilot_llm.tokenizer import HfTokenizer  # noqa: E402


class _Sink:
    def __init__(self, request: Any, stamps: Stamps, error: list[str]) -> None:
        self.finished = threading.Event()
        self.token_ids: list[int] = []
        self._request, self._stamps, self._error = request, stamps, error

    def send(self, output: RequestOutput) -> None:
        for delta in output.sequences:
            if delta.token_ids:
                self._stamps.hit(self._request, len(delta.token_ids))
                self.token_ids += delta.token_ids
        if output.error is not None:
            self._error.append(output.error.message)
        if output.finished:
            self.finished.set()

    def is_cancelled(self) -> bool:
        return False


def main() -> None:
    started_s = time.perf_counter()
    settings = {
        "model": str(arguments.model),
        "max_model_len": 1024,
        "max_num_seqs": arguments.in_flight,
        **SETTINGS[arguments.precision],
        **{name: value for name, value in arguments.options.items() if not name.startswith("bench_")},
    }
    config = EngineConfig.from_dict(settings, Path.cwd())
    runner = load_runner(config)
    engine = Engine(config, runner, HfTokenizer.from_folder(config.tokenizer))
    engine.start()
    load_s = time.perf_counter() - started_s

    def run(requests: Sequence[Mapping[str, Any]], name: str) -> Stamps:
        if name != "warm-up" and arguments.options.get("bench_no_kv_cache"):
            return _without_kv_cache(engine, requests, name)
        if name != "warm-up" and arguments.options.get("bench_twice"):
            _submit(engine, requests, Stamps(), f"{name}-before")
        size = arguments.in_flight if arguments.options.get("bench_static") else len(requests)
        stamps = Stamps()
        for start in range(0, len(requests), size):
            _submit(engine, requests[start : start + size], stamps, name)
        return stamps

    report(arguments, run, engine="inflight", load_s=load_s, counted=lambda: _counted(engine))
    engine.shutdown(0)


def _counted(engine: Engine) -> dict[str, Any]:
    counters = engine.metrics.snapshot().counters
    names = {"drafts": "num_drafts", "guessed": "num_draft_tokens", "accepted": "num_accepted_tokens"}
    return {
        "prompt_tokens_cached": counters["vllm:prefix_cache_hits_total"],
        "speculation": {name: counters[f"vllm:spec_decode_{counter}_total"] for name, counter in names.items()},
    }


def _submit(engine: Engine, requests: Sequence[Mapping[str, Any]], stamps: Stamps, name: str) -> list[_Sink]:
    """All at once; returns when all have ended."""
    sinks, errors = [], list[str]()
    for request in requests:
        wishes = {
            "temperature": 0,
            "max_tokens": request["max_tokens"],
            "ignore_eos": True,
            **request.get("params", {}),
        }
        sink = _Sink(request["id"], stamps, errors)
        sinks.append(sink)
        params = SamplingParams.from_dict(wishes)
        engine.submit(Request(f"{name}-{request['id']}", request["prompt"], sink, params, stream=True))
    for sink in sinks:
        sink.finished.wait()
    if errors:
        raise SystemExit(f"{name}: {errors[0]}")
    return sinks


def _without_kv_cache(engine: Engine, requests: Sequence[Mapping[str, Any]], name: str) -> Stamps:
    stamps = Stamps()
    known = [{**request, "prompt": list(request["prompt"]), "max_tokens": 1} for request in requests]
    for index in range(max(request["max_tokens"] for request in requests)):
        sinks = _submit(engine, known, stamps, f"{name}-{index}")
        for request, sink in zip(known, sinks, strict=True):
            request["prompt"] += sink.token_ids
    return stamps


main()
