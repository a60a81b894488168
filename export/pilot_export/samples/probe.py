"""Two measures of an embedding that mean something to a person: a linear probe, and nearest neighbours."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pilot_export.measures import Share, share
from pilot_export.spec import Batch, Task

RIDGE = 3.0


def probe_task(
    name: str,
    output: str,
    labels: NDArray[np.bool_],
    fit_batches: Sequence[Batch],
    fit_labels: NDArray[np.bool_],
) -> Task:
    """Tell `labels` from the embedding by a linear classifier that was fitted on the original's embeddings.

    The classifier stays the same for every variant, as it would in a product whose encoder is exchanged.
    """

    def fit(original: Sequence[Batch]) -> Callable[[Sequence[Batch]], NDArray[np.bool_]]:
        weights = _ridge(stacked(original, output), np.where(fit_labels, 1.0, -1.0))

        def is_right(outputs: Sequence[Batch]) -> NDArray[np.bool_]:
            scores = _with_bias(stacked(outputs, output)) @ weights
            return np.asarray((scores > 0) == labels)

        return is_right

    return Task(name, fit, fit_batches)


def neighbour_agreement(output: str, num_queries: int) -> Callable[[Sequence[Batch], Sequence[Batch]], Share]:
    """Share of the first `num_queries` rows whose nearest other row, by cosine, is the same one in both."""

    def measure(original: Sequence[Batch], variant: Sequence[Batch]) -> Share:
        nearest = [_nearest(stacked(batches, output), num_queries) for batches in (original, variant)]
        return share(nearest[0] == nearest[1])

    return measure


def stacked(batches: Sequence[Batch], output: str) -> NDArray[np.float64]:
    return np.concatenate([batch[output] for batch in batches]).astype(np.float64)


def _nearest(embeddings: NDArray[np.float64], num_queries: int) -> NDArray[np.intp]:
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    rows = embeddings / np.where(lengths == 0, 1.0, lengths)
    similarity = rows[:num_queries] @ rows.T
    np.fill_diagonal(similarity, -np.inf)
    return np.asarray(similarity.argmax(axis=1))


def _ridge(embeddings: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    rows = _with_bias(embeddings)
    return np.asarray(np.linalg.solve(rows.T @ rows + RIDGE * np.eye(rows.shape[1]), rows.T @ targets))


def _with_bias(embeddings: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.column_stack([embeddings, np.ones(len(embeddings))])
