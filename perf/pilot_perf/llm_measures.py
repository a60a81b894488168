"""What the answer of a language model feels like: time to the first token, time between tokens, tokens per second.

    sent --------- first chunk -- chunk -- chunk -- last chunk         of the chunks that have text
     |--- TTFT ---|
                  |-------- ITL x (output tokens - 1) --------|

Definitions as in the rest of the project: output tokens only; a request counts where it ended within the windows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilot_perf.percentiles import summary
from pilot_perf.records import NS_PER_MS, LoadRecords, Record
from pilot_perf.slo import Slo
from pilot_perf.tokens import CountedBy, TokenCounter, text_of
from pilot_perf.widths import percentile_half_widths


@dataclass(frozen=True)
class Answer:
    """One successful request. `itl_ms` is None where there are not two tokens in two chunks, `ttft_ms` without text."""

    latency_ms: float
    ttft_ms: float | None
    itl_ms: float | None
    input_tokens: int | None
    output_tokens: int

    def keeps(self, slo: Slo) -> bool:
        """Whether this request keeps every budget on a time, whatever share of the requests the budget is for."""
        times = {"latency_ms": self.latency_ms, "ttft_ms": self.ttft_ms, "itl_ms": self.itl_ms}
        values = [(times[budget.measure], budget.limit) for budget in slo.budgets if budget.measure in times]
        # An answer of one token has no time between tokens to complain about.
        return all(value is None or value <= limit for value, limit in values)


@dataclass(frozen=True)
class LlmFigures:
    """As the fields of the same names in Figures."""

    ttft_ms: dict[str, float] | None
    itl_ms: dict[str, float] | None
    output_tokens_per_s: float
    output_tokens_per_s_per_user: float | None
    goodput_per_s: float
    mean_input_tokens: float | None
    mean_output_tokens: float
    tokens_counted_by: CountedBy
    half_widths: dict[str, float]


def answer_of(record: Record, tokens: TokenCounter, counted_by: CountedBy) -> Answer:
    spoken_ns = [
        time_ns for time_ns, response in zip(record.response_ns, record.responses, strict=False) if text_of(response)
    ]
    begun_ns = record.sent_ns if record.due_ns is None else record.due_ns
    output_tokens = tokens.output_tokens(record, counted_by)
    itl_ms = None
    if len(spoken_ns) > 1 and output_tokens > 1:
        itl_ms = (spoken_ns[-1] - spoken_ns[0]) / (output_tokens - 1) / NS_PER_MS
    return Answer(
        latency_ms=record.latency_ms,
        ttft_ms=(spoken_ns[0] - begun_ns) / NS_PER_MS if spoken_ns else None,
        itl_ms=itl_ms,
        input_tokens=tokens.input_tokens(record),
        output_tokens=output_tokens,
    )


def llm_figures(
    load: LoadRecords, tokens: TokenCounter, statistics: Mapping[str, Sequence[str]], slo: Slo
) -> LlmFigures:
    """The figures of the successful requests of `load`, of which there is at least one."""
    counted_by = tokens.counted_by(load.succeeded)
    answers = [answer_of(record, tokens, counted_by) for record in load.succeeded]
    ttfts_ms = [answer.ttft_ms for answer in answers if answer.ttft_ms is not None]
    itls_ms = [answer.itl_ms for answer in answers if answer.itl_ms is not None]
    inputs = [answer.input_tokens for answer in answers if answer.input_tokens is not None]
    outputs = [answer.output_tokens for answer in answers]
    itl_ms = summary(itls_ms, statistics.get("itl_ms", ()))
    return LlmFigures(
        ttft_ms=summary(ttfts_ms, statistics.get("ttft_ms", ())),
        itl_ms=itl_ms,
        output_tokens_per_s=sum(outputs) / load.window_s,
        output_tokens_per_s_per_user=1000.0 / itl_ms["avg"] if itl_ms and itl_ms["avg"] > 0 else None,
        goodput_per_s=sum(1 for answer in answers if answer.keeps(slo)) / load.window_s,
        mean_input_tokens=sum(inputs) / len(inputs) if inputs else None,
        mean_output_tokens=sum(outputs) / len(outputs),
        tokens_counted_by=counted_by,
        half_widths={
            **percentile_half_widths(ttfts_ms, statistics.get("ttft_ms", ()), " TTFT"),
            **percentile_half_widths(itls_ms, statistics.get("itl_ms", ()), " ITL"),
        },
    )
