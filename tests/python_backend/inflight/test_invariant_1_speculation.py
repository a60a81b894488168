"""Invariant 1, its last part: an answer is the same with speculation on or off, whatever else a request asks for.

HashRunner's texts never repeat themselves, so here its favourites come from a short cycle that now and then breaks:
drafts are right, wrong, and right only in part. Its cache still feels every wrong slot, block and position.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilot_llm.config import EngineConfig
from pilot_llm.engine import Engine
from pilot_llm.runner import load_runner
from pilot_llm.tokenizer import HfTokenizer
from pilot_testing import fake_llm
from pilot_testing.fake_llm import EOS, HashRunner, Recorder, Simulation, running_engine, submit
from pilot_testing.tiny_llm import make_model_folder

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@pytest.fixture(autouse=True)
def _repetitive_model(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = fake_llm.logits_after

    def repetitive(context: Any, vocab_size: int = fake_llm.VOCAB_SIZE) -> np.ndarray:
        logits = hashed(context, vocab_size)
        if int(np.sum(context)) % 5:  # else the hash alone decides
            logits[(int(context[-1]) * 7 + 3) % 11] += 1.5
        return logits

    monkeypatch.setattr(fake_llm, "logits_after", repetitive)


def prompts(num: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    system = [rng.randrange(11) for _ in range(13)]
    return [
        system[: rng.choice([0, 4, 8, 13])] + [rng.randrange(11) for _ in range(rng.randint(1, 20))] for _ in range(num)
    ]


def answers(wishes: list[dict[str, Any]], num_blocks: int, **settings: Any) -> tuple[list[Recorder], dict[str, int]]:
    """All requests at once; each of `wishes` holds its prompt."""
    with running_engine(HashRunner(num_blocks), **settings) as engine:
        sinks = [submit(engine, **wish) for wish in wishes]
        for sink in sinks:
            sink.wait()
        return sinks, dict(engine.metrics.snapshot().counters)


WISHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy that may end": {"ignore_eos": False, "stop_token_ids": [5]},
    "sampled": {"temperature": 0.7, "top_p": 0.95, "seed": 3},
    "sampled from few": {"temperature": 1.2, "top_k": 5, "min_p": 0.01, "seed": 4},
    "several answers": {"temperature": 0.7, "n": 3, "seed": 5},
    "penalties": {"presence_penalty": 0.6, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    "minimum": {"min_tokens": 9, "ignore_eos": False, "logit_bias": {EOS: 5.0}},
    "bad words and a stop string": {"bad_words": ["gd"], "stop": ["dy", "kd"], "stream": True},
    "logprobs": {"logprobs": 3, "prompt_logprobs": 2},
    "one token": {"max_tokens": 1},
}


@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize(("num_blocks", "budget"), [(400, 64), (30, 11)], ids=["roomy", "tight"])
def test_answer_is_the_same_with_and_without_speculation(name: str, num_blocks: int, budget: int) -> None:
    wishes = [
        {"max_tokens": 24, "ignore_eos": True, **WISHES[name], "prompt": prompt} for prompt in prompts(12, len(name))
    ]
    plain, _ = answers(wishes, num_blocks, max_num_batched_tokens=budget)
    guessed, counted = answers(wishes, num_blocks, max_num_batched_tokens=budget, speculative_config=NGRAM)
    for one, other, wish in zip(plain, guessed, wishes, strict=True):
        for index in range(wish.get("n", 1)):
            assert other.token_ids(index) == one.token_ids(index)
            assert other.text(index) == one.text(index)
            assert other.finish_reason(index) == one.finish_reason(index)
            assert logprobs(other, index) == logprobs(one, index)
        assert other.outputs[-1].prompt_logprobs == one.outputs[-1].prompt_logprobs
        assert other.error is None
    if name != "one token" and num_blocks > 100:
        assert counted["vllm:spec_decode_num_accepted_tokens_total"] > 0
        assert (
            counted["vllm:spec_decode_num_drafts_total"]
            <= counted["vllm:spec_decode_num_draft_tokens_total"]
            > counted["vllm:spec_decode_num_accepted_tokens_total"]
        )


def logprobs(sink: Recorder, index: int) -> list[Any]:
    deltas = [delta for output in sink.outputs for delta in output.sequences if delta.index == index]
    return [position for delta in deltas for position in delta.logprobs or ()]


def test_accepted_drafts_save_steps() -> None:
    steps = {}
    for speculation in (None, NGRAM):
        runner = HashRunner(400)
        with running_engine(runner, speculative_config=speculation) as engine:
            submit(engine, [1, 10, 7, 8, 4, 9, 0, 3] * 3, max_tokens=100, ignore_eos=True).wait()
        steps[speculation is None] = runner.num_forwards
    assert steps[False] < 0.8 * steps[True]


def test_prefix_is_reused_behind_accepted_and_rejected_drafts_and_holds_the_right_tokens() -> None:
    turn = [1, 10, 7, 8] * 3
    with running_engine(HashRunner(200), speculative_config=NGRAM) as engine:
        for _ in range(5):
            sink = submit(engine, turn, max_tokens=13, ignore_eos=True).wait()
            with running_engine(HashRunner(200)) as plain:
                assert sink.token_ids() == submit(plain, turn, max_tokens=13, ignore_eos=True).wait().token_ids()
            turn = [*turn, *sink.token_ids(), 7]
        # All but the block that the last answer ends in.
        assert sink.outputs[-1].num_cached_tokens >= len(turn) - 13 - 1 - 4 - 4


def test_nobody_is_preempted_for_a_guess() -> None:
    preempted = []
    for speculation in (None, NGRAM):
        sim = Simulation(HashRunner(num_blocks=14), max_num_batched_tokens=64, speculation=speculation and config())
        for first in range(4):
            sim.add([first, 3, first, 3], max_tokens=9, ignore_eos=True)
        sim.run()
        preempted.append(sim.scheduler.num_preemptions)
    assert preempted[1] <= preempted[0]


def test_drafts_never_exceed_the_budget_nor_the_length_of_the_answer() -> None:
    sim = Simulation(HashRunner(num_blocks=100), max_num_batched_tokens=9, speculation=config())
    group = sim.add([1, 10, 7, 8] * 5, max_tokens=20, ignore_eos=True)
    other = sim.add([3] * 5, max_tokens=30, ignore_eos=True)
    sim.run()
    assert max(plan.num_tokens for plan in sim.plans) <= 9
    assert any(chunk.draft for plan in sim.plans for chunk in plan.chunks)
    assert (len(sim.output(group)), len(sim.output(other))) == (20, 30)


def test_no_guesses_with_more_sequences_than_disable_by_batch_size() -> None:
    for num_sequences, guesses in ((2, True), (3, False)):
        limited = config(disable_by_batch_size=2)
        sim = Simulation(HashRunner(num_blocks=100), max_num_batched_tokens=64, speculation=limited)
        for first in range(num_sequences):
            sim.add([first, 1, 10, 7, 8, 1, 10, 7, 8], max_tokens=12, ignore_eos=True)
        for _ in range(4):
            sim.step()
        assert any(chunk.draft for plan in sim.plans for chunk in plan.chunks) is guesses


def config(**changes: Any) -> Any:
    from pilot_llm.speculation import read_speculative_config

    return read_speculative_config({**NGRAM, **changes})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "eagle", "num_speculative_tokens": 3}, "speculative_config: method must be one of ngram"),
        ({"method": "ngram"}, "speculative_config.num_speculative_tokens is missing"),
        ({"num_speculative_tokens": 3}, "speculative_config.method is missing"),
        ({**NGRAM, "prompt_lookup_min": 4}, "prompt_lookup_min .4. must be at most prompt_lookup_max .3."),
        ({**NGRAM, "prompt_lookup_maxx": 4}, "did you mean 'prompt_lookup_max'"),
        ("ngram", "speculative_config must be an object"),
    ],
)
def test_wrong_speculative_config_is_refused_with_the_reason(wrong: Any, message: str) -> None:
    from pilot_llm.errors import ConfigError

    with pytest.raises(ConfigError, match=message):
        fake_llm.make_config(speculative_config=wrong)


def test_one_prompt_lookup_bound_stands_for_the_other() -> None:
    from pilot_llm.speculation import read_speculative_config

    found = read_speculative_config({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3})
    assert found is not None
    assert (found.prompt_lookup_min, found.prompt_lookup_max) == (3, 3)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"quantization": "int8"}, marks=pytest.mark.slow),
        pytest.param({"kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
    ],
)
def test_answers_of_real_kernels_are_the_same_with_and_without_speculation(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    make_model_folder(tmp_path)
    wishes = [
        {"prompt": [7, 8, 9, 10] * 3 + [first], "max_tokens": 40, "ignore_eos": True, "logprobs": 0, **wish}
        for first in range(4)
        for wish in ({}, {"temperature": 0.3, "seed": first})
    ]
    answers_of = {}
    for is_guessing in (False, True):
        config = EngineConfig.from_dict(
            {
                "model": str(tmp_path),
                "max_model_len": 256,
                "num_gpu_blocks_override": 40,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 48,
                "speculative_config": {**NGRAM, "num_speculative_tokens": 5} if is_guessing else None,
                **settings,
            },
            tmp_path,
        )
        engine = Engine(config, load_runner(config), HfTokenizer.from_folder(tmp_path))
        engine.start()
        try:
            sinks = [submit(engine, **wish).wait(60) for wish in wishes[:2]]  # alone, then all at once
            together = [submit(engine, **wish) for wish in wishes]
            answers_of[is_guessing] = [sink.wait(60) for sink in (*sinks, *together)]
            num_accepted = engine.metrics.snapshot().counters["vllm:spec_decode_num_accepted_tokens_total"]
        finally:
            engine.shutdown(0.0)
    assert num_accepted > 20
    for one, other in zip(answers_of[False], answers_of[True], strict=True):
        assert other.token_ids() == one.token_ids()
        plain, guessed = ([position[0].logprob for position in logprobs(sink, 0)] for sink in (one, other))
        assert guessed == pytest.approx(plain, abs=1e-4)
