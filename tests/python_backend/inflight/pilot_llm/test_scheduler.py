"""The scheduler's decisions, step by step, on a fake model that feels every wrong block (no threads, no time)."""

import pytest

from pilot_llm.errors import InvalidRequestError, LlmError
from pilot_llm.limits import SequenceLimits
from pilot_llm.plan import StepPlan
from pilot_llm.sequence import Place
from pilot_testing.fake_llm import HashRunner, Simulation, greedy_oracle

PREFIX = [7, 3, 9, 1, 4, 4, 2, 8]


def parts(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(chunk.sequence.group.ticket, chunk.start, chunk.end) for chunk in plan.chunks]


def check_all_planned_run(sim: Simulation) -> None:
    assert all(chunk.sequence.place is Place.RUNNING for chunk in sim.plans[-1].chunks)


def forever(sim: Simulation, prompt: list[int], **options: object) -> object:
    return sim.add(prompt, max_tokens=30, ignore_eos=True, **options)


def test_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    sim = Simulation(max_num_batched_tokens=6)
    group = sim.add(list(range(15)), max_tokens=1)
    assert [parts(sim.step()) for _ in range(3)] == [[(0, 0, 6)], [(0, 6, 12)], [(0, 12, 15)]]
    assert sim.output(group) == greedy_oracle(list(range(15)), 1)


def test_decodes_come_first_and_prompts_share_the_rest_of_the_budget() -> None:
    sim = Simulation(max_num_batched_tokens=6)
    forever(sim, [1, 2])
    forever(sim, [3, 4])
    sim.step()
    sim.add(list(range(10)), max_tokens=1)
    assert parts(sim.step()) == [(0, 2, 3), (1, 2, 3), (2, 0, 4)]
    assert parts(sim.step()) == [(0, 3, 4), (1, 3, 4), (2, 4, 8)]


def test_budget_is_never_exceeded_and_never_wasted() -> None:
    sim = Simulation(HashRunner(num_blocks=200), max_num_batched_tokens=8, max_num_seqs=8)
    for first in range(10):
        sim.add([first] * 11, max_tokens=5, ignore_eos=True, shares_prefix=False)
    sim.run()
    assert max(plan.num_tokens for plan in sim.plans) == 8
    assert all(plan.num_tokens == sum(chunk.end - chunk.start for chunk in plan.chunks) for plan in sim.plans)
    assert [plan.num_tokens for plan in sim.plans[:13]] == [8] * 13


def test_slot_freed_in_one_step_is_filled_in_the_next() -> None:
    sim = Simulation(max_num_seqs=2)
    sim.add([1, 2], max_tokens=1)
    forever(sim, [3, 4])
    sim.add([5, 6], max_tokens=1)
    assert [ticket for ticket, _, _ in parts(sim.step())] == [0, 1]
    assert [ticket for ticket, _, _ in parts(sim.step())] == [1, 2]


def test_no_more_sequences_run_than_max_num_seqs() -> None:
    sim = Simulation(HashRunner(num_blocks=200), max_num_seqs=3)
    for first in range(9):
        forever(sim, [first])
    sim.run()
    assert max(len(plan.chunks) for plan in sim.plans) == 3


def test_fcfs_runs_in_order_of_arrival() -> None:
    sim = Simulation(max_num_seqs=1)
    for first in range(4):
        sim.add([first], max_tokens=1)
    sim.run()
    assert [parts(plan)[0][0] for plan in sim.plans] == [0, 1, 2, 3]


@pytest.mark.parametrize("budget", [8, 13, 64])
def test_prefix_that_many_bring_at_once_is_computed_once(budget: int) -> None:
    sim = Simulation(HashRunner(num_blocks=200), max_num_seqs=8, max_num_batched_tokens=budget)
    prefix = [7, 3, 9, 1] * 6
    groups = [sim.add([*prefix, first, first + 1, first + 2], max_tokens=5, ignore_eos=True) for first in range(20)]
    sim.run()
    num_prompt_tokens = sum(plan.num_tokens for plan in sim.plans) - 20 * 4  # of 5 tokens one comes with the prompt
    assert num_prompt_tokens == len(prefix) + 20 * 3
    assert all(sim.output(group) == greedy_oracle(group.prompt_token_ids, 5, eos=()) for group in groups)


