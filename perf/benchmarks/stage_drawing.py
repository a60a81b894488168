"""A drawn timeline: one line per request, one kind of character per stage."""

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 88
MARKS = "-#=+*"


@dataclass(frozen=True)
class Span:
    request: int
    stage: str
    start_s: float
    end_s: float


def draw(spans: Sequence[Span], stages: Sequence[str]) -> str:
    """The spans from the first start to the last end; where two of a request meet in a column, the later is drawn."""
    start_s = min(span.start_s for span in spans)
    scale = WIDTH / max(max(span.end_s for span in spans) - start_s, 1e-9)
    marks = dict(zip(stages, MARKS, strict=False))
    lines = [f"  {', '.join(f'{marks[stage]} {stage}' for stage in stages)}; {WIDTH / scale * 1e3:.0f} ms wide"]
    for request in sorted({span.request for span in spans}):
        line = [" "] * WIDTH
        for span in sorted((s for s in spans if s.request == request), key=lambda s: s.start_s):
            first = min(WIDTH - 1, int((span.start_s - start_s) * scale))
            last = min(WIDTH, max(first + 1, round((span.end_s - start_s) * scale)))
            line[first:last] = marks[span.stage] * (last - first)
        lines.append(f"{request:>4} |{''.join(line)}|")
    return "\n".join(lines)


def overlap_share(spans: Sequence[Span]) -> float:
    """Sum of all spans over the time from the first start to the last end: 1 means one thing at a time."""
    whole_s = max(span.end_s for span in spans) - min(span.start_s for span in spans)
    return sum(span.end_s - span.start_s for span in spans) / whole_s
