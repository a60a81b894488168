"""A second set of names over one engine: a one-step ensemble that renames, as the README tells."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pilot_server.running import RunningServer
from pilot_testing.llm_clients import bytes_tensor, grpc_stream
from pilot_testing.tiny_llm import make_repository

pytestmark = pytest.mark.triton

# The engine takes shape [1]; through the ensemble it is [1, 1], as in TensorRT-LLM's models.
ENSEMBLE = """
name: "renamed"
platform: "ensemble"
max_batch_size: 8
input [
  { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "tiny"
      model_version: -1
      input_map { key: "text_input" value: "text_input" }
      input_map { key: "stream" value: "streaming" }
      output_map { key: "text_output" value: "text_output" }
    }
  ]
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    from pilot_server.embedded import start_embedded

    repository: Path = make_repository(tmp_path_factory.mktemp("repository"))
    (repository / "renamed" / "1").mkdir(parents=True)
    (repository / "renamed" / "config.pbtxt").write_text(ENSEMBLE)
    with start_embedded(repository, load=("tiny", "renamed")) as server:
        yield server


def test_an_ensemble_gives_other_names_and_another_rank_to_the_same_answers(server: RunningServer) -> None:
    options = {"parameters": {"max_tokens": 8, "temperature": "0", "ignore_eos": True}}
    text = bytes_tensor("Once upon a time")
    plain = grpc_stream(server.grpc_url, "tiny", {"text_input": text, "stream": np.array([True])}, **options)
    renamed = grpc_stream(
        server.grpc_url,
        "renamed",
        {"text_input": text.reshape(1, 1), "streaming": np.array([[True]])},
        **options,
    )
    assert plain.errors == renamed.errors == []
    assert len(renamed.responses) > 1
    assert renamed.text == plain.text != ""


def test_errors_of_the_engine_pass_through(server: RunningServer) -> None:
    answered = grpc_stream(
        server.grpc_url,
        "renamed",
        {"text_input": bytes_tensor("Once").reshape(1, 1)},
        parameters={"max_tokens": -3},
    )
    assert "max_tokens" in answered.errors[0]
