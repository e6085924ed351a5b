"""Several ways for a row: each changes other features than those before it, and no more than it needs."""

from collections.abc import Iterator

import numpy as np

from ray_cfnet.explain.explanations import Option
from ray_cfnet.explain.refine import Refiner
from ray_cfnet.explain.repair import Repairer
from ray_cfnet.model.metrics import distances
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask
from ray_cfnet.tables.schema import TableSchema


class OptionFinder:
    """Finds further counterfactuals by forbidding what earlier ones changed."""

    def __init__(self, schema: TableSchema, repairer: Repairer, refiner: Refiner | None) -> None:
        self.schema = schema
        self.repairer = repairer
        self.refiner = refiner

    def others(
        self, rows: Encoded, first: Encoded, candidates: Encoded, desired: CodeArray, count: int
    ) -> Iterator[tuple[Encoded, Mask]]:
        """`count` more answers for each row, and which of them reach the desired class with its margin. Not proven.

        `candidates` are feasible, valid, and not refined.
        """
        everything = largest = np.zeros((len(rows), len(self.schema.features)), dtype=bool)
        last = first
        for _ in range(count):
            changed = changes(rows, last)
            everything = everything | changed
            largest = largest | self._largest_change(rows, last, changed)
            found, reached = self._without(everything, rows, candidates, desired)
            # Where nothing else leads there, at least what weighed most stays as it is.
            again = np.flatnonzero(~reached)
            if len(again):
                part = (rows.take(again), candidates.take(again), desired[again])
                other, reached[again] = self._without(largest[again], *part)
                found.values[again], found.codes[again] = other.values, other.codes
            last = found
            yield found, reached

    def _without(self, frozen: Mask, rows: Encoded, candidates: Encoded, desired: CodeArray) -> tuple[Encoded, Mask]:
        """Answers that leave the frozen features alone, and which of them reach the desired class."""
        start = self.repairer.feasible(rows, candidates, frozen)
        found, reached = self.repairer.repaired(rows, start, desired, frozen)
        places = np.flatnonzero(reached)
        if self.refiner is not None and len(places):
            refined = self.refiner.refined(rows.take(places), found.take(places), desired[places])
            found.values[places], found.codes[places] = refined.values, refined.codes
        return found, reached

    def _largest_change(self, rows: Encoded, answers: Encoded, changed: Mask) -> Mask:
        spans = np.array([feature.span for feature in self.schema.continuous])
        sizes = np.concatenate([np.abs(answers.values - rows.values) / spans, rows.codes != answers.codes], axis=1)
        largest = np.zeros_like(changed)
        largest[np.arange(len(rows)), sizes.argmax(axis=1)] = True
        return largest & changed


def changes(rows: Encoded, answers: Encoded) -> Mask:
    """(N, F) which features differ: numbers first, then categories."""
    return np.concatenate([rows.values != answers.values, rows.codes != answers.codes], axis=1)


def is_new(rows: Encoded, answers: Encoded, earlier: list[Option]) -> Mask:
    """Answers that change something, and not the same features as an earlier one."""
    changed = changes(rows, answers)
    new = np.any(changed, axis=1)
    for option in earlier:
        new = new & (~option.exists | np.any(changed != changes(rows, option.fcf), axis=1))
    return new


def nearest_first(rows: Encoded, options: list[Option], schema: TableSchema) -> list[Option]:
    """The same options of each row, those that exist first, by distance."""
    far = [np.where(option.exists, distances(rows, option.fcf, schema), np.inf) for option in options]
    order = np.argsort(np.stack(far), axis=0, kind="stable")
    values, codes = (np.stack([getattr(option.fcf, name) for option in options]) for name in ("values", "codes"))
    exists = np.stack([option.exists for option in options])
    probability = np.stack([option.probability for option in options])
    each = np.arange(len(rows))
    return [
        Option(Encoded(values[place, each], codes[place, each]), exists[place, each], probability[place, each])
        for place in order
    ]