def test_better_score_runs_first_whatever_the_order_of_arrival() -> None:
    sim = Simulation(max_num_seqs=1)
    for score in (2.0, 0.0, 1.0):
        sim.add([1, 2], max_tokens=1, score=score)
    sim.run()
    assert [parts(plan)[0][0] for plan in sim.plans] == [1, 2, 0]


def test_prompts_that_arrive_together_share_their_prefix_in_their_first_step() -> None:
    sim = Simulation(max_num_batched_tokens=64)
    groups = [sim.add([*PREFIX, last], max_tokens=6) for last in range(4)]
    assert parts(sim.step()) == [(0, 0, 9), (1, 8, 9), (2, 8, 9), (3, 8, 9)]
    sim.run()
    for last, group in enumerate(groups):
        assert sim.output(group) == greedy_oracle([*PREFIX, last], 6)
    assert [group.num_cached_tokens for group in groups] == [0, 8, 8, 8]


def test_prefix_that_another_one_is_computing_in_chunks_is_waited_for() -> None:
    sim = Simulation(HashRunner(num_blocks=100), max_num_batched_tokens=8)
    prefix = PREFIX * 3
    groups = [sim.add([*prefix, last], max_tokens=1) for last in range(4)]
    sim.run()
    assert [group.num_cached_tokens for group in groups] == [0, 24, 24, 24]
    assert sim.runner.num_tokens == 24 + 4
    for last, group in enumerate(groups):
        assert sim.output(group) == greedy_oracle([*prefix, last], 1)


@pytest.mark.parametrize("end", ["cancelled", "step failed", "preempted"])
def test_who_waits_for_a_prefix_goes_on_when_its_computer_ends(end: str) -> None:
    sim = Simulation(HashRunner(num_blocks=100), max_num_batched_tokens=8)
    prompt = PREFIX * 3
    first = sim.add([*prompt, 1], max_tokens=2)
    second = sim.add([*prompt, 2], max_tokens=2)
    sim.step()
    assert second.sequences[0].place is Place.WAITING
    if end == "cancelled":
        sim.scheduler.abort(first.ticket)
    elif end == "step failed":
        sim.scheduler.fail(sim.scheduler.schedule(0.0))
    else:
        sim.scheduler._preempt(first.sequences[0])
    sim.check_books()
    sim.run()
    assert sim.output(second) == greedy_oracle([*prompt, 2], 2)
    assert second.num_cached_tokens >= 8


def test_failed_admission_after_a_prefix_match_holds_nothing() -> None:
    sim = Simulation(HashRunner(num_blocks=6), max_num_batched_tokens=64)
    sim.add(PREFIX, max_tokens=1)
    sim.run()
    blocker = sim.add([50] * 10, max_tokens=3, ignore_eos=True)
    sim.step()
    late = sim.add([*PREFIX, *[9] * 8], max_tokens=1)
    held = sim.pool.num_held
    sim.step()
    assert late.sequences[0].place is Place.WAITING
    assert sim.pool.num_held == held
    sim.run()
    assert sim.output(late) == greedy_oracle([*PREFIX, *[9] * 8], 1)
    assert len(sim.output(blocker)) == 3


def test_exhausted_pool_preempts_the_last_in_rank_and_its_answer_stays_the_same() -> None:
    sim = Simulation(HashRunner(num_blocks=6), max_num_batched_tokens=64)
    first = sim.add([1, 2, 3, 4, 5], max_tokens=12, ignore_eos=True)
    second = sim.add([6, 7, 8, 9, 10], max_tokens=12, ignore_eos=True)
    sim.run()
    assert sim.scheduler.num_preemptions > 0
    assert first.sequences[0].num_preemptions == 0
    assert sim.output(first) == greedy_oracle([1, 2, 3, 4, 5], 12, eos=())
    assert sim.output(second) == greedy_oracle([6, 7, 8, 9, 10], 12, eos=())


def test_sequence_planned_in_this_step_is_never_preempted_in_it() -> None:
    sim = Simulation(HashRunner(num_blocks=8), max_num_batched_tokens=64)
    for first in range(4):
        forever(sim, [first, 1, 2])
    sim.runner.before_forward = lambda batch: check_all_planned_run(sim)
    sim.run()
    assert sim.scheduler.num_preemptions > 0


