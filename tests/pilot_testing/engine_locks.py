"""What may be called while a lock of the LLM engine is held: containers, arithmetic, conditions, the owner's own books.

And a model whose locks are recorded inside the real backend and the real server; unloaded, it leaves a report.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pilot_server import backends_dir
from pilot_testing.tiny_llm import make_repository

_CONTAINERS = ("deque.", "dict.", "list.", "set.", "tuple.", "type.__new__")
_HARMLESS = {
    "bisect_left", "heapify", "heappop", "heappush", "isinstance", "len", "max", "min", "monotonic",
    "Condition.notify", "Condition.notify_all", "Condition.wait", "Condition.wait_for", "Condition._release_save",
    "EngineMetrics._observe", "_Histogram.observe",
    "Responder._needs_a_look", "Responder._release_held", "ResponseStream.needs_every_token", "_may_finish",
    "Responder.relieve_stuck_workers.<locals>.<listcomp>", "Responder.threads.<locals>.<listcomp>",
    "Responder.wait_until_empty.<locals>.<lambda>",
    "Watcher._wait_for_late.<locals>.<genexpr>", "Watcher.forget.<locals>.<listcomp>",
    "EngineMetrics.snapshot.<locals>.<dictcomp>", "HistogramValues.__init__", "object.__setattr__",
}  # fmt: skip

_MODEL_PY = """
import importlib.util, json, sys, threading
from contextlib import ExitStack
from pathlib import Path

BACKEND = Path({backend!r})
sys.path[:0] = [str(BACKEND), {tests!r}]
import pilot_llm.engine, pilot_llm.triton_metrics, pilot_llm.triton_sink
from pilot_testing.recording_locks import LockRecorder

recorder = LockRecorder()


class RecordedThreading:
    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        return getattr(threading, name)

    def Lock(self):
        return recorder.make_lock(self._name)


class RecordedSender:
    def __init__(self, sender):
        self._sender = sender

    def send(self, *args, **kwargs):
        recorder.check_nothing_held("send")
        return self._sender.send(*args, **kwargs)

    def is_cancelled(self):
        recorder.check_nothing_held("is_cancelled")
        return self._sender.is_cancelled()


Engine, ResponseGroup = pilot_llm.engine.Engine, pilot_llm.triton_sink.ResponseGroup


class RecordedGroup(ResponseGroup):
    def __init__(self, sender, *args, **kwargs):
        super().__init__(RecordedSender(sender), *args, **kwargs)


pilot_llm.triton_sink.threading = RecordedThreading("response group")
pilot_llm.triton_metrics.threading = RecordedThreading("metrics export")
pilot_llm.triton_sink.ResponseGroup = RecordedGroup
pilot_llm.engine.Engine = lambda *args, **kwargs: Engine(*args, make_lock=recorder.make_lock, **kwargs)
spec = importlib.util.spec_from_file_location("inflight_model", BACKEND / "model.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


class TritonPythonModel(module.TritonPythonModel):
    def initialize(self, args):
        self._recording = ExitStack()
        self._recording.enter_context(recorder.record_calls())
        super().initialize(args)

    def finalize(self):
        super().finalize()
        self._recording.close()
        found = {{
            "problems": recorder.problems,
            "edges": sorted(recorder.edges),
            "calls": sorted(recorder.calls),
            "locks": sorted(recorder.names),
        }}
        Path({report!r}).write_text(json.dumps(found))
"""


def unexpected(calls: Iterable[str]) -> set[str]:
    """Those of `calls` that no lock of the engine should see."""
    return {name for name in calls if not name.startswith(_CONTAINERS)} - _HARMLESS


def make_recorded_repository(root: Path, report: Path, **settings: Any) -> Path:
    """A repository with the model "tiny", which writes `report` when it is unloaded."""
    repository = make_repository(root, **settings)
    code = _MODEL_PY.format(
        backend=str(backends_dir() / "inflight"), tests=str(Path(__file__).parents[1]), report=str(report)
    )
    (root / "tiny" / "1" / "model.py").write_text(code)
    (root / "tiny" / "config.pbtxt").write_text('backend: "python"\n')
    return repository


def read_report(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.read_text())
    return found
