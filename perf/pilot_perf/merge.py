"""Several runs of the same load as one measurement, as if their windows had followed each other.

Counts add up, and so do the windows. A percentile of all requests together is not known where only those of each run
are: the mean of them stands for it, weighted by their requests, as for every other number that is no count.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from pilot_perf.measures import Figures, Stages
from pilot_perf.usage import Usage

_MEANS = (
    *("error_rate", "output_tokens_per_s", "output_tokens_per_s_per_user", "goodput_per_s", "mean_input_tokens"),
    *("mean_output_tokens", "late_sends", "refused_rate"),
)
_TIMES = ("latency_ms", "ttft_ms", "itl_ms", "refused_ms")
_MOST = ("server_memory_bytes", "gpu_memory_bytes", "machine_cpus")


def merged(runs: Sequence[Figures]) -> Figures:
    """`runs` are of the same model under the same load, at least one."""
    if len(runs) == 1:
        return runs[0]
    weighted, window_s = _Weighted([run.num_requests for run in runs]), sum(run.window_s for run in runs)
    return replace(
        runs[0],
        throughput_per_s=sum(run.throughput_per_s * run.window_s for run in runs) / window_s,
        num_requests=sum(run.num_requests for run in runs),
        window_s=window_s,
        window_rates_per_s=tuple(rate for run in runs for rate in run.window_rates_per_s),
        stages=weighted.stages([run.stages for run in runs]),
        members=weighted.members([run.members for run in runs]),
        batch_counts=_sums([run.batch_counts for run in runs]),
        usage=_usage([run.usage for run in runs if run.usage is not None]),
        half_widths=_half_widths(runs),
        **{name: weighted.table([getattr(run, name) for run in runs]) for name in _TIMES},  # type: ignore[arg-type]
        **{name: weighted.mean([getattr(run, name) for run in runs]) for name in _MEANS},  # type: ignore[arg-type]
    )


@dataclass(frozen=True)
class _Weighted:
    """Means of one value per run; a run that does not know it is left out."""

    weights: Sequence[int]

    def mean(self, values: Sequence[float | None]) -> float | None:
        known = [(value, weight) for value, weight in zip(values, self.weights, strict=True) if value is not None]
        return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None

    def table(self, tables: Sequence[Mapping[str, float] | None]) -> dict[str, float] | None:
        names = dict.fromkeys(name for of in tables for name in of or ())
        means = {name: self.mean([(of or {}).get(name) for of in tables]) for name in names}
        return {name: value for name, value in means.items() if value is not None} or None

    def stages(self, parts: Sequence[Stages | None]) -> Stages | None:
        if all(of is None for of in parts):
            return None
        return Stages(*(self.mean([getattr(of, field.name, None) for of in parts]) for field in fields(Stages)))

    def members(self, members: Sequence[Mapping[str, Stages] | None]) -> dict[str, Stages] | None:
        names = dict.fromkeys(name for of in members for name in of or ())
        means = {name: self.stages([(of or {}).get(name) for of in members]) for name in names}
        return {name: stages for name, stages in means.items() if stages is not None} or None


def _sums(counts: Sequence[Mapping[int, int] | None]) -> dict[int, int] | None:
    sizes = sorted({size for of in counts for size in of or ()})
    return {size: sum((of or {}).get(size, 0) for of in counts) for size in sizes} or None


def _usage(usages: Sequence[Usage]) -> Usage | None:
    """The mean of what was used, and the most of what was held."""
    found = {}
    for name in (field.name for field in fields(Usage)):
        if values := [value for usage in usages if (value := getattr(usage, name)) is not None]:
            found[name] = max(values) if name in _MOST else sum(values) / len(values)
    return Usage(**found) if usages else None


def _half_widths(runs: Sequence[Figures]) -> dict[str, float] | None:
    """Of a mean of independent runs; only where each of them knows its own."""
    tables, total = [run.half_widths or {} for run in runs], sum(run.num_requests for run in runs)
    shares = [run.num_requests / total for run in runs]
    known = [name for name in tables[0] if all(name in of for of in tables)]
    return {
        name: math.hypot(*(of[name] * share for of, share in zip(tables, shares, strict=True))) for name in known
    } or None
