"""Which requests are sent for which model and options, and what is refused before a server is asked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilot_client.model_config import parse
from pilot_perf.errors import BudgetError, InputDataError
from pilot_perf.lengths import parse_lengths
from pilot_perf.requests import RandomRequests, RequestOptions, requests_for
from pilot_perf.slo import parse_slo
from pilot_perf.target import target_for
from pilot_testing.tiny_llm import make_model_folder

LLM_INPUTS = """
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
"""
LLM = parse(f'name: "llm" model_transaction_policy {{ decoupled: true }} {LLM_INPUTS}')
PLAIN = parse('name: "m" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }')
TEXT = parse('name: "t" max_batch_size: 8 input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }')


def prompts_in(path: Path) -> list[str]:
    return [row["text_input"]["content"][0] for row in json.loads(path.read_text())["data"]]


def test_every_launch_of_a_language_model_gets_new_prompts_of_the_same_lengths(tmp_path: Path) -> None:
    """A prompt that was sent before would be answered from the prefix cache."""
    options = RequestOptions(prompt_tokens=parse_lengths("20"), output_tokens=parse_lengths("4"))
    requests = requests_for(LLM, options, tmp_path, tmp_path / "llm")
    first, second = (prompts_in(requests.file() or tmp_path) for _ in range(2))
    assert not set(first) & set(second)
    assert {len(prompt.split()) for prompt in (*first, *second)} == {20}
    again = requests_for(LLM, options, tmp_path, tmp_path / "llm")
    assert prompts_in(again.file() or tmp_path) == first


def test_a_second_run_on_a_server_that_outlives_the_first_gets_other_prompts(tmp_path: Path) -> None:
    """Its prefix cache would answer those of the first sooner."""
    options = RequestOptions(prompt_tokens=parse_lengths("20"), output_tokens=parse_lengths("4"))
    first, second = (prompts_in(requests_for(LLM, options, tmp_path, None).file() or tmp_path) for _ in range(2))
    assert not set(first) & set(second)


def test_the_models_own_tokenizer_is_found(tmp_path: Path) -> None:
    make_model_folder(tmp_path / "llm" / "1")
    requests = requests_for(LLM, RequestOptions(), tmp_path, tmp_path / "llm")
    assert requests.tokens is not None
    assert requests.tokens.count is not None
    assert requests.tokens.count("Why is the sky blue?") > 1


def test_rows_of_a_file_are_made_to_stream_and_the_rest_stays(tmp_path: Path) -> None:
    data = {"data": [{"text_input": ["a"], "stream": [False]}, {"text_input": ["b"]}]}
    (tmp_path / "rows.json").write_text(json.dumps(data))
    path = requests_for(LLM, RequestOptions(input_data=tmp_path / "rows.json"), tmp_path, None).file()
    assert path is not None
    first, second = json.loads(path.read_text())["data"]
    assert first["stream"]["content"] == [False]
    assert second["stream"]["content"] == [True]


def test_a_model_of_fixed_shapes_gets_random_values(tmp_path: Path) -> None:
    requests = requests_for(PLAIN, RequestOptions(), tmp_path, None)
    assert isinstance(requests, RandomRequests)
    assert requests.file() is None
    assert requests.tokens is None


def test_the_lengths_of_the_rows_are_a_condition(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", ids=np.ones((100, 16), dtype=np.int64))
    options = RequestOptions(input_data=tmp_path / "rows.npz", lengths=parse_lengths("4-8"), seed=2)
    requests = requests_for(TEXT, options, tmp_path, None)
    assert requests.conditions["input_lengths"] == {"ids": "4 to 8, median 6"}
    assert requests.file() == tmp_path / "rows.json"


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (PLAIN, {"prompt_tokens": parse_lengths("3")}, r"--prompt-tokens are for a language model .* takes x FP32"),
        (PLAIN, {"lengths": parse_lengths("3")}, "--lengths cuts the rows of --input-data"),
        (TEXT, {}, r"ids INT64 \[-1\]: a free dimension .*--input-data"),
        (LLM, {"lengths": parse_lengths("3")}, "give --prompt-tokens and --output-tokens"),
        (LLM, {"tokenizer": Path("/none")}, "cannot be read as a tokenizer"),
    ],
)
def test_an_option_without_a_meaning_is_refused(
    config: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputDataError, match=message):
        requests_for(config, RequestOptions(**options), tmp_path, None)


def test_a_budget_on_tokens_needs_a_model_that_streams_them(tmp_path: Path) -> None:
    slo = parse_slo(["p95:ttft:200ms"])
    plain, llm = (
        requests_for(PLAIN, RequestOptions(), tmp_path, None),
        requests_for(LLM, RequestOptions(), tmp_path, None),
    )
    assert target_for("h:1", LLM, llm, slo).is_streamed
    with pytest.raises(BudgetError, match="m is no language model, so nothing can be said of p95 TTFT"):
        target_for("h:1", PLAIN, plain, slo)
    with pytest.raises(InputDataError, match="its answers must come over the connection"):
        target_for("h:1", LLM, llm, slo, shared_memory="system")
    with pytest.raises(BudgetError, match="llm answers in one piece"):
        target_for("h:1", parse(f'name: "llm" {LLM_INPUTS}'), llm, slo)
