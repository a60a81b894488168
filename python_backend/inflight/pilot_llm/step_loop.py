"""The engine thread: one step after the other while there is work, asleep on its mailbox while there is none.

    take commands (admit, drop) -> schedule -> run on the model -> commit -> copy blocks of forks -> post news
                                                 |
                                                 +-- raises: this step's requests end with an error, the loop goes on

With async scheduling the device never waits for the host: whenever the next step is sure to be one more token for
everybody, it is launched before the last one's tokens are looked at.

    device   [ step 1 ][ step 2 ][ step 3 ]
    host     launch 1, launch 2, land 1, launch 3, land 2, ...       land: wait for its tokens, commit, post

It never waits for a client: news is handed over in one go, under one short lock.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pilot_llm.block_keys import HashBlock
from pilot_llm.block_pool import BlockPool
from pilot_llm.config import EngineConfig
from pilot_llm.errors import EngineDeadError, ErrorCode
from pilot_llm.mailbox import Mailbox
from pilot_llm.metrics import EngineMetrics, Observation
from pilot_llm.pending_tokens import PendingTokens
from pilot_llm.plan import SequenceEvent, StepPlan, StepResult
from pilot_llm.request import RequestError
from pilot_llm.response_stream import EndNews, News, PromptNews, ResponseStream, StartNews, TokenNews
from pilot_llm.runner import Runner
from pilot_llm.sampler import plain_tokens
from pilot_llm.scheduler import Scheduler
from pilot_llm.sequence import RequestGroup
from pilot_llm.step import StepTokens, launch_step, run_step
from pilot_llm.waiting_room import WaitingRoom

_log = logging.getLogger(__name__)


class Admit(NamedTuple):
    """A request that is ready for the scheduler."""

    stream: ResponseStream
    group: RequestGroup


Command = Admit | int
"""An int is the ticket of a request to drop: its stream is closed."""


@dataclass(slots=True)
class _Flight:
    """A step that was launched. `outcome`: its tokens, or those on their way, or why there are none."""

    plan: StepPlan
    outcome: StepTokens | PendingTokens | Exception

    def tokens(self) -> StepTokens:
        """Waits for them; raises what went wrong."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if isinstance(self.outcome, StepTokens):
            return self.outcome
        return StepTokens(plain_tokens(self.outcome.wait()))


