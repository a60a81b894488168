"""The rates of a language model beside its requests/s, over the rounds of a side: for the command and for the page."""

from statistics import median

from pilot_perf.side import Side

# Field of Figures, how it is written, what it is.
TOKEN_RATES = (
    ("output_tokens_per_s", "{:.0f}", "output tokens/s"),
    ("output_tokens_per_s_per_user", "{:.0f}", "tokens/s for one user"),
    ("goodput_per_s", "{:.1f}", "goodput/s"),
)


def median_of(side: Side, field: str) -> float | None:
    """None where no round knows it."""
    values = [value for m in side.all_rounds if m.figures and (value := getattr(m.figures, field)) is not None]
    return median(values) if values else None
