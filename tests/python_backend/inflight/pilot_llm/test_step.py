"""Plain steps, which are run and committed in bulk, give what the general way gives, whatever happened before them."""

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from pilot_llm.batch import Batch
from pilot_llm.plan import StepPlan
from pilot_llm.speculation import SpeculativeConfig
from pilot_llm.step import run_step
from pilot_testing.fake_llm import HashRunner, Simulation


class BothWays(Simulation):
    """Runs every plain step in both ways, and commits it in either. `kinds`: which steps there were."""

    def __init__(self, rng: random.Random, num_blocks: int, **changes: Any) -> None:
        super().__init__(HashRunner(num_blocks), **changes)
        self.kinds: set[bool] = set()
        self._rng = rng

    def step(self) -> StepPlan:
        self.now_s += 1.0
        plan = self.scheduler.schedule(self.now_s)
        wants_more = any(c.forks or c.draft or c.prompt_positions or not c.samples for c in plan.chunks)
        assert plan.is_plain is not wants_more
        self.kinds.add(plan.is_plain)
        batches: list[Batch] = []
        self.runner.before_forward = lambda batch: batches.append(batch)
        sampled = run_step(plan, self.runner).sampled
        if plan.is_plain:
            plan.is_plain = False
            assert run_step(plan, self.runner).sampled == sampled
            assert_equal(*batches)
            plan.is_plain = self._rng.random() < 0.5
        self.plans.append(plan)
        self.take_in(self.scheduler.commit(plan, sampled))
        return plan


def assert_equal(left: Batch, right: Batch) -> None:
    for name in (field.name for field in fields(Batch) if field.name != "previous_ids"):
        one, other = getattr(left, name), getattr(right, name)
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, err_msg=name)


def wishes(rng: random.Random) -> dict[str, Any]:
    return rng.choice(
        [
            {},
            {"ignore_eos": True},
            {"n": 2, "temperature": 1.0},
            {"prompt_logprobs": 1},
            {"logprobs": 2, "frequency_penalty": 0.5},
            {"stop_token_ids": [rng.randrange(60) for _ in range(20)], "min_tokens": 2},
        ]
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"reserve_all_blocks": True}, {"speculation": SpeculativeConfig(prompt_lookup_max=2, prompt_lookup_min=1)}],
)
@pytest.mark.parametrize("num_blocks", [10, 64])
@pytest.mark.parametrize("seed", range(4))
def test_plain_steps_give_what_the_general_way_gives(seed: int, num_blocks: int, changes: dict[str, Any]) -> None:
    """With preemptions, forks, drafts, prompts in chunks, shared prefixes, ends and cancellations between them."""
    rng = random.Random(seed)
    simulation = BothWays(rng, num_blocks, **changes)
    for _ in range(100):
        if rng.random() < 0.25:
            prompt = list(range(rng.choice([0, 4, 9]))) + [rng.randrange(3) for _ in range(rng.randint(1, 12))]
            simulation.add(prompt, max_tokens=rng.randint(2, 14), **wishes(rng))
        if simulation.groups and rng.random() < 0.05:
            simulation.scheduler.abort(rng.randrange(len(simulation.groups)))
        if simulation.scheduler.has_work:
            simulation.step()
    simulation.run()
    assert simulation.kinds == {True, False}
    assert simulation.pool.num_held == 0


def test_steps_behind_a_preemption_are_the_same_both_ways() -> None:
    simulation = BothWays(random.Random(0), 5)
    for index in range(2):
        simulation.add([index, 1, 2, 3, 4], max_tokens=8, ignore_eos=True)
    simulation.run()
    assert simulation.scheduler.num_preemptions > 0
