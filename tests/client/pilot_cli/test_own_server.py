"""The server that a sweep starts: what it loads, and how often a configuration is completed for it."""

from pathlib import Path

import pytest

from pilot_base.progress import silent
from pilot_cli.own_server import serve_for_reloads, serve_model
from pilot_client import repository as model_control
from pilot_client.errors import ModelNotReadyError
from pilot_testing.timed_model import CODE, write_ensemble, write_timed_model

pytestmark = pytest.mark.triton

COMPLETING = """
    @staticmethod
    def auto_complete_config(config):
        with open("FILE", "a") as file:
            file.write("completed\\n")
        config.set_dynamic_batching()
        return config
"""


def test_a_configuration_is_completed_once_and_then_only_exchanged(tmp_path: Path) -> None:
    """A server that completes each one again needs over a second for it, in a sweep dozens of times."""
    completed = tmp_path / "completed.txt"
    code = CODE + COMPLETING.replace("FILE", str(completed))
    write_timed_model(tmp_path / "models", "first", code=code)
    write_timed_model(tmp_path / "models", "second", code=code)
    write_ensemble(tmp_path / "models", "both", ("first", "second"))
    with serve_for_reloads(tmp_path / "models", "both", silent) as server:
        url = server.grpc_url
        assert len(completed.read_text().splitlines()) == 2
        config = model_control.model_config(url, "first")
        assert config.HasField("dynamic_batching")
        config.max_batch_size = 16
        model_control.load(url, "first", config)
        assert model_control.model_config(url, "first").max_batch_size == 16
        assert len(completed.read_text().splitlines()) == 2
        assert {state.name for state in model_control.list_models(url) if state.is_ready} == {"first", "second", "both"}


def test_a_model_that_cannot_be_loaded_is_refused_with_its_reason(tmp_path: Path) -> None:
    broken = CODE.replace("import time", "import time\nraise ValueError('no such luck')")
    write_timed_model(tmp_path / "models", "broken", code=broken)
    with pytest.raises(ModelNotReadyError, match="no such luck"):
        serve_model(tmp_path / "models", "broken", silent)
