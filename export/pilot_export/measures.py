"""How far a variant is from the original: numbers from pairs of outputs, with numpy alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pilot_export.spec import Batch

Z_95 = 1.959964
CONFIDENT = 0.5


@dataclass(frozen=True)
class TaskResult:
    """Shares of right rows, and the variant's loss with its 95% interval; all between 0 and 1 (0.01 = 1 point)."""

    name: str
    original: float
    variant: float
    drop: float
    drop_low: float
    drop_high: float


@dataclass(frozen=True)
class Share:
    """`value` of `num_rows` rows are so, with the 95% interval of the share; all between 0 and 1."""

    value: float
    low: float
    high: float
    num_rows: int


@dataclass(frozen=True)
class Quality:
    """Over all rows of the evaluation data. Cosines are of the first output, flattened by row.

    `max_abs_error` is over the edge cases too. `max_rel_error`: the largest distance between two rows of any output,
    over the length of the original's row. `top1_agreement`: share of rows with the same largest value in the first
    output, None where it has one value a row. `edge_cosines`: the mean cosine of each edge case.
    """

    num_rows: int
    max_abs_error: float
    largest_value: float
    mean_cosine: float
    p1_cosine: float
    min_cosine: float
    confident_agreement: float | None
    task: TaskResult | None
    extra: dict[str, float | Share]
    max_rel_error: float = 0.0
    top1_agreement: float | None = None
    edge_cosines: dict[str, float] = field(default_factory=dict)


def max_abs_error(reference: Sequence[Batch], variant: Sequence[Batch]) -> float:
    """The largest difference of any value of any output."""
    return max(
        float(np.abs(ref[name].astype(np.float64) - var[name].astype(np.float64)).max(initial=0.0))
        for ref, var in zip(reference, variant, strict=True)
        for name in ref
    )


def max_rel_error(reference: Sequence[Batch], variant: Sequence[Batch]) -> float:
    """The largest distance between two rows of any output, over the original's length; zero rows are left out."""
    largest = 0.0
    for ref, var in zip(reference, variant, strict=True):
        for name in ref:
            a, b = (batch[name].reshape(len(batch[name]), -1).astype(np.float64) for batch in (ref, var))
            lengths = np.linalg.norm(a, axis=1)
            distances = np.linalg.norm(a - b, axis=1)[lengths > 0] / lengths[lengths > 0]
            largest = max(largest, float(distances.max(initial=0.0)))
    return largest


def top1_agreement(reference: Sequence[Batch], variant: Sequence[Batch], output: str) -> float | None:
    """Share of rows (or places in rows) with the same largest value; None where there is one value only."""
    same = [
        (ref[output].argmax(axis=-1) == var[output].argmax(axis=-1)).ravel()
        for ref, var in zip(reference, variant, strict=True)
        if ref[output].ndim > 1 and ref[output].shape[-1] > 1
    ]
    return float(np.concatenate(same).mean()) if same else None


def row_cosines(reference: Sequence[Batch], variant: Sequence[Batch], output: str) -> NDArray[np.float64]:
    """One cosine per row; two zero rows agree (1), a zero row and another do not (0)."""
    cosines = []
    for ref, var in zip(reference, variant, strict=True):
        a, b = (batch[output].reshape(len(batch[output]), -1).astype(np.float64) for batch in (ref, var))
        lengths = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
        product = lengths[0] * lengths[1]
        both_zero = (lengths[0] == 0) & (lengths[1] == 0)
        cosines.append(np.where(both_zero, 1.0, (a * b).sum(axis=1) / np.where(product == 0, 1.0, product)))
    return np.concatenate(cosines)


def confident_agreement(reference: Sequence[Batch], variant: Sequence[Batch], output: str) -> float | None:
    """Share of rows with the same largest logit where the original is confident; None when it never is."""
    same = []
    for ref, var in zip(reference, variant, strict=True):
        logits = ref[output].astype(np.float64)
        shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
        confident = shifted.max(axis=-1) / shifted.sum(axis=-1) > CONFIDENT
        same.append((logits.argmax(axis=-1) == var[output].argmax(axis=-1))[confident])
    rows = np.concatenate(same)
    return float(rows.mean()) if rows.size else None


def paired_drop(original: NDArray[np.bool_], variant: NDArray[np.bool_]) -> tuple[float, float, float]:
    """The loss of right rows and its 95% interval, after Agresti and Min (2005) for paired proportions.

    Both judge the same rows, so only the rows on which they differ carry uncertainty: the interval is several times
    narrower than that of two unpaired shares. Half a row is added to each cell, so that "no difference in few rows"
    is not taken for certainty.
    """
    num_rows = len(original)
    lost, gained = int((original & ~variant).sum()), int((~original & variant).sum())
    b, c, n = lost + 0.5, gained + 0.5, num_rows + 2
    centre = (b - c) / n
    half = Z_95 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    return (lost - gained) / num_rows, centre - half, centre + half


def share(is_so: NDArray[np.bool_]) -> Share:
    """The share of rows that are so, with Wilson's interval (1927): all of a few rows are no certainty."""
    num_rows, hits = len(is_so), int(is_so.sum())
    centre = (hits + Z_95**2 / 2) / (num_rows + Z_95**2)
    half = Z_95 / (num_rows + Z_95**2) * math.sqrt(hits * (num_rows - hits) / num_rows + Z_95**2 / 4)
    # Rounding must not take the ends past what a share can be.
    return Share(hits / num_rows, max(0.0, centre - half), min(1.0, centre + half), num_rows)
