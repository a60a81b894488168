"""Real weights, real prompts: the engine's greedy ids are those of transformers, one prompt at a time.

One prompt by default, and all of them among the slow tests, are compared with what `generate` gives; the others with
the best token behind each beginning of the answer, which is the same, and is found in one forward.

Torch's products depend in the last bits on the number of rows, so an answer may part from the reference where the two
best logits differ by less than 1e-3. Such ties are counted, and must be rare.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pilot_llm.runner import Runner
from pilot_llm.tokenizer import HfTokenizer
from pilot_testing import smollm2
from pilot_testing.fake_llm import Recorder, running_engine, submit
from pilot_testing.hf_models import load

TIE = 1e-3
MAX_TIES = 1
WAIT_S = 200.0


@pytest.fixture(scope="module")
def prompts(smollm2_dir: Path) -> list[list[int]]:
    return smollm2.prompts(smollm2_dir)


@pytest.fixture(scope="module")
def reference(smollm2_dir: Path) -> Any:
    return smollm2.reference_model(smollm2_dir)


def runner_of(folder: Path, block_size: int, tokens_in_pool: int) -> Runner:
    num_blocks = -(-tokens_in_pool // block_size)
    return load(folder, intra_op_threads=None, block_size=block_size, num_gpu_blocks_override=num_blocks)


def ask(engine: object, prompt: Sequence[int]) -> Recorder:
    # One token more for each tie that has to be looked at.
    return submit(engine, prompt, max_tokens=smollm2.NUM_TOKENS, ignore_eos=True, logprobs=2)  # type: ignore[arg-type]


def answer_of(recorder: Recorder) -> list[int]:
    ours = recorder.wait(WAIT_S).token_ids()
    assert recorder.error is None
    assert len(ours) == smollm2.NUM_TOKENS
    return ours


def is_tie(recorder: Recorder, theirs: Sequence[int]) -> bool:
    """Whether the answer parts from the reference, which it may do at a tie only."""
    ours = answer_of(recorder)
    positions = [entry for output in recorder.outputs for delta in output.sequences for entry in delta.logprobs or ()]
    for mine, other, (_, best, second) in zip(ours, theirs, positions, strict=True):
        if mine != other:
            assert best.logprob - second.logprob < TIE, f"{ours} is not {theirs}"
            return True
    return False


def num_ties_among(recorders: Sequence[Recorder], reference: Any, prompts: Sequence[list[int]]) -> int:
    return sum(
        is_tie(recorder, smollm2.best_after(reference, prompt, answer_of(recorder)))
        for recorder, prompt in zip(recorders, prompts, strict=True)
    )


@pytest.mark.parametrize(
    "block_size", [pytest.param(1, marks=pytest.mark.slow), 4, pytest.param(16, marks=pytest.mark.slow)]
)
def test_16_in_flight_with_shared_beginnings_answer_as_each_alone_in_transformers(
    smollm2_dir: Path, prompts: list[list[int]], reference: Any, block_size: int
) -> None:
    runner = runner_of(smollm2_dir, block_size, tokens_in_pool=2048)
    settings = {"max_num_seqs": 16, "max_num_batched_tokens": 128}
    with running_engine(runner, tokenizer=HfTokenizer.from_folder(smollm2_dir), **settings) as engine:
        recorders = [ask(engine, prompt) for prompt in prompts]
        num_ties = num_ties_among(recorders, reference, prompts)
        num_cached = [recorder.outputs[-1].num_cached_tokens for recorder in recorders]
    assert num_ties <= MAX_TIES
    # The template's system message, all full blocks of it, is computed once.
    assert sum(cached >= 16 for cached in num_cached) >= len(prompts) - 1


def test_answers_survive_preemption_in_a_pool_for_three(
    smollm2_dir: Path, prompts: list[list[int]], reference: Any
) -> None:
    runner = runner_of(smollm2_dir, block_size=4, tokens_in_pool=160)
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 48, "enable_prefix_caching": False}
    with running_engine(runner, tokenizer=HfTokenizer.from_folder(smollm2_dir), **settings) as engine:
        recorders = [ask(engine, prompt) for prompt in prompts[:5]]
        num_ties = num_ties_among(recorders, reference, prompts[:5])
        num_preemptions = engine.metrics.snapshot().counters["vllm:num_preemptions_total"]
    assert num_ties <= MAX_TIES
    assert num_preemptions > 0


@pytest.mark.parametrize("numbers", [range(1), pytest.param(range(16), marks=pytest.mark.slow)])
def test_alone_answers_as_transformers_and_a_second_time_from_the_cache(
    smollm2_dir: Path, prompts: list[list[int]], reference: Any, numbers: range
) -> None:
    runner = runner_of(smollm2_dir, block_size=16, tokens_in_pool=2048)
    num_ties = 0
    with running_engine(runner, tokenizer=HfTokenizer.from_folder(smollm2_dir), max_num_batched_tokens=512) as engine:
        for number in numbers:
            expected = smollm2.reference_answer(smollm2_dir, reference, prompts[number])
            for is_repeated in (False, True):
                recorder = ask(engine, prompts[number])
                num_ties += is_tie(recorder, expected)
                if is_repeated:
                    assert recorder.outputs[-1].num_cached_tokens >= len(prompts[number]) - 16
    assert num_ties <= MAX_TIES
