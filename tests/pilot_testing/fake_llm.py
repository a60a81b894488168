"""A language model without weights, whose every answer depends on what stands in its paged KV cache.

`HashRunner` writes each token and its position to its slot, and computes the next token as a hash of all tokens that it
reads back through the block table. So a wrong slot, a block given to two sequences, a missed copy, a stale prefix or a
wrong position changes the output or raises, as it would with a real model, but in microseconds.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pilot_llm.batch import Batch
from pilot_llm.block_keys import HashBlock, Namespace, sha256_block
from pilot_llm.block_pool import BlockPool
from pilot_llm.config import EngineConfig
from pilot_llm.engine import Engine
from pilot_llm.limits import SequenceLimits
from pilot_llm.plan import StepPlan, StepResult
from pilot_llm.request import Request, RequestError, RequestOutput
from pilot_llm.sampling import SamplingParams
from pilot_llm.scheduler import Scheduler
from pilot_llm.sequence import RequestGroup
from pilot_llm.step import run_step

VOCAB_SIZE = 64
EOS = 63
_WEIGHTS = np.random.default_rng(5).integers(1, 2**63, size=65536, dtype=np.uint64)


class HashRunner:
    """Fulfils `Runner`. `before_forward` is called with each batch: it may raise, wait, or return rows to make NaN."""

    def __init__(
        self, num_blocks: int = 64, block_size: int = 4, max_model_len: int = 4096, vocab_size: int = VOCAB_SIZE
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.max_model_len = max_model_len
        self.is_asynchronous = False
        self.before_forward: Callable[[Batch], Sequence[int] | None] = lambda batch: None
        self.num_forwards = 0
        self.num_tokens = 0
        self.batch_sizes: list[int] = []
        self._tokens = np.full(num_blocks * block_size, -1, dtype=np.int64)
        self._positions = np.full(num_blocks * block_size, -1, dtype=np.int64)

    def forward(self, batch: Batch) -> torch.Tensor:
        self.num_forwards += 1
        self.num_tokens += batch.num_tokens
        self.batch_sizes.append(batch.num_sequences)
        nan_rows = self.before_forward(batch)
        if len(set(batch.slots.tolist())) != batch.num_tokens:
            raise AssertionError("two tokens of one step have the same slot")
        known = batch.previous_ids is None
        self._tokens[batch.slots] = batch.token_ids if known else batch.previous_ids.numpy()[batch.token_ids]
        self._positions[batch.slots] = batch.positions
        sequence_of = np.repeat(np.arange(batch.num_sequences), np.diff(batch.query_start))
        logits = np.zeros((len(batch.sampled_rows), self.vocab_size), dtype=np.float32)
        for row, token in enumerate(batch.sampled_rows):
            context = self._read(batch.block_table[sequence_of[token]], int(batch.positions[token]) + 1)
            logits[row] = logits_after(context, self.vocab_size)
        if nan_rows:
            logits[list(nan_rows)] = np.nan
        return torch.from_numpy(logits)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            for store in (self._tokens, self._positions):
                blocks = store.reshape(self.num_blocks, self.block_size)
                blocks[target] = blocks[source]

    def _read(self, blocks: np.ndarray, length: int) -> np.ndarray:
        at = np.arange(length)
        slots = blocks[at // self.block_size].astype(np.int64) * self.block_size + at % self.block_size
        if not np.array_equal(self._positions[slots], at):
            raise AssertionError(f"the cache holds positions {self._positions[slots]} where 0..{length - 1} belong")
        return self._tokens[slots]


def logits_after(context: Sequence[int] | np.ndarray, vocab_size: int = VOCAB_SIZE) -> np.ndarray:
    """The model itself: one clear favourite, the others near each other."""
    tokens = np.asarray(context, dtype=np.uint64)
    digest = int(np.sum((tokens + np.uint64(1)) * _WEIGHTS[: len(tokens)], dtype=np.uint64))
    logits = np.random.default_rng(digest).random(vocab_size, dtype=np.float32)
    logits[digest % 1_000_003 % vocab_size] += 1.0
    return logits


def greedy_oracle(prompt: Sequence[int], max_tokens: int, *, eos: Sequence[int] = (EOS,)) -> list[int]:
    """What a request gives that is alone in the world."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(int(np.argmax(logits_after(tokens))))
        if tokens[-1] in eos:
            break
    return tokens[len(prompt) :]


