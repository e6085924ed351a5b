"""Fewer and smaller changes: only what is needed to reach the desired class is changed.

A feasible counterfactual of the network changes most features a little. Here its changes are made on the row one by
one, those first that promise most, until the prediction is as desired; changes that a later one made needless are
taken back; then a number moves towards the row as far as it can, on its grid. Trying is cheap, because the first layer
is linear in the features: a change adds the difference of two rows of its weight, and what follows is small. All rows
of a batch are tried at once, and a row that is done is left alone.

Nothing here breaks a rule: a value is the row's or the candidate's, or lies between them and is projected. Features
that rules tie together change together, go back together, and then one by one where the rules let them; a number of
them shrinks as far as these rules let it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_cfnet.explain.plausible import UsualTrial
from ray_cfnet.model.inference import Inference, lead, likeliest
from ray_cfnet.model.net import Rows
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask, to_unit
from ray_cfnet.tables.constraints import project_number
from ray_cfnet.tables.relations import broken, linked_groups
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.usual import Usual

_HAIR = 1e-4
"""Of a lead, in logits. The same row in batches of other sizes differed by 2e-5 at most (OULAD; 3e-6 on Adult)."""

_SHRINKING_TRIALS = 4
"""Of a number's way back: three halvings, and then, as the lead is piecewise linear, where a line would meet zero."""


@dataclass(frozen=True)
class Refiner:
    """Leaves out changes of counterfactuals that reach the desired class.

    `margin` is how far above the threshold the desired class has to stay: 0.1 is 0.6 against the likeliest other.
    """

    inference: Inference
    schema: TableSchema
    margin: float
    usual: Usual | None = None
    """With it, changes lead to no rarer combination than `plausibility` of the training rows, the row or its candidate.

    Numbers shrink freely afterwards: what lies between two usual values may be rare, but it is nearer.
    """
    plausibility: float = 0.0

    @cached_property
    def least_lead(self) -> float:
        return least_lead(self.margin)

    def refined(self, rows: Encoded, candidates: Encoded, desired: CodeArray) -> Encoded:
        """The candidates with the fewest changes found; each of them must be predicted as desired."""
        if not len(rows):
            return candidates
        with torch.inference_mode():
            trial = _Trial(self, rows, candidates, desired)
            trial.change_until_desired()
            trial.take_back_what_is_not_needed()
            trial.take_back_tied_ones_alone()
            result = trial.with_smaller_numbers()
            if trial.usual is not None:
                trial.take_back_what_was_usual_before(trial.usual, result)
            return result


def least_lead(margin: float) -> float:
    """A margin of the desired class as a difference of logits, and a hair more.

    Sums in another order, of another batch or machine, must not turn an answer that was given.
    """
    return math.log((0.5 + margin) / (0.5 - margin)) + _HAIR


