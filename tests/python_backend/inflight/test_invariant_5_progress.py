"""Invariant 5: with any mix, every admitted request finishes in a bounded number of steps."""

import random

import pytest

from pilot_llm.step import run_step
from pilot_testing.fake_llm import HashRunner, Simulation, greedy_oracle, running_engine, submit


@pytest.mark.parametrize("seed", range(6))
def test_tight_pool_does_not_thrash(seed: int) -> None:
    """Preemptions, and tokens computed again, stay within a few times of what had to be done anyway."""
    rng = random.Random(seed)
    sim = Simulation(HashRunner(num_blocks=12), max_num_seqs=6, max_num_batched_tokens=24)
    lengths = [(rng.randint(1, 24), rng.randint(1, 20)) for _ in range(30)]
    for prompt_len, max_tokens in lengths:
        sim.add([rng.randrange(60) for _ in range(prompt_len)], max_tokens=max_tokens, ignore_eos=True)
    one_after_the_other = sum(-(-prompt_len // 24) + max_tokens for prompt_len, max_tokens in lengths)
    num_steps = sim.run(max_steps=one_after_the_other)  # never worse than without any batching
    assert num_steps < 0.75 * one_after_the_other
    num_needed = sum(prompt_len + max_tokens - 1 for prompt_len, max_tokens in lengths)
    assert sim.runner.num_tokens < 2 * num_needed
    assert all(len(sim.output(group)) == group.params.max_tokens for group in sim.groups)


def test_long_prompt_and_tight_pool_preempt_a_bounded_number_of_times() -> None:
    sim = Simulation(HashRunner(num_blocks=16), max_num_seqs=4)
    groups = [sim.add([first] * 20, max_tokens=30, ignore_eos=True) for first in range(6)]
    sim.run()
    assert sim.scheduler.num_preemptions > 0
    assert max(group.sequences[0].num_preemptions for group in groups) <= 4
    assert groups[0].sequences[0].num_preemptions == 0
    for first, group in enumerate(groups):
        assert sim.output(group) == greedy_oracle([first] * 20, 30, eos=())


def test_admission_leaves_each_that_runs_a_block_to_grow_into() -> None:
    sim = Simulation(HashRunner(num_blocks=16), max_num_seqs=5, max_num_batched_tokens=200)
    for first in range(8):
        sim.add([first] * (5 + first), max_tokens=20, ignore_eos=True, shares_prefix=False)
    num_admissions = 0
    while sim.scheduler.has_work:
        ran_before = set(sim.scheduler.running())
        plan = sim.scheduler.schedule(0.0)
        if {chunk.sequence for chunk in plan.chunks} - ran_before and len(plan.chunks) > 1:
            num_admissions += 1
            assert sim.pool.num_available >= sim.scheduler.num_running - 1
        sim.scheduler.commit(plan, run_step(plan, sim.runner).sampled)
    assert num_admissions > 3


def test_low_priority_finishes_under_a_stream_of_high_priority_requests() -> None:
    """Score = priority + arrival / ageing_s: who came ageing_s earlier goes before who is one level better."""
    sim = Simulation(HashRunner(num_blocks=60), max_num_seqs=1)
    ageing_s = 10.0
    low = sim.add([1, 2], max_tokens=2, score=5.0 + 0.0)
    for step in range(200):
        if low.is_done:
            break
        if step % 2 == 0:
            sim.add([3, step % 60], max_tokens=2, ignore_eos=True, score=0.0 + sim.now_s / ageing_s)
        sim.step()
    assert low.is_done
    assert 40 <= sim.now_s <= 60  # five levels of ten seconds, and what the queue adds


def test_long_prompt_is_not_starved_by_decodes() -> None:
    sim = Simulation(HashRunner(num_blocks=200), max_num_seqs=8, max_num_batched_tokens=8)
    for first in range(7):
        sim.add([first], max_tokens=80, ignore_eos=True)
    sim.step()
    long = sim.add([9] * 60, max_tokens=1)
    for _ in range(62):
        sim.step()
    assert long.is_done  # one token of budget a step remains for it


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_every_request_of_a_random_mix_finishes(policy: str) -> None:
    rng = random.Random(7)
    with running_engine(
        HashRunner(24), scheduling_policy=policy, max_num_batched_tokens=20, inflight={"ageing_s": 0.5}
    ) as engine:
        prompts = [[rng.randrange(60) for _ in range(rng.randint(1, 40))] for _ in range(60)]
        sinks = [
            submit(engine, prompt, max_tokens=rng.randint(1, 40), priority=rng.randint(-3, 3), ignore_eos=True)
            for prompt in prompts
        ]
        for prompt, sink in zip(prompts, sinks, strict=True):
            tokens = sink.wait().token_ids()
            assert sink.finish_reason() == "length"
            assert tokens == greedy_oracle(prompt, len(tokens), eos=())


def test_higher_priority_overtakes_in_a_live_engine() -> None:
    order: list[str] = []
    with running_engine(HashRunner(100), max_num_seqs=1, scheduling_policy="priority") as engine:
        sinks = [submit(engine, [1], max_tokens=60, ignore_eos=True)]
        for priority in (3, 0, -2):
            sink = submit(engine, [2], max_tokens=3, priority=priority, ignore_eos=True)
            sink.on_send = lambda output, name=str(priority): order.append(name)
            sinks.append(sink)
        for sink in sinks:
            sink.wait()
    assert order == ["-2", "0", "3"]