class LetterTokenizer:
    """Token i is one character, so that texts are easy to write: token 0..25 a..z, then others; EOS is special."""

    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 "
    vocab_size = VOCAB_SIZE
    longest_token_chars = 1
    eos_token_ids = frozenset([EOS])

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [self.letters.index(letter) for letter in text]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        texts = (
            "" if skip_special_tokens and i == EOS else "<eos>" if i == EOS else self.letters[i] for i in token_ids
        )
        return "".join(texts)

    def special_token_id(self, text: str) -> int | None:
        return EOS if text == "<eos>" else None

    def is_special(self, token_id: int) -> bool:
        return token_id == EOS


class Simulation:
    """Scheduler, pool and model without threads: deterministic, and all books are checked after every step."""

    def __init__(
        self, runner: HashRunner | None = None, *, hash_block: HashBlock = sha256_block, **changes: Any
    ) -> None:
        self.runner = runner or HashRunner()
        options = {"max_num_seqs": 4, "max_num_batched_tokens": 16, **changes}
        self.pool = BlockPool(self.runner.num_blocks)
        self.scheduler = Scheduler(self.pool, block_size=self.runner.block_size, hash_block=hash_block, **options)
        self.plans: list[StepPlan] = []
        self.groups: list[RequestGroup] = []
        self.outputs: dict[tuple[int, int], list[int]] = {}  # by (ticket, index of the sequence)
        self.finish_reasons: dict[tuple[int, int], str] = {}
        self.now_s = 0.0

    def add(
        self,
        prompt: Sequence[int],
        *,
        score: float = 0.0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        shares_prefix: bool = True,
        seed: int = 0,
        **params: Any,
    ) -> RequestGroup:
        wishes = SamplingParams.from_dict({"temperature": 0, **params})
        limits = SequenceLimits(self.runner.max_model_len, self.runner.num_blocks, self.runner.block_size)
        tokens = list(prompt)
        group = RequestGroup(
            ticket=len(self.groups),
            params=wishes,
            prompt_token_ids=tokens,
            score=score,
            arrival_s=self.now_s,
            max_total_tokens=limits.max_total_tokens(len(tokens), wishes.max_tokens),
            stop_token_ids=frozenset(wishes.stop_token_ids),
            eos_token_ids=frozenset() if wishes.ignore_eos else frozenset([EOS]),
            seed=seed,
            namespace=Namespace(cache_salt, adapter) if shares_prefix else None,
        )
        self.groups.append(group)
        self.scheduler.add(group)
        return group

    def step(self) -> StepPlan:
        """One step of the engine."""
        self.now_s += 1.0
        plan = self.scheduler.schedule(self.now_s)
        self.plans.append(plan)
        self.take_in(self.scheduler.commit(plan, run_step(plan, self.runner).sampled))
        return plan

    def take_in(self, result: StepResult) -> None:
        """What a committed step has brought."""
        self.runner.copy_blocks(result.block_copies)
        for event in result.events:
            key = (event.sequence.group.ticket, event.sequence.index)
            self.outputs.setdefault(key, []).append(event.token.token_id)
            if event.finish_reason is not None:
                self.finish_reasons[key] = event.finish_reason
        self.check_books()

    def run(self, max_steps: int = 2000) -> int:
        """Until nothing is left to do; returns the number of steps."""
        for steps in range(max_steps):
            if not self.scheduler.has_work:
                return steps
            self.step()
        raise AssertionError(f"not done after {max_steps} steps")

    def output(self, group: RequestGroup, index: int = 0) -> list[int]:
        return self.outputs.get((group.ticket, index), [])

    def check_books(self) -> None:
        check_books(self.pool, self.scheduler)


