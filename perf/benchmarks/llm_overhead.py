"""What the LLM engine costs outside the model: its inbox under many clients, an idle model, a step, its books at size.

    python perf/benchmarks/llm_overhead.py [--quick] [--json FILE]

    inbox      `Engine.submit` from 1 to 256 client threads at once: requests/s taken, and how long a call takes
    idle       CPU of a loaded engine without requests, in percent of one core
    step       schedule + batch + sample + commit + emit with a model that computes nothing (512 logits, greedy), at 64
               and 256 running sequences; once the engine thread alone, once with the responder making texts beside it
    books      scheduler and block pool alone: time per operation at growing sizes; linear means it stays level

Wall times suffer from whatever else the machine does; `cpu_ms` and the times of the books are the thread's own CPU.
Of a step: median, smallest, largest. No model, no server, no network.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from pilot_llm.batch import Batch
from pilot_llm.block_keys import BlockKeys, Namespace
from pilot_llm.block_pool import BlockPool
from pilot_llm.config import EngineConfig
from pilot_llm.engine import Engine
from pilot_llm.mailbox import Mailbox
from pilot_llm.metrics import EngineMetrics
from pilot_llm.request import Request, RequestOutput
from pilot_llm.responder import Responder
from pilot_llm.response_stream import ResponseStream
from pilot_llm.sampling import SamplingParams
from pilot_llm.scheduler import Scheduler
from pilot_llm.sequence import RequestGroup
from pilot_llm.step_loop import Admit, Command, StepLoop
from pilot_llm.waiting_room import WaitingRoom

VOCAB_SIZE = 512
BLOCK_SIZE = 16


class NullRunner:
    """Computes nothing: every row's favourite is token 7."""

    block_size = BLOCK_SIZE
    vocab_size = VOCAB_SIZE
    max_model_len = 1024
    is_asynchronous = False

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._logits = torch.zeros(4096, VOCAB_SIZE)
        self._logits[:, 7] = 1.0

    def forward(self, batch: Batch) -> torch.Tensor:
        return self._logits[: len(batch.sampled_rows)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Nothing to copy."""


class WordTokenizer:
    """Every token is a word."""

    vocab_size = VOCAB_SIZE
    longest_token_chars = 5
    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [1] * (1 + len(text) // 5)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return " word" * len(token_ids)

    def special_token_id(self, text: str) -> int | None:
        return None

    def is_special(self, token_id: int) -> bool:
        return False


class Sink:
    """Counts what it is sent, and does nothing else with it."""

    def __init__(self) -> None:
        self.num_messages = 0
        self.finished = threading.Event()

    def send(self, output: RequestOutput) -> None:
        self.num_messages += 1
        if output.finished:
            self.finished.set()

    def is_cancelled(self) -> bool:
        return False


def make_config(**changes: Any) -> EngineConfig:
    return EngineConfig.from_dict({"model": ".", "block_size": BLOCK_SIZE, **changes}, Path("/nowhere"))


def params(max_tokens: int) -> SamplingParams:
    return SamplingParams.from_dict({"temperature": 0, "max_tokens": max_tokens, "ignore_eos": True})


def spread(values: Iterable[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1]}


# ---- inbox ----


def measure_inbox(num_clients: int, num_requests: int) -> dict[str, Any]:
    """All clients submit at once, each its share; every request asks for one token."""
    config = make_config(max_num_seqs=64, inflight={"max_queue_size": num_requests + 1})
    engine = Engine(config, NullRunner(8192), WordTokenizer())
    engine.start()
    share = num_requests // num_clients
    sinks = [[Sink() for _ in range(share)] for _ in range(num_clients)]
    call_s: list[list[float]] = [[] for _ in range(num_clients)]
    start = threading.Barrier(num_clients + 1)

    def client(index: int) -> None:
        wishes = params(1)
        start.wait()
        for number, sink in enumerate(sinks[index]):
            before_s = time.perf_counter()
            engine.submit(Request(f"{index}/{number}", [1, 2, 3, 4, 5], sink, wishes))
            call_s[index].append(time.perf_counter() - before_s)

    threads = [threading.Thread(target=client, args=(index,)) for index in range(num_clients)]
    for thread in threads:
        thread.start()
    start.wait()
    began_s = time.perf_counter()
    for thread in threads:
        thread.join()
    submitted_s = time.perf_counter() - began_s
    for sink in (sink for row in sinks for sink in row):
        sink.finished.wait()
    answered_s = time.perf_counter() - began_s
    engine.shutdown(0)
    calls_us = sorted(seconds * 1e6 for row in call_s for seconds in row)
    total = share * num_clients
    return {
        "what": "inbox",
        "client_threads": num_clients,
        "requests": total,
        "submitted_per_s": total / submitted_s,
        "answered_per_s": total / answered_s,
        "submit_p50_us": calls_us[len(calls_us) // 2],
        "submit_p99_us": calls_us[int(len(calls_us) * 0.99)],
    }


# ---- idle ----


def measure_idle(seconds: float) -> dict[str, Any]:
    engine = Engine(make_config(), NullRunner(100_000), WordTokenizer())
    engine.start()
    sink = Sink()
    engine.submit(Request("warm-up", [1, 2, 3], sink, params(4)))
    sink.finished.wait()
    time.sleep(0.5)
    cpu_s, wall_s = time.process_time(), time.monotonic()
    time.sleep(seconds)
    percent = (time.process_time() - cpu_s) / (time.monotonic() - wall_s) * 100
    engine.shutdown(0)
    return {"what": "idle", "seconds": seconds, "percent_of_a_core": percent}


# ---- step ----


def make_group(ticket: int, prompt: list[int], max_tokens: int) -> RequestGroup:
    return RequestGroup(
        ticket=ticket,
        params=params(max_tokens),
        prompt_token_ids=prompt,
        score=0.0,
        arrival_s=0.0,
        max_total_tokens=len(prompt) + max_tokens,
        stop_token_ids=frozenset(),
        eos_token_ids=frozenset(),
        seed=0,
        namespace=Namespace(),
    )


def measure_step_alone(num_running: int, num_steps: int) -> dict[str, Any]:
    """The engine thread's own work, up to the streams' news; who would answer the clients is not started."""
    config = make_config(max_num_seqs=num_running, max_num_batched_tokens=num_running * 64)
    responder = Responder(
        num_workers=1,
        stream_interval=1,
        stream_interval_s=0.0,
        on_closed=lambda stream: None,
        on_defect=lambda reason: None,
        clock=time.monotonic,
    )
    runner = NullRunner(num_running * 64)
    loop = StepLoop(
        config,
        runner,
        Mailbox[Command]("commands"),
        post=responder.post,
        waiting_room=WaitingRoom(1, num_running),
        metrics=EngineMetrics(),
        clock=time.monotonic,
        hash_block=lambda parent, tokens: parent[:8] + tokens,
    )
    tokenizer = WordTokenizer()
    streams = []
    for ticket in range(num_running):
        request = Request(str(ticket), [ticket % VOCAB_SIZE] * 40, Sink(), params(900), stream=True)
        streams.append(ResponseStream(ticket, request, tokenizer, 0.0))
        responder.open(streams[-1])
        loop._obey([Admit(streams[-1], make_group(ticket, [ticket % VOCAB_SIZE] * 40, 900))])

    def take_news() -> None:
        responder._ready.clear()
        for stream in streams:
            stream.news.clear()
            stream.is_queued = False

    for _ in range(20):
        loop._step()
    step_ms, cpu_ms = [], []
    for _ in range(num_steps):
        take_news()
        before_s, cpu_before_s = time.perf_counter(), time.thread_time()
        loop._step()
        cpu_ms.append((time.thread_time() - cpu_before_s) * 1e3)
        step_ms.append((time.perf_counter() - before_s) * 1e3)
    return {
        "what": "step, engine thread alone",
        "running": num_running,
        "steps": num_steps,
        "step_ms": spread(step_ms),
        "cpu_ms": spread(cpu_ms),
    }


def measure_step_with_responder(num_running: int, tokens: int) -> dict[str, Any]:
    """All threads: streams with one message a token, to sinks that do nothing."""
    config = make_config(max_num_seqs=num_running, max_num_batched_tokens=num_running * 64)
    engine = Engine(config, NullRunner(num_running * 64), WordTokenizer())
    sinks = [Sink() for _ in range(num_running)]
    engine.start()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    for index, sink in enumerate(sinks):
        engine.submit(Request(str(index), [index % VOCAB_SIZE] * 40, sink, params(tokens), stream=True))
    for sink in sinks:
        sink.finished.wait()
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    engine.shutdown(0)
    num_tokens = num_running * tokens
    return {
        "what": "step, with responder",
        "running": num_running,
        "step_ms": {"median": wall_s / tokens * 1e3},
        "cpu_us_per_token": cpu_s / num_tokens * 1e6,
        "tokens_per_message": num_tokens / sum(sink.num_messages for sink in sinks),
    }


# ---- books ----


def timed_us(operation: Callable[[], None], times: int) -> float:
    before_s = time.thread_time()
    for _ in range(times):
        operation()
    return (time.thread_time() - before_s) / times * 1e6


def measure_pool(num_blocks: int) -> dict[str, Any]:
    """A full pool: every allocation evicts, every prefix of 64 blocks is looked up, found and published again."""
    pool = BlockPool(num_blocks)
    next_token = 0

    def one_request() -> None:
        nonlocal next_token
        next_token += 1
        keys = BlockKeys([next_token % (num_blocks // 32)] * BLOCK_SIZE * 64, BLOCK_SIZE, Namespace())
        found = pool.find_prefix(keys, 63)
        blocks = pool.allocate(64 - len(found), found)
        for index in range(len(found), 64):
            pool.publish(keys, index, blocks[index])
        pool.release(blocks)

    for _ in range(num_blocks // 32):
        one_request()
    return {"what": "pool", "blocks": num_blocks, "us_per_block": timed_us(one_request, 400) / 64}


def measure_queue(num_waiting: int) -> dict[str, Any]:
    """Arrivals, a step in front of a long queue, cancellations from its middle."""
    scheduler = Scheduler(BlockPool(100_000), block_size=BLOCK_SIZE, max_num_seqs=64, max_num_batched_tokens=4096)
    groups = [make_group(ticket, [ticket % VOCAB_SIZE] * 40, 100) for ticket in range(num_waiting + 64)]
    before_s = time.thread_time()
    for group in groups:
        scheduler.add(group)
    add_us = (time.thread_time() - before_s) / len(groups) * 1e6
    scheduler.schedule(0.0)
    step_us = timed_us(lambda: [scheduler.schedule(0.0)], 20)
    before_s = time.thread_time()
    for group in groups[64::2]:
        scheduler.abort(group.ticket)
    abort_us = (time.thread_time() - before_s) / (num_waiting / 2) * 1e6
    return {
        "what": "queue",
        "waiting": num_waiting,
        "add_us": add_us,
        "schedule_us": step_us,
        "cancel_us": abort_us,
    }


# ---- report ----


def run(quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print("  ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)
        gc.collect()

    repeats = 1 if quick else 3
    for num_clients in (1, 16, 256) if quick else (1, 4, 16, 64, 256):
        for _ in range(repeats):
            add(measure_inbox(num_clients, 2048 if quick else 8192))
    add(measure_idle(2.0 if quick else 10.0))
    for num_running in (64, 256):
        for _ in range(repeats):
            add(measure_step_alone(num_running, 100 if quick else 400))
        for _ in range(repeats):
            add(measure_step_with_responder(num_running, 60 if quick else 200))
    for num_blocks in (1_000, 10_000, 100_000):
        add(measure_pool(num_blocks))
    for num_waiting in (100, 1_000, 10_000):
        add(measure_queue(num_waiting))
    return rows


def shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {shown(number)}" for name, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under half a minute")
    parser.add_argument("--json", type=Path, help="write conditions and rows to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # as model.py does: what was imported is no garbage, and looking through it takes 150 ms
    conditions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "switch_interval_s": sys.getswitchinterval(),
    }
    print("  ".join(f"{name} {value}" for name, value in conditions.items()))
    rows = run(arguments.quick)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"conditions": conditions, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
