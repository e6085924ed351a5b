"""Two answers that need no generator, to be shown beside ours: a counterfactual that does not beat them is no news.

`constant`: everyone with the same prediction is told the same training row. `nearest`: the nearest training
row with the desired prediction. Both look at training rows only, and at none of the declared rules.
"""

import numpy as np

from ray_cfnet.model.metrics import Manifold
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask
from ray_cfnet.tables.schema import FloatArray, TableSchema


class TrivialAnswers:
    """Answers out of reference rows, given the class predicted for each and the class it should be instead."""

    def __init__(self, reference: Encoded, predicted: CodeArray, desired: CodeArray, schema: TableSchema) -> None:
        self.reference = reference
        self.members = {int(label): np.flatnonzero(predicted == label) for label in np.unique(predicted)}
        self.manifolds = {label: Manifold(reference.take(members), schema) for label, members in self.members.items()}
        self.constants: dict[int, int] = {}
        for label, asking in self.members.items():
            candidates = self.members.get(int(desired[asking[0]]))
            if candidates is not None:
                cost = mean_distances(reference.take(candidates), reference.take(asking), schema)
                self.constants[label] = int(candidates[cost.argmin()])

    def constant(self, predicted: CodeArray) -> tuple[Encoded, Mask]:
        """(answers, which rows have one) for rows of these predicted classes."""
        chosen = np.full(len(predicted), -1)
        for label, row in self.constants.items():
            chosen[predicted == label] = row
        return self._answers(chosen)

    def nearest(self, rows: Encoded, desired: CodeArray) -> tuple[Encoded, Mask]:
        """(answers, which rows have one) for rows that should get these classes."""
        chosen = np.full(len(rows), -1)
        for label, manifold in self.manifolds.items():
            asking = desired == label
            if asking.any():
                chosen[asking] = self.members[label][manifold.nearest(rows.take(asking))[1]]
        return self._answers(chosen)

    def _answers(self, chosen: CodeArray) -> tuple[Encoded, Mask]:
        return self.reference.take(chosen), chosen >= 0


def mean_distances(candidates: Encoded, rows: Encoded, schema: TableSchema) -> FloatArray:
    """(N,) each candidate's mean L1 to all rows, feature by feature: no N x M matrix."""
    total = np.zeros(len(candidates))
    for column, feature in enumerate(schema.continuous):
        total += _mean_gaps(candidates.values[:, column], rows.values[:, column]) / feature.span
    for column, category in enumerate(schema.categorical):
        shares = np.bincount(rows.codes[:, column], minlength=len(category.categories)) / len(rows)
        total += 2.0 * (1.0 - shares[candidates.codes[:, column]])
    return total


def _mean_gaps(numbers: FloatArray, others: FloatArray) -> FloatArray:
    """Mean |number - other| over all others, from their sorted running sums."""
    middle = np.median(others)  # near 0 the running sums lose no digits
    numbers, ordered = numbers - middle, np.sort(others - middle)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    below = np.searchsorted(ordered, numbers)
    above = len(ordered) - below
    return (numbers * below - sums[below] + (sums[-1] - sums[below]) - numbers * above) / len(ordered)
