"""TTFT, ITL, tokens and goodput of made-up answers whose times are known."""

from collections.abc import Sequence
from typing import Any

import pytest

from pilot_perf.llm_measures import llm_figures
from pilot_perf.records import LoadRecords, Record
from pilot_perf.slo import parse_slo
from pilot_perf.tokens import TokenCounter

MS = 10**6
WORDS = TokenCounter(lambda text: len(text.split()))
SLO = parse_slo(["p95:ttft_ms:<=:100,p95:itl_ms:<=:20"])


def answer(sent_ms: int, chunks: Sequence[tuple[int, dict[str, Any]]], *, asks: bool = True, **more: Any) -> Record:
    """`chunks` are (ms after the send, tensors)."""
    times = tuple((sent_ms + at) * MS for at, _ in chunks)
    asked = {"return_num_output_tokens": True, "return_num_input_tokens": True} if asks else {}
    return Record(sent_ms * MS, times, {"text_input": "one two three", **asked}, tuple(c for _, c in chunks), **more)


def load_of(*records: Record) -> LoadRecords:
    return LoadRecords((0, 2000 * MS), records)


def text(value: str, tokens: int | None = None, prompt: int | None = None) -> dict[str, Any]:
    counts = {"num_output_tokens": tokens, "num_input_tokens": prompt}
    return {"text_output": value, **{name: count for name, count in counts.items() if count is not None}}


def test_the_first_chunk_with_text_ends_the_wait_and_the_last_one_the_answer() -> None:
    """An empty chunk comes before and after; four tokens in three chunks: 60 ms / 3."""
    chunks = [(40, text("", 0)), (90, text("a", 1)), (130, text("b c", 2)), (150, text("d", 1)), (170, text("", 0))]
    figures = llm_figures(load_of(answer(0, chunks)), WORDS, {}, SLO)
    assert figures.ttft_ms is not None
    assert figures.ttft_ms["p50"] == pytest.approx(90)
    assert figures.itl_ms is not None
    assert figures.itl_ms["p50"] == pytest.approx(20)
    assert figures.output_tokens_per_s_per_user == pytest.approx(50)
    assert (figures.output_tokens_per_s, figures.mean_output_tokens) == (2.0, 4.0)


def test_the_models_own_counts_go_before_the_tokenizer_and_that_before_chunks() -> None:
    own = answer(0, [(10, text("a b c", 1, 7)), (20, text("d", 1, 7))])
    bare = answer(0, [(10, text("a b c")), (20, text("d"))])
    with_own = llm_figures(load_of(own), WORDS, {}, SLO)
    with_tokenizer = llm_figures(load_of(bare), WORDS, {}, SLO)
    with_neither = llm_figures(load_of(bare), TokenCounter(), {}, SLO)
    assert (with_own.tokens_counted_by, with_own.mean_output_tokens, with_own.mean_input_tokens) == ("model", 2, 7)
    assert with_tokenizer.tokens_counted_by == "tokenizer"
    # The chunks are joined before they are counted: "a b c" + "d" is "a b cd".
    assert (with_tokenizer.mean_output_tokens, with_tokenizer.mean_input_tokens) == (3, 3)
    assert (with_neither.tokens_counted_by, with_neither.mean_output_tokens, with_neither.mean_input_tokens) == (
        *("chunks", 2),
        None,
    )


def test_a_count_that_was_not_asked_for_is_not_believed() -> None:
    """perf_analyzer 2.51 exports a number for every output that the model has, also where none came."""
    unasked = answer(0, [(10, text("a", 77, 99)), (20, text("b", 88, 99))], asks=False)
    figures = llm_figures(load_of(unasked), TokenCounter(), {}, SLO)
    assert (figures.tokens_counted_by, figures.mean_output_tokens, figures.mean_input_tokens) == ("chunks", 2, None)


def test_the_number_in_a_closing_response_without_tensors_is_no_count() -> None:
    """perf_analyzer 2.51 exports what the memory held."""
    closed = answer(0, [(10, text("a", 1)), (20, text("b", 1)), (21, text("", 186_587_585))])
    ended_in_half_a_character = answer(0, [(10, text("a", 1)), (20, text("", 1))])
    figures = llm_figures(load_of(closed, ended_in_half_a_character), WORDS, {}, SLO)
    assert (figures.tokens_counted_by, figures.mean_output_tokens) == ("model", 2.0)


def test_goodput_counts_the_answers_that_keep_every_budget() -> None:
    good = [(90, text("a", 1)), (110, text("b", 1))]
    late = [(101, text("a", 1)), (110, text("b", 1))]
    slow = [(90, text("a", 1)), (111, text("b", 1))]
    one_token = [(90, text("a", 1))]
    figures = llm_figures(load_of(*(answer(0, chunks) for chunks in (good, late, slow, one_token))), WORDS, {}, SLO)
    assert figures.goodput_per_s == 1.0
    assert figures.itl_ms is not None


def test_failed_requests_bring_no_tokens() -> None:
    chunks = [(90, text("a", 1)), (110, text("b", 1))]
    figures = llm_figures(load_of(answer(0, chunks), answer(0, [(5, {})], error="full")), WORDS, {}, SLO)
    assert figures.mean_output_tokens == 2.0
    assert figures.goodput_per_s == 0.5


def test_an_answer_without_any_text_has_no_first_token() -> None:
    figures = llm_figures(load_of(answer(0, [(90, text("", 0))])), WORDS, {}, SLO)
    assert figures.ttft_ms is figures.itl_ms is figures.output_tokens_per_s_per_user is None


def test_in_an_open_loop_the_wait_begins_when_the_request_was_due() -> None:
    record = answer(50, [(40, text("a", 1)), (60, text("b", 1))], due_ns=0)
    figures = llm_figures(load_of(record), WORDS, {"ttft_ms": ("p99.9",)}, SLO)
    assert figures.ttft_ms is not None
    assert figures.ttft_ms["p99.9"] == pytest.approx(90)
