import json
from pathlib import Path

import pytest

from pilot_client.model_config import parse
from pilot_perf.errors import InputDataError
from pilot_perf.lengths import parse_lengths
from pilot_perf.prompts import PromptPlan, is_language_model, read_prompts

VLLM = parse(
    """
    name: "llm" backend: "vllm" model_transaction_policy { decoupled: true }
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    input { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] optional: true }
    input { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    """
)
TENSORRT = parse(
    """
    name: "llm" max_batch_size: 8 model_transaction_policy { decoupled: true }
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] }
    input { name: "min_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    input { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] optional: true }
    """
)
PLAN = PromptPlan(parse_lengths("5-9"), parse_lengths("3-4"))


def test_prompts_have_their_lengths_and_answers_end_exactly_where_they_should() -> None:
    rows = PLAN.rows(VLLM, seed=1, num_rows=200)
    words = [len(str(row["text_input"][0]).split()) for row in rows]
    sampling = [json.loads(row["sampling_parameters"][0]) for row in rows]
    assert set(words) == set(range(5, 10))
    assert {entry["max_tokens"] for entry in sampling} == {3, 4}
    assert all(entry["min_tokens"] == entry["max_tokens"] and entry["ignore_eos"] for entry in sampling)
    assert all(row["stream"].tolist() == [True] for row in rows)


def test_only_inputs_that_the_model_has_are_sent() -> None:
    (row,) = PLAN.rows(VLLM, seed=1, num_rows=1)
    assert set(row) == {"text_input", "sampling_parameters", "stream", "return_num_output_tokens"}
    (row,) = PLAN.rows(TENSORRT, seed=1, num_rows=1)
    assert set(row) == {"text_input", "max_tokens", "min_tokens", "stream"}
    assert row["max_tokens"].tolist() == row["min_tokens"].tolist()


def test_a_tokenizer_makes_the_lengths_exact() -> None:
    """Two tokens a letter."""
    plan = PromptPlan(parse_lengths("40"), parse_lengths("3"), count=lambda text: 2 * len(text.strip()))
    for row in plan.rows(VLLM, seed=1, num_rows=20):
        letters = len(str(row["text_input"][0]).replace(" ", ""))
        assert 20 <= letters <= 26


def test_another_seed_makes_other_prompts_and_the_same_seed_the_same() -> None:
    def prompts(seed: int) -> set[str]:
        return {row["text_input"][0] for row in PLAN.rows(VLLM, seed, num_rows=50)}

    assert prompts(1) == prompts(1)
    assert not prompts(1) & prompts(2)


def test_language_models_are_told_by_their_inputs() -> None:
    assert is_language_model(VLLM)
    assert is_language_model(TENSORRT)
    assert not is_language_model(parse('name: "m" input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }'))


def test_prompts_of_a_file_are_sent_as_they_are_and_may_end_by_themselves(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Why?", "max_tokens": 7}\n\n{"prompt": "How?"}\n')
    first, second = read_prompts(path, VLLM, parse_lengths("11"), seed=0)
    assert first["text_input"].tolist() == ["Why?"]
    assert json.loads(first["sampling_parameters"][0]) == {"max_tokens": 7, "temperature": 0.0}
    assert json.loads(second["sampling_parameters"][0])["max_tokens"] == 11


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no prompts"),
        ("{", "line 1: not JSON"),
        ('{"text": "Why?"}', 'line 1: {"prompt": "..."'),
        ('{"prompt": "Why?"}\n{"prompt": "Why?", "max_tokens": 0}', "line 2: "),
        ('{"prompt": "Why?", "temperature": 1}', "unknown name 'temperature'"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(text)
    with pytest.raises(InputDataError, match=message):
        read_prompts(tmp_path / "p.jsonl", VLLM, parse_lengths("3"), seed=0)
