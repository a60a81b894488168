"""Random walks through the scheduler: arrivals, steps, cancellations, failed steps, unusable logits, preemptions.

The independent model is `greedy_oracle`: a request alone, without blocks, batches or a cache. Whatever happens to
others, a request that finishes has given exactly the oracle's tokens; and the books are right after every step.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilot_llm.block_keys import HashBlock, sha256_block
from pilot_llm.errors import InvalidRequestError
from pilot_llm.sequence import Place, RequestGroup
from pilot_testing.fake_llm import HashRunner, Simulation, greedy_oracle

# Few tokens and common beginnings, so that prefixes meet, diverge and collide.
prompts = st.builds(
    lambda shared, own: [5, 6, 7, 8, 5, 6, 7, 8, 1][:shared] + own,
    st.integers(0, 9),
    st.lists(st.integers(0, 2), min_size=1, max_size=8),
)


class SchedulerMachine(RuleBasedStateMachine):
    hash_block: HashBlock = staticmethod(sha256_block)

    @initialize(
        num_blocks=st.integers(6, 14),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 4),
        spare_budget=st.integers(0, 9),
        reserve=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, spare_budget: int, reserve: bool) -> None:
        self.sim = Simulation(
            HashRunner(num_blocks, block_size),
            hash_block=self.hash_block,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_budget,
            reserve_all_blocks=reserve,
        )
        self.budget = max_num_seqs + spare_budget
        self.max_num_seqs = max_num_seqs
        self.gone: set[int] = set()

    @rule(prompt=prompts, max_tokens=st.integers(1, 9), score=st.integers(0, 2), shares=st.booleans(), n=st.booleans())
    def arrive(self, prompt: list[int], max_tokens: int, score: int, shares: bool, n: bool) -> None:
        wishes = {"n": 2, "temperature": 1.0} if n and self.max_num_seqs > 1 else {}
        num_blocks = -(-(len(prompt) + max_tokens - 1) // self.sim.runner.block_size)
        if num_blocks > self.sim.runner.num_blocks:
            with pytest.raises(InvalidRequestError, match=f"need {num_blocks} KV blocks"):
                self.sim.add(prompt, max_tokens=max_tokens)
        else:
            self.sim.add(prompt, max_tokens=max_tokens, score=score, shares_prefix=shares, **wishes)

    @precondition(lambda self: self.sim.scheduler.has_work)
    @rule(times=st.integers(1, 4))
    def step(self, times: int) -> None:
        for _ in range(times):
            if self.sim.scheduler.has_work:
                plan = self.sim.step()
                assert 0 < plan.num_tokens <= self.budget
                assert len(plan.chunks) <= self.max_num_seqs

    @precondition(lambda self: self.sim.scheduler.has_work)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.sim.scheduler.groups()))
        assert self.sim.scheduler.abort(group.ticket) is group
        assert self.sim.scheduler.abort(group.ticket) is None
        self.gone.add(group.ticket)

    @precondition(lambda self: self.sim.scheduler.has_work)
    @rule()
    def step_fails(self) -> None:
        plan = self.sim.scheduler.schedule(0.0)
        self.gone.update(group.ticket for group in self.sim.scheduler.fail(plan))

    @precondition(lambda self: self.sim.scheduler.has_work)
    @rule()
    def logits_of_one_row_are_unusable(self) -> None:
        before = {group.ticket for group in self.sim.scheduler.groups()}
        self.sim.runner.before_forward = lambda batch: [0] if len(batch.sampled_rows) else None
        self.sim.step()
        self.sim.runner.before_forward = lambda batch: None
        self.gone |= {
            ticket
            for ticket in before - {group.ticket for group in self.sim.scheduler.groups()}
            if not self.has_finished(self.sim.groups[ticket])
        }

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "sim"):
            self.sim.check_books()
            assert all(sequence.place is Place.RUNNING for sequence in self.sim.scheduler.running())
            assert self.sim.scheduler.num_running <= self.max_num_seqs

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.run()
        assert self.sim.pool.num_held == 0
        for group in self.sim.groups:
            if group.ticket in self.gone:
                continue
            assert self.has_finished(group), "an admitted request has no end"
            if group.params.is_greedy:
                expected = greedy_oracle(group.prompt_token_ids, group.params.max_tokens or 0)
                assert self.sim.output(group) == expected

    def has_finished(self, group: RequestGroup) -> bool:
        return all((group.ticket, index) in self.sim.finish_reasons for index in range(group.params.n))


class CollidingSchedulerMachine(SchedulerMachine):
    hash_block = staticmethod(lambda parent_key, token_bytes: b"always the same")


SchedulerMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
CollidingSchedulerMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=30, deadline=None)
TestSchedulerAgainstOracle = SchedulerMachine.TestCase
TestSchedulerWithCollidingHashAgainstOracle = CollidingSchedulerMachine.TestCase
