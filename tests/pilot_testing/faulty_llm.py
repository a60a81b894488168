"""A tiny language model whose forward pass or responses fail on command, inside the real backend and the real server.

The command is a file in the model's version folder, so that a test can give it while requests run; and what the model
says when it is asked whether it is ready, as newer servers do, is in another:

    fault.json    {"kind": "raise" | "hang" | "send"}     absent: all is well
                  {"kind": "arrays"}                      for the next load: arrays arrive as those of numpy 2 would
    ready.json    true or false, asked anew many times a second
"""

import json
from pathlib import Path
from typing import Any

from pilot_server import backends_dir
from pilot_testing.tiny_llm import make_repository

_MODEL_PY = """
import importlib.util, json, sys, threading, time, types
from pathlib import Path

BACKEND = Path({backend!r})
FAULT = Path({fault!r})
READY = FAULT.with_name("ready.json")
sys.path.insert(0, str(BACKEND))
import pilot_llm.runner
import pilot_llm.triton_sink


def fault():
    return json.loads(FAULT.read_text())["kind"] if FAULT.exists() else None


class FaultyRunner:
    def __init__(self, runner):
        self._runner = runner

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def forward(self, batch):
        kind = fault()
        if kind == "raise":
            raise RuntimeError("planted fault")
        if kind == "hang":
            while FAULT.exists():
                time.sleep(0.05)
        return self._runner.forward(batch)


def data_response(response):
    if fault() == "send":
        raise RuntimeError("planted fault in a response")
    return make_response(response)


make_response = pilot_llm.triton_sink._data_response
pilot_llm.triton_sink._data_response = data_response
load = pilot_llm.runner.load_runner
pilot_llm.runner.load_runner = lambda config: FaultyRunner(load(config))
spec = importlib.util.spec_from_file_location("inflight_model", BACKEND / "model.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


class Garbled:
    def __init__(self, array):
        self._array = array

    def as_numpy(self):
        return self._array[::-1]


class GarblingTensor:
    def __new__(cls, name, array):
        return Garbled(array)

    @staticmethod
    def from_dlpack(name, tensor):
        return tensor


class TritonPythonModel(module.TritonPythonModel):
    def initialize(self, args):
        if fault() == "arrays":
            module.pb_utils = types.SimpleNamespace(**{{**vars(module.pb_utils), "Tensor": GarblingTensor}})
        super().initialize(args)
        self._is_over = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._asking.start()

    def _ask(self):
        beside = READY.with_suffix(".new")
        while not self._is_over.wait(0.05):
            beside.write_text(json.dumps(self.is_ready()))
            beside.replace(READY)

    def finalize(self):
        self._is_over.set()
        self._asking.join()
        super().finalize()
"""


class FaultyModel:
    """The model "tiny" of a repository of its own."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.repository = make_repository(root, **settings)
        version_dir = root / "tiny" / "1"
        self._fault = version_dir / "fault.json"
        code = _MODEL_PY.format(backend=str(backends_dir() / "inflight"), fault=str(self._fault))
        (version_dir / "model.py").write_text(code)
        (root / "tiny" / "config.pbtxt").write_text('backend: "python"\n')

    def break_down(self, kind: str) -> None:
        beside = self._fault.with_suffix(".new")
        beside.write_text(json.dumps({"kind": kind}))
        beside.replace(self._fault)

    def mend(self) -> None:
        self._fault.unlink()

    def says_it_is_ready(self) -> bool | None:
        """What the model answers to a server that asks; None before it has been asked."""
        try:
            answer: bool = json.loads(self._fault.with_name("ready.json").read_text())
        except FileNotFoundError:
            return None
        return answer
