"""Steps that are planned while the one before them runs: when there is one, and what becomes of blocks and prefixes."""

import random
from typing import Any

import pytest

from pilot_llm.pending_tokens import PendingTokens
from pilot_llm.plan import StepPlan, StepResult
from pilot_llm.sampler import plain_tokens
from pilot_llm.step import launch_step, run_step
from pilot_testing.fake_llm import HashRunner, Simulation, check_books, greedy_oracle


class AheadSimulation(Simulation):
    """The step loop with async scheduling, without threads. `num_ahead` counts what was launched ahead."""

    def __init__(self, runner: HashRunner | None = None, **changes: Any) -> None:
        super().__init__(runner, **changes)
        self.num_ahead = 0
        self._flight: tuple[StepPlan, PendingTokens] | None = None

    def launch(self) -> None:
        """Leave one step in flight."""
        if self._flight is None:
            plan = self.scheduler.schedule(self.now_s)
            if plan.leaves_tokens:
                self._flight = plan, launch_step(plan, self.runner, None)
            else:
                self._take(plan, self.scheduler.commit(plan, run_step(plan, self.runner).sampled))

    def step(self) -> StepPlan:
        self.now_s += 1.0
        self.launch()
        if self._flight is None:
            return self.plans[-1]
        plan, pending = self._flight
        ahead = self.scheduler.plan_ahead(plan, self.now_s)
        self._flight = None if ahead is None else (ahead, launch_step(ahead, self.runner, pending))
        self.num_ahead += ahead is not None
        self._take(plan, self.scheduler.commit(plan, plain_tokens(pending.wait())))
        return plan

    @property
    def has_flight(self) -> bool:
        return self._flight is not None

    def _take(self, plan: StepPlan, result: StepResult) -> None:
        self.plans.append(plan)
        self.take_in(result)

    def check_books(self) -> None:
        check_books(self.pool, self.scheduler, () if self._flight is None else (self._flight[0],))

    def run(self, max_steps: int = 2000) -> int:
        for steps in range(max_steps):
            if not self.scheduler.has_work and not self.has_flight:
                return steps
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")


@pytest.mark.parametrize("num_blocks", [10, 64])
@pytest.mark.parametrize("seed", range(6))
def test_tokens_and_ends_are_those_of_the_synchronous_loop(seed: int, num_blocks: int) -> None:
    """With stops, several lengths, prefixes in common, prompts in chunks, and preemptions where memory is short."""
    told = []
    for kind in (Simulation, AheadSimulation):
        rng = random.Random(seed)
        simulation = kind(HashRunner(num_blocks))
        for _ in range(12):
            prompt = list(range(rng.choice([0, 4, 9]))) + [rng.randrange(60) for _ in range(rng.randint(1, 9))]
            wishes = {"max_tokens": rng.randint(1, 14), "stop_token_ids": [rng.randrange(60)]}
            if rng.random() < 0.5:
                wishes |= {"temperature": 1.0, "n": rng.randint(1, 2), "top_p": 0.9, "top_k": rng.choice([0, 9])}
            simulation.add(prompt, seed=seed, **wishes)
            for _ in range(rng.randint(0, 3)):
                simulation.step()
        simulation.run()
        assert simulation.pool.num_held == 0
        told.append((simulation.outputs, simulation.finish_reasons))
    assert told[0] == told[1]


@pytest.mark.parametrize("num_blocks", [10, 64])
@pytest.mark.parametrize("seed", range(6))
def test_requests_dropped_in_any_phase_leave_the_books_right_and_the_others_alone(seed: int, num_blocks: int) -> None:
    rng = random.Random(seed)
    simulation = AheadSimulation(HashRunner(num_blocks))
    prompts: list[list[int]] = []
    for _ in range(120):
        if rng.random() < 0.2:
            prompts.append([rng.randrange(60) for _ in range(rng.randint(1, 9))])
            simulation.add(prompts[-1], max_tokens=rng.randint(1, 14), ignore_eos=True)
        if prompts and rng.random() < 0.1:
            simulation.scheduler.abort(rng.randrange(len(prompts)))
            simulation.check_books()
        if simulation.scheduler.has_work or simulation.has_flight:
            simulation.step()
    simulation.run()
    assert simulation.num_ahead > 0
    assert simulation.pool.num_held == 0
    for group, prompt in zip(simulation.groups, prompts, strict=True):
        output = simulation.output(group)
        assert output == greedy_oracle(prompt, len(output), eos=())


def test_steady_decoding_runs_ahead_all_the_time() -> None:
    simulation = AheadSimulation()
    groups = [simulation.add([index], max_tokens=20, ignore_eos=True) for index in range(3)]
    simulation.run()
    assert simulation.num_ahead == 19
    assert [simulation.output(group) for group in groups] == [greedy_oracle([i], 20, eos=()) for i in range(3)]