class _Trial:
    """The rows of one batch with some of the candidates' changes, and the first layer of each.

    B rows, F features: numbers first, then categories. What is known of each feature is (F, B): vectors over the rows
    are long, over the features short.
    """

    def __init__(self, refiner: Refiner, rows: Encoded, candidates: Encoded, desired: CodeArray) -> None:
        self.inference, self.schema = refiner.inference, refiner.schema
        self.layer = self.inference.net.encoder_in
        self.weight = self.layer.weight.detach()
        self.num_rows, self.num_numbers = len(rows), len(self.schema.continuous)
        self.rows, self.candidates = rows, candidates
        self.desired = self._tensor(desired)
        own = Rows(self._tensor(to_unit(rows.values, self.schema)), self._tensor(rows.codes))
        new = Rows(self._tensor(to_unit(candidates.values, self.schema)), self._tensor(candidates.codes))
        self.moves = new.continuous.T - own.continuous.T
        changed = torch.cat([self._tensor(rows.values != candidates.values).T, (own.codes != new.codes).T])
        # A change adds factors * weight[weight_rows], of the new value and of the own; a number needs the first only.
        self.weight_rows = torch.empty((len(changed), self.num_rows, 2), dtype=torch.int64, device=self.weight.device)
        self.weight_rows[: self.num_numbers] = torch.arange(self.num_numbers, device=self.weight.device)[:, None, None]
        offsets = (self.layer.block_offsets + self.num_numbers)[:, None]
        for end, codes in enumerate((new.codes, own.codes)):
            torch.add(codes.T, offsets, out=self.weight_rows[self.num_numbers :, :, end])
        self.factors = torch.zeros(self.weight_rows.shape, dtype=self.moves.dtype, device=self.weight.device)
        self.factors[: self.num_numbers, :, 0] = self.moves
        self.factors[self.num_numbers :] = torch.tensor([1.0, -1.0], device=self.weight.device)
        self.least_lead = self._reachable(refiner, new)
        self.first = self.inference.first_layer(own).T.contiguous()
        leads, slope = self.inference.slope(self.first, self.desired)
        self.lead = leads - self.least_lead
        self.gain = torch.where(changed, self._gains(slope.T), -torch.inf)
        self.kept = torch.zeros(self.gain.shape, dtype=torch.bool, device=self.weight.device)
        self.lead_without = torch.zeros_like(self.gain)
        self.added: list[Tensor] = []
        """(B,) the feature that each round has changed, -1 for none."""
        self.groups = linked_groups(self.schema)
        self.usual: UsualTrial | None = None
        if refiner.usual is not None:
            self.usual = UsualTrial(refiner.usual, refiner.plausibility, rows, candidates)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.weight.device)

    def _reachable(self, refiner: Refiner, candidates: Rows) -> Tensor | float:
        """By how much the desired class must lead: by the margin, or (B,) by what a candidate has that misses it."""
        if not refiner.margin:
            return refiner.least_lead
        leads = lead(self.inference.logits_from(self.inference.first_layer(candidates)), self.desired)
        return (leads - _HAIR).clamp(max=refiner.least_lead)

    def _gains(self, slope: Tensor) -> Tensor:
        """(F, B) by how much each change brings the desired class forward, about."""
        gains = [(self.weight[: self.num_numbers] @ slope).mul_(self.moves)]
        starts = [*self.layer.block_offsets.tolist(), len(self.weight) - self.num_numbers]
        for column, category in enumerate(self.schema.categorical):
            if category.immutable:  # never changes, and may have a thousand values
                gains.append(slope.new_zeros(1, self.num_rows))
                continue
            start, stop = (self.num_numbers + starts[place] for place in (column, column + 1))
            by_value = self.weight[start:stop] @ slope
            new, own = (rows[None] - start for rows in self.weight_rows[self.num_numbers + column].unbind(-1))
            gains.append(by_value.gather(0, new) - by_value.gather(0, own))
        return torch.cat(gains)

    def _leads(self, first: Tensor, some: Tensor | slice) -> Tensor:
        """By how much the desired class leads more than it must; the first layer is overwritten."""
        least = self.least_lead[some] if isinstance(self.least_lead, Tensor) else self.least_lead
        return lead(self.inference.logits_from(first.T), self.desired[some]) - least

    def _add(self, first: Tensor, some: Tensor, features: Tensor, sign: float) -> None:
        """Makes a change of each of some rows on their first layer, or takes it back."""
        place = features * self.num_rows + some
        weight_rows, factors = (of.view(-1, 2).index_select(0, place) for of in (self.weight_rows, self.factors))
        first.add_(F.embedding_bag(weight_rows, self.weight, mode="sum", per_sample_weights=factors), alpha=sign)

    def _add_to(self, first: Tensor, places: Tensor, some: Tensor, features: Tensor, sign: float) -> None:
        """The same where only these places of the first layer belong to the rows."""
        part = first.index_select(0, places)
        self._add(part, some, features, sign)
        first.index_copy_(0, places, part)

    def change_until_desired(self) -> None:
        """The most promising changes, one at a time; at the worst all of them, which is the candidate."""
        active = torch.arange(self.num_rows, device=self.weight.device)
        first, leads, gain = self.first, self.lead, self.gain
        while len(active):
            promise = gain if self.usual is None else self.usual.promise(active, gain, leads)
            feature = likeliest(promise)
            self.added.append(torch.full_like(self.desired, -1).index_copy_(0, active, feature))
            self.lead_without[feature, active] = leads
            self.kept[feature, active] = True
            gain.scatter_(0, feature[None], -torch.inf)
            self._add(first, active, feature, 1.0)
            for places, partner in self._partners(feature, gain > -torch.inf):
                gain[partner, places] = -torch.inf
                self.lead_without[partner, active[places]] = leads[places]
                self.kept[partner, active[places]] = True
                self._add_to(first, places, active[places], partner, 1.0)
                if self.usual is not None:
                    self.usual.change(active[places], partner)
            leads = self._leads(first.clone(), active)
            if len(self.added) > 1:
                self.first.index_copy_(0, active, first)
            self.lead.index_copy_(0, active, leads)
            enough = leads > 0
            if self.usual is not None:
                enough &= self.usual.change(active, feature)
            # Where no change is left, all of the candidate is there: it leads, but for rounding.
            left = (~enough & (gain.amax(dim=0) > -torch.inf)).nonzero()[:, 0]
            active, first, leads = (kept.index_select(0, left) for kept in (active, first, leads))
            gain = gain.index_select(1, left)

    def _partners(self, features: Tensor, open_changes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """(places, feature of each) of the open changes, (F, n), that rules tie to these features."""
        for group in self.groups:
            members = torch.tensor(group, device=features.device)
            for member in group:
                tied = torch.isin(features, members) & (features != member) & open_changes[member]
                places = tied.nonzero()[:, 0]
                if len(places):
                    yield places, torch.full_like(places, member)

    def take_back_what_is_not_needed(self) -> None:
        """Each change but the last, which is known to be needed: the least promising first."""
        for number in range(len(self.added) - 2, -1, -1):
            some = (self.added[number + 1] >= 0).nonzero()[:, 0]
            feature, first = self.added[number].index_select(0, some), self.first.index_select(0, some)
            self._add(first, some, feature, -1.0)
            partners = list(self._partners(feature, self.kept[:, some])) if self.groups else []
            for places, partner in partners:
                self._add_to(first, places, some[places], partner, -1.0)
            leads = self._leads(first.clone(), some)
            self.lead_without[feature, some] = leads
            for places, partner in partners:
                self.lead_without[partner, some[places]] = leads[places]
            can = leads > 0
            if self.usual is not None:
                can = self.usual.take_back(some, feature, partners, can)
            spared = can.nonzero()[:, 0]
            back = some.index_select(0, spared)
            self.first.index_copy_(0, back, first.index_select(0, spared))
            self.lead.index_copy_(0, back, leads.index_select(0, spared))
            self.kept[feature.index_select(0, spared), back] = False
            for places, partner in partners:
                going = can[places]
                self.kept[partner[going], some[places[going]]] = False

    def take_back_tied_ones_alone(self) -> None:
        """Changes that came along with others, where neither the class nor a rule asks for them."""
        for group in self.groups:
            for member in [*group] * (len(group) - 1):  # what one needs can go when that one has gone
                some = self.kept[member].nonzero()[:, 0]
                feature, first = torch.full_like(some, member), self.first.index_select(0, some)
                self._add(first, some, feature, -1.0)
                leads = self._leads(first.clone(), some)
                picked = some.cpu().numpy()
                now, own = self._with_changes(picked), self.rows.take(picked)
                now.column(member)[:] = own.column(member)
                can = (leads > 0) & ~self._tensor(self._breaks_relations(member, own, now))
                if self.usual is not None:
                    can = self.usual.take_back(some, feature, [], can)
                spared = can.nonzero()[:, 0]
                back = some.index_select(0, spared)
                self.first.index_copy_(0, back, first.index_select(0, spared))
                self.lead.index_copy_(0, back, leads.index_select(0, spared))
                self.lead_without[member, some] = leads
                self.kept[member, back] = False

    def _with_changes(self, picked: CodeArray | slice) -> Encoded:
        """Rows with the changes that are kept."""
        kept = self.kept[:, picked].cpu().numpy()
        own, new = self.rows.take(picked), self.candidates.take(picked)
        result = Encoded.like(own)
        for position, taken in enumerate(kept):
            result.column(position)[:] = np.where(taken, new.column(position), own.column(position))
        return result

    def with_smaller_numbers(self) -> Encoded:
        """The rows with the changes that are needed, and one number of each shrunk: that which can come nearest.

        It takes up most of what the desired class leads by: a second one comes hardly nearer.
        """
        result = self._with_changes(slice(None))
        if self.num_numbers:
            room = self.lead / (self.lead - self.lead_without[: self.num_numbers]) * self.moves.abs()
            # What is not needed to lead is kept because it is usual.
            needed = self.kept[: self.num_numbers] & (self.lead_without[: self.num_numbers] <= 0)
            room = torch.where(needed & (self.lead > 0), room, 0.0)
            shrinks = torch.where(room.amax(dim=0) > 0, likeliest(room), -1)
            self._shrink([(shrinks == column).nonzero()[:, 0] for column in range(self.num_numbers)], result)
        return result

    def _shrink(self, rows_of: list[Tensor], result: Encoded) -> None:
        """Moves each number of its rows towards them: on its grid, near the last value that still leads.

        The rows of all numbers are tried together, those of each side by side.
        """
        some, ends = torch.cat(rows_of), np.cumsum([0, *map(len, rows_of)])
        parts = [(column, slice(*ends[column : column + 2])) for column, rows in enumerate(rows_of) if len(rows)]
        columns, picked = np.repeat(np.arange(len(rows_of)), np.diff(ends)), some.cpu().numpy()
        x, start = self.rows.values[picked, columns], self.candidates.values[picked, columns]
        first = self.first.index_select(0, some)
        tried, value, moved = torch.empty_like(first), np.empty_like(start), np.empty(len(start), dtype=np.float32)
        far, near = start, x  # the desired class leads at the first, and not at the second
        far_lead = self.lead.take(some).cpu().numpy()
        near_lead = self.lead_without[self._tensor(columns), some].cpu().numpy()
        for trial in range(_SHRINKING_TRIALS):
            crossing = np.clip(0.95 * far_lead / np.maximum(far_lead - near_lead, 1e-30), 0.0, 1.0)
            share = crossing if trial == _SHRINKING_TRIALS - 1 else 0.5  # never beyond the two ends
            wish = far + (near - far) * share
            for column, part in parts:
                feature = self.schema.continuous[column]
                value[part] = project_number(x[part], wish[part], feature)
                moved[part] = (value[part] - start[part]) / feature.span
                way = self._tensor(moved[part])[:, None]
                torch.addcmul(first[part], self.weight[column][None], way, out=tried[part])
            leads = self._leads(tried, some).cpu().numpy()
            stays: Mask = leads > 0
            if self.groups:
                for column, part in parts:
                    now = Encoded(result.values[picked[part]], result.codes[picked[part]])
                    now.values[:, column] = value[part]
                    stays[part] &= ~self._breaks_relations(column, self.rows.take(picked[part]), now)
            far, near = np.where(stays, value, far), np.where(stays, near, value)
            far_lead, near_lead = np.where(stays, leads, far_lead), np.where(stays, near_lead, leads)
        result.values[picked, columns] = far

    def take_back_what_was_usual_before(self, usual: UsualTrial, result: Encoded) -> None:
        """Changes that only made a number usual which has come nearer since, or another that has gone."""
        asked = np.arange(self.num_rows)
        while len(asked):
            went = np.zeros(self.num_rows, dtype=bool)
            for position in range(len(self.kept)):
                some = asked[result.column(position)[asked] != self.rows.column(position)[asked]]
                own, without = self.rows.take(some), result.take(some)
                without.column(position)[:] = own.column(position)
                tried = Rows(self._tensor(to_unit(without.values, self.schema)), self._tensor(without.codes))
                leads = self._leads(self.inference.first_layer(tried).T, self._tensor(some)).cpu().numpy()
                can = (leads > 0) & ~self._breaks_relations(position, own, without) & usual.is_enough(without, some)
                result.column(position)[some[can]] = own.column(position)[can]
                went[some[can]] = True
            asked = np.flatnonzero(went)

    def _breaks_relations(self, position: int, rows: Encoded, changed: Encoded) -> Mask:
        """Which changed rows break a rule between this feature and another."""
        tied = [r for r in self.schema.rules if position in map(self.schema.position, (r.first, r.second))]
        return np.logical_or.reduce(
            [np.zeros(len(rows), dtype=bool), *(broken(rows, changed, self.schema, r) for r in tied)]
        )