class StepLoop:
    """Owns scheduler, block pool and runner; all methods but `stop` run on the engine thread."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        commands: Mailbox[Command],
        *,
        post: Callable[[Iterable[tuple[int, News]]], None],
        waiting_room: WaitingRoom,
        metrics: EngineMetrics,
        clock: Callable[[], float],
        hash_block: HashBlock,
    ) -> None:
        self._runner = runner
        self._commands = commands
        self._post = post
        self._waiting_room = waiting_room
        self._metrics = metrics
        self._clock = clock
        wanted = runner.is_asynchronous if config.async_scheduling is None else config.async_scheduling
        self._runs_ahead = wanted and config.speculative_config is None
        self._in_flight: _Flight | None = None  # launched ahead, not landed
        self._max_failed_steps = config.inflight.max_failed_steps
        self.pool = BlockPool(runner.num_blocks)
        self.scheduler = Scheduler(
            self.pool,
            block_size=runner.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.step_tokens(on_gpu=runner.is_asynchronous),
            enable_chunked_prefill=config.enable_chunked_prefill,
            reserve_all_blocks=config.inflight.kv_exhaustion == "reserve",
            speculation=config.speculative_config,
            hash_block=hash_block,
        )
        self.step_started_s: float | None = None
        self._num_failed_steps = 0  # in a row
        self._num_running_seen = 0  # by the waiting room
        self._counted: dict[str, int] = {}  # totals of the scheduler that the metrics have seen
        self._is_stopped = False

    def run(self) -> None:
        """Work until the mailbox is closed, or `stop`.

        Raises:
            EngineDeadError: too many steps failed in a row.
        """
        while not self._is_stopped:
            commands = self._commands.take_all(wait=not self.scheduler.has_work and self._in_flight is None)
            if commands is None:
                self._drop_flight()
                return
            self._obey(commands)
            if self.scheduler.has_work or self._in_flight is not None:
                self._step()
            else:
                self._leave_waiting_room(())
                self._record({}, [])

    def stop(self) -> None:
        """Do not begin another step."""
        self._is_stopped = True

    def _obey(self, commands: Iterable[Command]) -> None:
        for command in commands:
            if isinstance(command, Admit):
                # Closed before it came here, it will not be dropped again.
                if not command.stream.is_closed:
                    self.scheduler.add(command.group)
            else:
                self.scheduler.abort(command)

    def _step(self) -> None:
        self.step_started_s = self._clock()
        flight = self._in_flight or self._launch(self.scheduler.schedule(self.step_started_s))
        self._in_flight = self._launch_behind(flight)
        self._land(flight)

    def _launch(self, plan: StepPlan, previous: PendingTokens | None = None) -> _Flight:
        try:
            if self._runs_ahead and plan.leaves_tokens:
                return _Flight(plan, launch_step(plan, self._runner, previous))
            return _Flight(plan, run_step(plan, self._runner))
        except Exception as error:  # noqa: BLE001 foreign code, short memory: the step's requests end, others go on
            return _Flight(plan, error)

    def _launch_behind(self, flight: _Flight) -> _Flight | None:
        if not isinstance(flight.outcome, PendingTokens):
            return None
        plan = self.scheduler.plan_ahead(flight.plan, self._clock())
        return None if plan is None else self._launch(plan, flight.outcome)

    def _land(self, flight: _Flight) -> None:
        plan = flight.plan
        try:
            tokens = flight.tokens()
            now_s = self._clock()
            result = self.scheduler.commit(plan, tokens.sampled)
            if result.block_copies:
                self._runner.copy_blocks(result.block_copies)
        except Exception as error:  # noqa: BLE001 as in _launch
            self._drop_flight()
            self.step_started_s = None
            self._fail(plan, error)
            return
        self.step_started_s = None
        self._num_failed_steps = 0
        self._post(self._news(plan, tokens, result, now_s))
        self._leave_waiting_room(plan.started)
        self._record_step(plan, result, now_s)

    def _drop_flight(self) -> None:
        """What runs ahead is for nothing: wait until it writes to no block any more."""
        flight, self._in_flight = self._in_flight, None
        if flight is None:
            return
        with contextlib.suppress(Exception):
            flight.tokens()
        self.scheduler.fail(flight.plan)

    def _fail(self, plan: StepPlan, error: Exception) -> None:
        self._num_failed_steps += 1
        groups = self.scheduler.fail(plan)
        _log.error("a step of %d requests failed", len(groups), exc_info=error)
        failure = RequestError(ErrorCode.INTERNAL, f"a step of the model failed: {type(error).__name__}: {error}")
        self._post([(group.ticket, EndNews("error", failure)) for group in groups])
        self._leave_waiting_room(plan.started)
        self._record({}, [])
        if self._num_failed_steps >= self._max_failed_steps:
            raise EngineDeadError(f"{self._num_failed_steps} steps in a row have failed, the last with: {error}")

    def _news(self, plan: StepPlan, tokens: StepTokens, result: StepResult, now_s: float) -> list[tuple[int, News]]:
        news: list[tuple[int, News]] = [
            (group.ticket, StartNews(group.num_cached_tokens, plan.now_s)) for group in plan.started
        ]
        for chunk, positions in tokens.prompt_logprobs:
            ticket = chunk.sequence.group.ticket
            errors = [position.error for position in positions if position.error is not None]
            news.append((ticket, _failure(errors[0]) if errors else PromptNews(positions)))
        for event in result.events:
            sequence = event.sequence
            token = TokenNews(sequence.index, event.token, event.finish_reason, event.stop_reason, now_s)
            news.append((sequence.group.ticket, token))
        news.extend((group.ticket, _failure(reason)) for group, reason in result.failed)
        return news

    def _leave_waiting_room(self, started: Sequence[RequestGroup]) -> None:
        num_running = self.scheduler.num_running
        if started or num_running != self._num_running_seen:
            self._num_running_seen = num_running
            self._waiting_room.leave([group.ticket for group in started], num_running)

    def _record_step(self, plan: StepPlan, result: StepResult, now_s: float) -> None:
        observations: list[Observation] = []
        for group in plan.started:
            if group.first_scheduled_s is not None:
                waited_s = group.first_scheduled_s - group.arrival_s
                observations.append(("vllm:request_queue_time_seconds", waited_s, 1))
        self._observe_tokens(result.events, now_s, observations)
        counters = {
            "vllm:prompt_tokens_total": sum(len(group.prompt_token_ids) for group in plan.started),
            "vllm:generation_tokens_total": len(result.events),
        }
        self._record(counters, observations)

    def _observe_tokens(self, events: Iterable[SequenceEvent], now_s: float, observations: list[Observation]) -> None:
        num_by_last_token_s = Counter[float]()  # most sequences had their last token in the same step
        for event in events:
            sequence = event.sequence
            last_token_s, sequence.last_token_s = sequence.last_token_s, now_s
            if last_token_s == now_s:
                continue  # it came with another one of this step: nobody has waited for it
            if last_token_s is not None:
                num_by_last_token_s[last_token_s] += 1
            elif sequence.index == 0:
                group = sequence.group
                observations.append(("vllm:time_to_first_token_seconds", now_s - group.arrival_s, 1))
                if group.first_scheduled_s is not None:
                    observations.append(("vllm:request_prefill_time_seconds", now_s - group.first_scheduled_s, 1))
        for last_token_s, times in num_by_last_token_s.items():
            observations.append(("vllm:inter_token_latency_seconds", now_s - last_token_s, times))

    def _record(self, counters: Mapping[str, int], observations: list[Observation]) -> None:
        scheduler, speculator = self.scheduler, self.scheduler.speculator
        totals = {
            "vllm:prefix_cache_queries_total": scheduler.num_prefix_query_tokens,
            "vllm:prefix_cache_hits_total": scheduler.num_prefix_hit_tokens,
            "vllm:num_preemptions_total": scheduler.num_preemptions,
            "vllm:spec_decode_num_drafts_total": speculator.num_drafts,
            "vllm:spec_decode_num_draft_tokens_total": speculator.num_draft_tokens,
            "vllm:spec_decode_num_accepted_tokens_total": speculator.num_accepted_tokens,
        }
        added = {name: total - self._counted.get(name, 0) for name, total in totals.items()}
        self._counted = totals
        gauges = {
            "vllm:num_requests_running": scheduler.num_running,
            "vllm:num_requests_waiting": scheduler.num_waiting_again,
            "vllm:kv_cache_usage_perc": self.pool.num_held / self.pool.num_blocks,
        }
        self._metrics.record_step({**counters, **added}, gauges, observations)


def _failure(reason: str) -> EndNews:
    return EndNews("error", RequestError(ErrorCode.INTERNAL, f"the model gave no usable answer: {reason}"))
