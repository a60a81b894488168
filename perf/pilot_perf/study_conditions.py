"""The conditions of a study, as its file holds them."""

from dataclasses import asdict
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from pilot_client import model_config
from pilot_perf.conditions import address, file_hash, machine, model_files, software, text_hash
from pilot_perf.ensemble import Members
from pilot_perf.remote import server_version
from pilot_perf.requests import Requests
from pilot_perf.search.space import Space
from pilot_perf.study import CONFIRM_WINDOWS, SEARCH_WINDOWS
from pilot_perf.sweep_request import Request
from pilot_server.toolchain import PerfAnalyzer


def study_conditions(
    url: str,
    analyzer: PerfAnalyzer,
    request: Request,
    installed: ModelConfig,
    members: Members,
    space: Space,
    requests: Requests,
) -> dict[str, Any]:
    """Everything that a measurement depends on: two studies compare only where it is the same."""
    is_own_server = request.model_dir is not None
    return {
        **machine(),
        **address(url, is_own_server=is_own_server),
        **software(server_version(url), analyzer.version, is_own_server=is_own_server),
        **model_files(request.model_dir, installed),
        **{
            f"{name}/{key}": value
            for name, config in members.items()
            for key, value in model_files(request.model_dir_of(name), config).items()
        },
        "model.precision": _precision(installed, space),
        "model": request.model,
        "model.config": text_hash("".join(map(model_config.to_text, (installed, *members.values())))),
        **requests.conditions,
        "seed": request.requests.seed,
        "arrivals": "Poisson" if request.trace is None else file_hash(request.trace),
        "shared_memory": request.shared_memory,
        "slo": str(request.slo),
        "strategy": request.strategy,
        "space": {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(space).items()},
        "windows_ms": [SEARCH_WINDOWS.window_ms, CONFIRM_WINDOWS.window_ms],
        "windows_half_width": CONFIRM_WINDOWS.half_width,
    }


def _precision(installed: ModelConfig, space: Space) -> str:
    """The variants that were tried, else the file that is installed: its name holds the precision."""
    return ", ".join(space.precisions) or installed.default_model_filename or "as installed"