def test_preempted_sequence_finds_its_own_blocks_again_if_nobody_took_them() -> None:
    sim = Simulation(HashRunner(num_blocks=50))
    group = forever(sim, PREFIX)
    for _ in range(6):
        sim.step()
    sequence = group.sequences[0]
    num_tokens = len(sequence.token_ids)
    sim.scheduler._preempt(sequence)
    plan = sim.step()
    assert parts(plan) == [(0, (num_tokens - 1) // 4 * 4, num_tokens)]


def test_reserving_policy_never_preempts() -> None:
    sim = Simulation(HashRunner(num_blocks=8), reserve_all_blocks=True)
    groups = [sim.add([first, 1, 2], max_tokens=20, ignore_eos=True) for first in range(4)]
    sim.run()
    assert sim.scheduler.num_preemptions == 0
    for first, group in enumerate(groups):
        assert sim.output(group) == greedy_oracle([first, 1, 2], 20, eos=())


def test_without_chunked_prefill_a_prompt_runs_whole_or_waits() -> None:
    sim = Simulation(HashRunner(num_blocks=100), max_num_batched_tokens=12, enable_chunked_prefill=False)
    sim.add([1] * 8, max_tokens=3, ignore_eos=True)
    sim.add([2] * 8, max_tokens=3, ignore_eos=True)
    assert [parts(sim.step()) for _ in range(2)] == [[(0, 0, 8)], [(0, 8, 9), (1, 0, 8)]]


def test_n_sequences_share_the_blocks_of_their_prompt_and_copy_the_one_that_they_write_into() -> None:
    sim = Simulation(HashRunner(num_blocks=50))
    group = sim.add([*PREFIX, 1, 2], n=3, temperature=1.0, seed=4, max_tokens=6, ignore_eos=True)
    sim.step()
    assert len(sim.scheduler.running()) == 3
    blocks = [sequence.blocks for sequence in group.sequences]
    assert blocks[0][:2] == blocks[1][:2] == blocks[2][:2]
    assert len({block[2] for block in blocks}) == 3
    sim.run()
    outputs = [sim.output(group, index) for index in range(3)]
    assert all(len(output) == 6 for output in outputs)
    assert len({tuple(output) for output in outputs}) == 3
    assert sim.pool.num_held == 0


@pytest.mark.parametrize("prompt", [PREFIX, [*PREFIX, 1], [1]])
@pytest.mark.parametrize("shares_prefix", [True, False])
@pytest.mark.parametrize(("num_blocks", "max_num_seqs"), [(50, 8), (4, 8), (50, 2)])
def test_n_sequences_are_the_same_with_little_memory_or_few_places(
    prompt: list[int], shares_prefix: bool, num_blocks: int, max_num_seqs: int
) -> None:
    options = {"n": 3, "temperature": 1.0, "seed": 9, "max_tokens": 7, "ignore_eos": True}
    roomy = Simulation(HashRunner(num_blocks=100), max_num_seqs=8)
    tight = Simulation(HashRunner(num_blocks=num_blocks), max_num_seqs=max_num_seqs)
    expected, group = (sim.add(prompt, shares_prefix=shares_prefix, **options) for sim in (roomy, tight))
    roomy.run()
    tight.run()
    for index in range(3):
        assert tight.output(group, index) == roomy.output(expected, index)


def test_cancelled_request_gives_back_all_its_sequences() -> None:
    sim = Simulation(HashRunner(num_blocks=6), max_num_seqs=2)
    group = sim.add([*PREFIX, 1], n=4, temperature=1.0, max_tokens=9, ignore_eos=True)
    sim.step()
    sim.scheduler.abort(group.ticket)
    sim.check_books()
    assert (sim.pool.num_held, sim.scheduler.num_running, sim.scheduler.num_waiting_again) == (0, 0, 0)
    assert not sim.scheduler.has_work


def test_prompt_logprobs_ask_for_every_position_once_and_skip_the_cache() -> None:
    sim = Simulation(max_num_batched_tokens=4)
    sim.add(PREFIX, max_tokens=1)
    sim.run()
    group = sim.add(PREFIX, max_tokens=2, prompt_logprobs=1)
    before = len(sim.plans)
    sim.run()
    positions = [list(chunk.prompt_positions) for plan in sim.plans[before:] for chunk in plan.chunks]
    assert [position for chunk in positions for position in chunk] == list(range(7))
    assert group.num_cached_tokens == 0


def test_forks_and_prompt_logprobs_in_one_step_get_each_their_own_logits() -> None:
    """As many rows of logits are read twice as are not sampled from: the counts alone look right."""
    sim = Simulation(max_num_batched_tokens=64)
    described = sim.add([1, 2], max_tokens=1, prompt_logprobs=1)
    sim.add([3, 4], n=2, temperature=1.0, max_tokens=1)
    plain = sim.add([5, 6], max_tokens=1)
    assert len(sim.step().chunks) == 3
    assert sim.output(described) == greedy_oracle([1, 2], 1)
    assert sim.output(plain) == greedy_oracle([5, 6], 1)


def test_failed_step_takes_only_its_own_requests_and_forgets_what_it_did_not_write() -> None:
    sim = Simulation(HashRunner(num_blocks=100), max_num_seqs=1)
    failed = sim.add([*PREFIX, 1], max_tokens=3)
    waiting = sim.add([*PREFIX, 2], max_tokens=3)
    plan = sim.scheduler.schedule(0.0)
    assert sim.scheduler.fail(plan) == [failed]
    sim.check_books()
    sim.run()
    assert waiting.num_cached_tokens == 0
    assert sim.output(waiting) == greedy_oracle([*PREFIX, 2], 3)


def test_unusable_logits_end_one_request_and_its_blocks_are_not_shared_any_more() -> None:
    sim = Simulation(HashRunner(num_blocks=100))
    sim.add(PREFIX, max_tokens=5)
    other = sim.add([1, 2], max_tokens=3)
    sim.runner.before_forward = lambda batch: [0]
    sim.step()
    sim.runner.before_forward = lambda batch: None
    sim.run()
    again = sim.add([*PREFIX, 1], max_tokens=1)
    sim.run()
    assert again.num_cached_tokens == 0
    assert sim.output(other) == greedy_oracle([1, 2], 3)


def test_min_tokens_holds_back_every_way_to_stop() -> None:
    sim = Simulation()
    group = sim.add([1, 2, 3], max_tokens=8, min_tokens=5, stop_token_ids=list(range(62)))
    sim.run()
    assert len(sim.output(group)) >= 5


def test_state_in_which_nothing_can_run_is_an_error_and_not_an_endless_loop() -> None:
    sim = Simulation(HashRunner(num_blocks=4))
    sim.pool.allocate(4)
    sim.add([1, 2], max_tokens=1)
    with pytest.raises(LlmError, match="of which none can run"):
        sim.scheduler.schedule(0.0)


LIMITS = SequenceLimits(max_model_len=100, num_blocks=10, block_size=4)


def test_longest_possible_request_fits_and_one_token_more_is_refused_with_numbers() -> None:
    assert LIMITS.max_total_tokens(21, 20) == 41
    with pytest.raises(InvalidRequestError, match="21 prompt tokens and up to 21 output tokens need 11 KV blocks of 4"):
        LIMITS.max_total_tokens(21, 21)
    sim = Simulation(HashRunner(num_blocks=10))
    group = sim.add([3] * 21, max_tokens=20, ignore_eos=True)
    sim.run()
    assert sim.output(group) == greedy_oracle([3] * 21, 20, eos=())


def test_prompt_of_the_context_length_is_refused_and_one_token_less_gives_one_token() -> None:
    limits = SequenceLimits(max_model_len=8, num_blocks=10, block_size=4)
    assert limits.max_total_tokens(7, 50) == 8
    with pytest.raises(
        InvalidRequestError, match="the prompt has 8 tokens; with max_model_len 8 it may have at most 7"
    ):
        limits.max_total_tokens(8, 1)
    with pytest.raises(InvalidRequestError, match="the prompt is empty"):
        limits.max_total_tokens(0, 1)


def test_without_max_tokens_a_sequence_may_take_what_model_and_pool_hold() -> None:
    assert LIMITS.max_total_tokens(5, None) == 41
    assert SequenceLimits(30, 10, 4).max_total_tokens(5, None) == 30
    with pytest.raises(InvalidRequestError, match="need 11 KV blocks"):
        LIMITS.max_total_tokens(41, None)
