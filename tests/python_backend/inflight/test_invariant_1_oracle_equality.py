"""Invariant 1: a request's output is the same alone or in any batch, chunking, preemption, prefix hit or miss.

The model here is a hash of all tokens that it reads through the block table (pilot_testing.fake_llm), so equality is
exact. The same with real weights is tested where the runner is.
"""

import random

import pytest

from pilot_testing.fake_llm import HashRunner, greedy_oracle, running_engine, submit


def conversation_prompts(num: int, seed: int) -> list[list[int]]:
    """Prompts that share beginnings of several lengths."""
    rng = random.Random(seed)
    system = [rng.randrange(60) for _ in range(21)]
    return [
        system[: rng.choice([0, 3, 4, 8, 20, 21])] + [rng.randrange(60) for _ in range(rng.randint(1, 17))]
        for _ in range(num)
    ]


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [8, 11, 64])
@pytest.mark.parametrize("tokens_in_pool", [60, 2000])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_greedy_ids_do_not_depend_on_company_chunks_memory_or_cache(
    block_size: int, budget: int, tokens_in_pool: int, enable_prefix_caching: bool
) -> None:
    prompts = conversation_prompts(16, seed=budget)
    runner = HashRunner(-(-tokens_in_pool // block_size), block_size)
    with running_engine(runner, max_num_batched_tokens=budget, enable_prefix_caching=enable_prefix_caching) as engine:
        sinks = [submit(engine, prompt, max_tokens=16, stream=index % 2 == 0) for index, prompt in enumerate(prompts)]
        for prompt, sink in zip(prompts, sinks, strict=True):
            assert sink.wait().token_ids() == greedy_oracle(prompt, 16)


@pytest.mark.parametrize("num_blocks", [10, 400])
def test_seeded_sampling_depends_on_seed_and_position_only(num_blocks: int) -> None:
    prompts = conversation_prompts(12, seed=3)
    wishes = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 12, "n": 2, "ignore_eos": True}
    alone = []
    for seed, prompt in enumerate(prompts):
        with running_engine(HashRunner(400)) as engine:
            alone.append(submit(engine, prompt, seed=seed, **wishes).wait())
    with running_engine(HashRunner(num_blocks)) as engine:
        together = [submit(engine, prompt, seed=seed, **wishes) for seed, prompt in enumerate(prompts)]
        for one, other in zip(alone, together, strict=True):
            other.wait()
            for index in range(2):
                assert other.token_ids(index) == one.token_ids(index)
                assert len(one.token_ids(index)) == 12


def test_answer_never_holds_what_another_request_planted() -> None:
    """16 at once behind one long prefix; each must read its own secret, not a neighbour's."""
    prefix = list(range(40))
    with running_engine(HashRunner(60), max_num_seqs=16, max_num_batched_tokens=32) as engine:
        for _ in range(3):
            sinks = [submit(engine, [*prefix, secret, secret], max_tokens=8) for secret in range(16)]
            for secret, sink in enumerate(sinks):
                assert sink.wait().token_ids() == greedy_oracle([*prefix, secret, secret], 8)


def test_colliding_keys_change_no_answer() -> None:
    prompts = conversation_prompts(12, seed=1)
    with running_engine(HashRunner(40), hash_block=lambda parent_key, token_bytes: b"same") as engine:
        sinks = [submit(engine, prompt, max_tokens=10) for prompt in prompts]
        for prompt, sink in zip(prompts, sinks, strict=True):
            assert sink.wait().token_ids() == greedy_oracle(prompt, 10)


def test_each_turn_of_a_conversation_reuses_all_before_it_and_changes_nothing() -> None:
    turn, num_computed = list(range(10)), 0
    with running_engine(HashRunner(100)) as engine:
        for _ in range(5):
            sink = submit(engine, turn, max_tokens=13, ignore_eos=True).wait()
            assert sink.outputs[-1].num_cached_tokens == num_computed // 4 * 4  # whole blocks
            assert sink.token_ids() == greedy_oracle(turn, 13, eos=())
            num_computed = len(turn) + 13 - 1
            turn = [*turn, *sink.token_ids(), 7, 7, 7]


def test_equal_prompts_under_different_salts_share_nothing() -> None:
    prompt = list(range(20))
    with running_engine(HashRunner(100)) as engine:
        for salt in ("a", "b", None, "a"):
            sink = submit(engine, prompt, max_tokens=2, cache_salt=salt).wait()
            assert sink.token_ids() == greedy_oracle(prompt, 2)
        assert sink.outputs[-1].num_cached_tokens == 16
        assert engine.metrics.snapshot().counters["vllm:prefix_cache_hits_total"] == 16
