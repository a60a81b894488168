"""Kernels are compiled once on a machine: not again at the next load, and never while a request waits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilot_testing.greedy_driver import generate
from pilot_testing.hf_models import VOCAB_SIZE, load, make_model

SETTINGS: list[dict[str, Any]] = [
    {"intra_op_threads": 2},
    {"intra_op_threads": 2, "quantization": "int8", "kv_cache_dtype": "float16"},
    {"intra_op_threads": 1, "quantization": "int8", "kv_cache_dtype": "int8"},
]
_LOAD_ANEW = """
import json, sys
from pathlib import Path
from pilot_testing.hf_models import load
from test_compiled_once import dispatchers

load(Path(sys.argv[1]), num_gpu_blocks_override=64, **json.loads(sys.argv[2]))
print(json.dumps({name: sum(kernel.stats.cache_misses.values()) for name, kernel in dispatchers().items()}))
"""


def dispatchers() -> dict[str, Any]:
    """The kernels of this process that have been called from Python, by name."""
    from pilot_llm.kernels import attention_kernels, layer_kernels, linear_kernels, row_kernels, team

    return {
        f"{module.__name__}.{name}": kernel
        for module in (attention_kernels, layer_kernels, linear_kernels, row_kernels, team)
        for name, kernel in vars(module).items()
        if getattr(kernel, "signatures", None) and kernel.py_func.__module__ == module.__name__
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen3")
    make_model("qwen3", path)  # its tiny model has sizes that the kernels take
    return path


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_batch_meets_a_kernel_that_the_load_has_not_made(folder: Path, settings: dict[str, Any]) -> None:
    runner = load(folder, num_gpu_blocks_override=64, **settings)
    before = {name: list(kernel.signatures) for name, kernel in dispatchers().items()}
    assert before
    prompts = [[index % VOCAB_SIZE for index in range(length)] for length in (1, 2, 15, 16, 17, 33, *[90] * 8)]
    for max_chunk in (1, 40, 1000):
        generate(runner, prompts, 3, seed=0, max_chunk=max_chunk)
    runner.copy_blocks([(0, 1)])
    assert {name: list(kernel.signatures) for name, kernel in dispatchers().items()} == before


def test_kernels_have_one_path_by_whichever_they_are_imported(tmp_path: Path) -> None:
    """Numba keeps them by it; a server imports them from its backends, an export through a link."""
    package = Path(__file__).parents[5] / "python_backend" / "inflight" / "pilot_llm"
    (tmp_path / "pilot_llm").symlink_to(package)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
        "from pilot_llm.kernels import row_kernels; print(row_kernels.__file__)"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found.strip() == str(package / "kernels" / "row_kernels.py")


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_another_process_finds_all_that_the_first_one_has_compiled(folder: Path, settings: dict[str, Any]) -> None:
    load(folder, num_gpu_blocks_override=64, **settings)
    # As a server imports them.
    backend = Path(__file__).parents[5] / "python_backend" / "inflight"
    paths = [str(backend), str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}\n{_LOAD_ANEW}"
    command = [sys.executable, "-c", code, str(folder), json.dumps(settings)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    misses = json.loads(output.splitlines()[-1])
    assert misses
    assert set(misses.values()) == {0}, misses
