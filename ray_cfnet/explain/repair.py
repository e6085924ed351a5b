"""A feasible counterfactual for the rows whose own does not reach the desired class, by search.

First the examples of the desired class that the bundle keeps, each projected to what the row's person can change; then,
where none of them is reached, uphill from the best of them: all numbers a step, or one category, whatever brings the
desired class further forward, also together with a feature that a rule wants to change with others. All rows are
searched at once, and only those that need it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ray_cfnet.model.inference import Inference, lead
from ray_cfnet.model.metrics import distances
from ray_cfnet.model.net import Rows
from ray_cfnet.model.reference import PROTOTYPES, Reference
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask, from_unit, to_unit
from ray_cfnet.tables.constraints import project
from ray_cfnet.tables.schema import FloatArray, TableSchema, permitted_changes

_NEAREST = 16
"""Examples that are tried first, before all."""
_TRIALS_AT_ONCE = 64 * PROTOTYPES
_CLIMBING_ROUNDS = 24
_FIRST_STEP = 0.2
"""Of a number's range; halved where it leads nowhere."""


@dataclass(frozen=True)
class Repairer:
    """Searches with what a bundle remembers of its training rows."""

    inference: Inference
    schema: TableSchema
    reference: Reference
    least_lead: float = 0.0

    def repaired(
        self, rows: Encoded, candidates: Encoded, desired: CodeArray, frozen: Mask | None = None
    ) -> tuple[Encoded, Mask]:
        """(feasible candidates, which of them reach the desired class), the best that was found from `candidates` on.

        `frozen` (N, F) marks features that must stay as they are, numbers first, then categories.
        """
        best = Encoded(candidates.values.copy(order="F"), candidates.codes.copy(order="F"))
        leads = self._leads(best, desired)
        for num_examples in (_NEAREST, PROTOTYPES):  # the nearest are mostly enough
            missing, at_once = np.flatnonzero(leads <= 0), _TRIALS_AT_ONCE // num_examples
            for start in range(0, len(missing), at_once):
                part = missing[start : start + at_once]
                still = None if frozen is None else frozen[part]
                found, found_leads = self._from_examples(rows.take(part), desired[part], still, num_examples)
                better = found_leads > leads[part]
                best.put(part[better], found.take(better))
                leads[part] = np.where(better, found_leads, leads[part])
        missing = np.flatnonzero(leads <= 0)
        if len(missing):
            still = None if frozen is None else frozen[missing]
            climbed, climbed_leads = self._climbed(rows.take(missing), best.take(missing), desired[missing], still)
            best.put(missing, climbed)
            leads[missing] = climbed_leads
        return best, leads > 0

    def _leads(self, candidates: Encoded, desired: CodeArray) -> FloatArray:
        first = self.inference.first_layer(self._tensors(candidates))
        return lead(self.inference.logits_from(first), self._tensor(desired)).cpu().numpy() - self.least_lead

    def _tensors(self, rows: Encoded) -> Rows:
        return Rows(self._tensor(to_unit(rows.values, self.schema)), self._tensor(rows.codes))

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.inference.net.encoder_in.weight.device)

    def feasible(self, rows: Encoded, candidates: Encoded, frozen: Mask | None) -> Encoded:
        """Candidates projected, with the frozen features as in the rows."""
        if frozen is not None:
            count = rows.values.shape[1]
            candidates = Encoded(
                np.where(frozen[:, :count], rows.values, candidates.values),
                np.where(frozen[:, count:], rows.codes, candidates.codes),
            )
        return project(rows, candidates, self.schema, frozen=frozen)

    def _from_examples(
        self, rows: Encoded, desired: CodeArray, frozen: Mask | None, num_examples: int
    ) -> tuple[Encoded, FloatArray]:
        """Of each row's nearest examples, projected, the nearest that reaches the desired class, or else the best."""
        best, best_leads = Encoded(rows.values.copy(order="F"), rows.codes.copy(order="F")), np.full(len(rows), -np.inf)
        for label in np.unique(desired):
            examples, asking = self.reference.of_class(int(label)), np.flatnonzero(desired == label)
            if not len(examples):
                continue
            chosen = self._nearest(rows.take(asking), examples, num_examples)
            each = np.repeat(asking, chosen.shape[1])
            own = rows.take(each)
            tried = self.feasible(own, examples.take(chosen.ravel()), None if frozen is None else frozen[each])
            leads = self._leads(tried, desired[each])
            far = distances(own, tried, self.schema)
            # Those that reach it come first, by distance; of the others the one that lacks least.
            cost = np.where(leads > 0, far - 1e9, -leads).reshape(chosen.shape)
            picked = cost.argmin(axis=1) + np.arange(len(asking)) * chosen.shape[1]
            best.put(asking, tried.take(picked))
            best_leads[asking] = leads[picked]
        return best, best_leads

    def _nearest(self, rows: Encoded, examples: Encoded, count: int) -> CodeArray:
        """(N, count) places of the examples that are nearest to each row, or of all where there are no more."""
        if len(examples) <= count:
            return np.tile(np.arange(len(examples)), (len(rows), 1))
        # Stable: among equals a partition chooses by what the processor offers, and answers must not hang on that.
        return np.argsort(self._distances(rows, examples), axis=1, kind="stable")[:, :count]

    def _distances(self, rows: Encoded, examples: Encoded) -> FloatArray:
        """(N, E) of every row to every example."""
        each, every = np.repeat(np.arange(len(rows)), len(examples)), np.tile(np.arange(len(examples)), len(rows))
        return distances(rows.take(each), examples.take(every), self.schema).reshape(len(rows), -1)

    def held_back(self, rows: Encoded, desired: CodeArray) -> FloatArray:
        """(N, F) how much of the desired class the rules cost in each feature, about; 0 where they ask for nothing.

        Seen at the nearest example of the class: what it has, less what the rules leave of it. At least a little
        where they leave less, so that what is in the way is named also where the network does not mind.
        """
        cost = np.zeros((len(rows), rows.values.shape[1] + rows.codes.shape[1]))
        at_once = _TRIALS_AT_ONCE // PROTOTYPES
        for start in range(0, len(rows), at_once):
            part = np.arange(start, min(start + at_once, len(rows)))
            for label in np.unique(desired[part]):
                examples, asking = self.reference.of_class(int(label)), part[desired[part] == label]
                if len(examples):
                    cost[asking] = self._held_back_from(rows.take(asking), examples, desired[asking])
        return cost

    def _held_back_from(self, rows: Encoded, examples: Encoded, desired: CodeArray) -> FloatArray:
        wished = examples.take(self._distances(rows, examples).argmin(axis=1))
        left = project(rows, wished, self.schema)
        gains = self._gains(left, desired)
        count, places = rows.values.shape[1], np.arange(len(rows))
        missing = [gains[:, :count] * (to_unit(wished.values, self.schema) - to_unit(left.values, self.schema))]
        for column, start in enumerate(self._category_starts):
            by_code = gains[:, start:]
            missing.append((by_code[places, wished.codes[:, column]] - by_code[places, left.codes[:, column]])[:, None])
        differs = np.concatenate([wished.values != left.values, wished.codes != left.codes], axis=1)
        return np.where(differs, np.concatenate(missing, axis=1).clip(1e-9), 0.0)

    @property
    def _category_starts(self) -> list[int]:
        """Of each category's block among the columns of the first layer's weight."""
        return (self.inference.net.encoder_in.block_offsets + len(self.schema.continuous)).tolist()

    def _gains(self, candidates: Encoded, desired: CodeArray) -> FloatArray:
        """(N, D) by how much each encoded column brings the desired class forward."""
        first = self.inference.first_layer(self._tensors(candidates)).T.contiguous()
        _, slope = self.inference.slope(first, self._tensor(desired))
        return (slope @ self.inference.net.encoder_in.weight.detach().T).cpu().numpy()

    def _climbed(
        self, rows: Encoded, candidates: Encoded, desired: CodeArray, frozen: Mask | None
    ) -> tuple[Encoded, FloatArray]:
        """Candidates moved uphill until they reach the desired class, as far as they get."""
        num_rows = len(rows)
        now, leads, step = candidates, self._leads(candidates, desired), np.full(num_rows, _FIRST_STEP)
        for _ in range(_CLIMBING_ROUNDS):
            if (leads > 0).all():
                break
            gains = self._gains(now, desired)
            improved, searching = np.zeros(num_rows, dtype=bool), leads <= 0
            for trial in self._trials(rows, now, gains, step):
                tried = self.feasible(rows, trial, frozen)
                tried_leads = self._leads(tried, desired)
                better = searching & (tried_leads > leads)
                taken = better[:, None]
                now = Encoded(np.where(taken, tried.values, now.values), np.where(taken, tried.codes, now.codes))
                leads, improved = np.where(better, tried_leads, leads), improved | better
            step = np.where(improved, step, step / 2)
        return now, leads

    def _trials(self, rows: Encoded, now: Encoded, gains: FloatArray, step: FloatArray) -> Iterator[Encoded]:
        steps = self._steps(rows, now, gains, step)
        yield from steps
        for needed in self._needed:
            for moved in self._moves(needed, rows, now, gains, step):
                yield from (_with_column(trial, needed, moved) for trial in steps)

    def _steps(self, rows: Encoded, now: Encoded, gains: FloatArray, step: FloatArray) -> list[Encoded]:
        """All numbers a step uphill; then each category alone, where it brings most."""
        units = to_unit(now.values, self.schema) + np.sign(gains[:, : rows.values.shape[1]]) * step[:, None]
        trials = [Encoded(from_unit(units.astype(np.float32), self.schema), now.codes)]
        for column in range(now.codes.shape[1]):
            gain_of, permitted = self._choices(column, rows, gains)
            codes = np.where(permitted, gain_of, -np.inf).argmax(axis=1)
            trials.append(_with_column(now, rows.values.shape[1] + column, codes))
        return trials

    def _choices(self, column: int, rows: Encoded, gains: FloatArray) -> tuple[FloatArray, Mask]:
        """(N, K) what each value of a category brings, and whether each row may have it."""
        category, start = self.schema.categorical[column], self._category_starts[column]
        permitted = permitted_changes(category)[rows.codes[:, column]]
        return gains[:, start : start + len(category.categories)], permitted

    @property
    def _needed(self) -> list[int]:
        """Features without a change of which another may not change."""
        return sorted({self.schema.position(rule.second) for rule in self.schema.rules if rule.kind == "needs"})

    def _moves(
        self, needed: int, rows: Encoded, now: Encoded, gains: FloatArray, step: FloatArray
    ) -> list[FloatArray | CodeArray]:
        """Changes of a feature for the sake of those that need one: a step either way, or the best other category."""
        count = rows.values.shape[1]
        if needed < count:
            size = step * self.schema.continuous[needed].span
            return [now.values[:, needed] + size, now.values[:, needed] - size]
        gain_of, permitted = self._choices(needed - count, rows, gains)
        permitted[np.arange(len(rows)), rows.codes[:, needed - count]] = False
        return [np.where(permitted, gain_of, -np.inf).argmax(axis=1)]


def _with_column(rows: Encoded, position: int, values: FloatArray | CodeArray) -> Encoded:
    """The same rows with another value of one feature; what is not changed is shared."""
    count = rows.values.shape[1]
    changed = Encoded(rows.values.copy(), rows.codes) if position < count else Encoded(rows.values, rows.codes.copy())
    changed.column(position)[:] = values
    return changed