def check_books(pool: BlockPool, scheduler: Scheduler, in_flight: Iterable[StepPlan] = ()) -> None:
    """Every block in one state, and held by exactly those sequences that run with it, or until a step has landed."""
    pool.check_invariants()
    held = Counter(block for sequence in scheduler.running() for block in sequence.blocks)
    held.update(block for plan in in_flight for blocks in plan.released for block in blocks)
    if held != pool.holders():
        raise AssertionError(f"running sequences hold {dict(held)}, the pool says {pool.holders()}")


@dataclass
class Recorder:
    """A sink that keeps everything, and knows whether the rules of a response were kept."""

    on_send: Callable[[RequestOutput], None] = lambda output: None
    outputs: list[RequestOutput] = field(default_factory=list)
    cancelled: bool = False

    def __post_init__(self) -> None:
        self._finished = threading.Event()

    def send(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        self.on_send(output)
        if output.finished:
            self._finished.set()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def wait(self, timeout_s: float = 20.0) -> "Recorder":
        if not self._finished.wait(timeout_s):
            raise AssertionError("no final output in time")
        return self

    @property
    def is_finished(self) -> bool:
        return self._finished.is_set()

    @property
    def num_finals(self) -> int:
        return sum(output.finished for output in self.outputs)

    @property
    def error(self) -> RequestError | None:
        return self.outputs[-1].error if self.outputs else None

    def token_ids(self, index: int = 0) -> list[int]:
        return [token for delta in self._deltas(index) for token in delta.token_ids]

    def text(self, index: int = 0) -> str:
        return "".join(delta.text for delta in self._deltas(index))

    def finish_reason(self, index: int = 0) -> str | None:
        reasons = [delta.finish_reason for delta in self._deltas(index) if delta.finish_reason is not None]
        if len(reasons) > 1:
            raise AssertionError(f"sequence {index} finished {len(reasons)} times")
        return reasons[0] if reasons else None

    def _deltas(self, index: int) -> Iterator[Any]:
        return (delta for output in self.outputs for delta in output.sequences if delta.index == index)


def make_config(**changes: Any) -> EngineConfig:
    """`inflight` is a dict; all else as in model.json."""
    content = {"model": ".", "max_num_seqs": 8, "max_num_batched_tokens": 16, "block_size": 4, **changes}
    return EngineConfig.from_dict(content, Path("/nowhere"))


@contextmanager
def running_engine(runner: Any = None, *, tokenizer: Any = None, **changes: Any) -> Iterator[Engine]:
    """An engine with all its threads. At the end every block must be back and every thread gone."""
    options = {name: changes.pop(name) for name in ("make_lock", "hash_block", "on_dead") if name in changes}
    runner = runner or HashRunner()
    engine = Engine(
        make_config(block_size=runner.block_size, **changes), runner, tokenizer or LetterTokenizer(), **options
    )
    engine.start()
    try:
        yield engine
    finally:
        left = engine.shutdown(0.0)
    if left:
        raise AssertionError(f"threads left: {left}")


def submit(
    engine: Engine, prompt: str | Sequence[int], *, sink: Recorder | None = None, request_id: str = "", **options: Any
) -> Recorder:
    """Sampling parameters and the request's own fields, mixed; greedy unless told otherwise."""
    names = ("stream", "priority", "timeout_s", "cache_salt", "adapter", "add_special_tokens")
    fields = {name: options.pop(name) for name in names if name in options}
    sink = sink or Recorder()
    params = SamplingParams.from_dict({"temperature": 0, **options})
    engine.submit(Request(request_id or f"r{id(sink)}", prompt, sink, params, **fields))
    return sink