@pytest.mark.parametrize(
    "wishes", [{"min_tokens": 1}, {"logit_bias": {"3": 1.0}}, {"prompt_logprobs": 1}, {"n": 2, "temperature": 1.0}]
)
def test_who_wants_more_than_a_token_is_not_run_ahead(wishes: dict[str, Any]) -> None:
    simulation = AheadSimulation()
    simulation.add([1, 2, 3], max_tokens=2, **wishes)
    simulation.step()
    assert simulation.num_ahead == 0


def test_request_that_can_be_admitted_is_not_made_to_wait() -> None:
    simulation = AheadSimulation(max_num_seqs=2)
    simulation.add([1], max_tokens=9, ignore_eos=True)
    simulation.step()
    assert simulation.has_flight
    second = simulation.add([2], max_tokens=9, ignore_eos=True)
    simulation.step()
    assert not simulation.has_flight
    simulation.add([3], max_tokens=9)  # there is no place for it
    simulation.step()
    assert simulation.output(second)
    assert simulation.has_flight


def test_prompt_that_needs_the_budget_is_not_starved() -> None:
    """The decodes take the whole step, so the prompt is not part of it: nothing is planned behind it."""
    simulation = AheadSimulation(max_num_seqs=4, max_num_batched_tokens=4)
    long = simulation.add(list(range(9)), max_tokens=2, ignore_eos=True)
    for index in range(3):
        simulation.add([index], max_tokens=30, ignore_eos=True)
    for _ in range(8):
        simulation.step()
    assert len(simulation.output(long)) == 2


def test_sequence_that_has_ended_keeps_its_blocks_until_the_step_ahead_has_run() -> None:
    simulation = AheadSimulation()
    oracle = greedy_oracle([7], 3, eos=())
    group = simulation.add([7], max_tokens=20, stop_token_ids=[oracle[2]], ignore_eos=True)
    for _ in range(3):
        simulation.step()
    assert group.is_done
    assert simulation.has_flight
    assert simulation.pool.num_held == 1
    simulation.step()
    assert simulation.output(group) == oracle
    assert simulation.pool.num_held == 0


def test_token_that_is_sure_to_be_the_last_is_not_run_behind() -> None:
    simulation = AheadSimulation()
    simulation.add([7], max_tokens=3, ignore_eos=True)
    simulation.run()
    assert simulation.runner.num_forwards == 3


def test_dropped_request_keeps_its_blocks_until_the_step_ahead_has_run() -> None:
    simulation = AheadSimulation()
    group = simulation.add([7, 8, 9], max_tokens=20, ignore_eos=True)
    simulation.step()
    simulation.scheduler.abort(group.ticket)
    simulation.check_books()
    assert simulation.pool.num_held > 0
    num_forwards = simulation.runner.num_forwards
    simulation.step()
    assert simulation.pool.num_held == 0
    assert not simulation.has_flight
    assert simulation.runner.num_forwards == num_forwards


def test_blocks_filled_ahead_are_found_by_the_next_turn_of_a_conversation() -> None:
    simulation = AheadSimulation()
    first = simulation.add([1, 2, 3], max_tokens=14, ignore_eos=True)
    simulation.run()
    assert simulation.num_ahead > 10
    second = simulation.add([1, 2, 3, *simulation.output(first), 5], max_tokens=1)
    simulation.run()
    assert second.num_cached_tokens == 16  # 3 + 14 tokens, of which the last was never computed


def test_without_a_block_nothing_is_planned_ahead_and_the_loop_preempts_as_ever() -> None:
    simulation = AheadSimulation(HashRunner(num_blocks=5))
    groups = [simulation.add([index, 1, 2, 3, 4], max_tokens=8, ignore_eos=True) for index in range(2)]
    simulation.run()
    assert simulation.scheduler.num_preemptions > 0
    for index, group in enumerate(groups):
        assert simulation.output(group) == greedy_oracle([index, 1, 2, 3, 4], 8, eos=())


def test_failed_step_ends_the_requests_that_run_ahead_too() -> None:
    simulation = AheadSimulation()
    simulation.add([7], max_tokens=20, ignore_eos=True)
    simulation.launch()
    assert simulation._flight is not None
    plan, pending = simulation._flight
    ahead = simulation.scheduler.plan_ahead(plan, 1.0)
    assert ahead is not None
    launch_step(ahead, simulation.runner, pending)
    simulation.scheduler.fail(ahead)
    simulation.scheduler.fail(plan)
    assert not simulation.scheduler.has_work
    assert simulation.pool.num_held == 0
