"""Fewer and smaller changes: what is not needed to reach the desired class is taken back.

A feasible counterfactual of the network changes most features a little. Here changes are taken back while the
prediction stays as desired, those first that matter least; then the numbers that remain move towards the row as far
as they can, on their grid. Trying is cheap, because the first layer is linear in the features: one that goes back is a
sum of two rows of its weight, and what follows is small. All rows of a batch are tried at once.

Moving back towards the row breaks no rule: x itself is always allowed, and so is what lies between it and an allowed
value, once it is projected.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ray_cfnet.model.inference import Inference
from ray_cfnet.model.net import Rows
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask, to_unit
from ray_cfnet.tables.constraints import project_number
from ray_cfnet.tables.schema import TableSchema

_HALVINGS = 6
"""Of a number's way back: 1/64 of the change is left at most."""


@dataclass(frozen=True)
class Refiner:
    """Takes back changes of counterfactuals that reach the desired class.

    `margin` is how far above the threshold the desired class has to stay: 0.1 is 0.6 of two classes.
    """

    inference: Inference
    schema: TableSchema
    margin: float

    def refined(self, rows: Encoded, candidates: Encoded, desired: CodeArray) -> Encoded:
        """The candidates with the fewest changes found; each of them must be predicted as desired."""
        trial = _Trial(self, rows, candidates, desired)
        with torch.inference_mode():
            trial.take_back_the_first_in_order()
            trial.take_back_one_by_one()
            trial.shrink_numbers()
        return trial.candidates


class _Trial:
    """The candidates of one batch and the first layer of each, kept up to date with every change."""

    def __init__(self, refiner: Refiner, rows: Encoded, candidates: Encoded, desired: CodeArray) -> None:
        self.inference, self.schema, self.margin = refiner.inference, refiner.schema, refiner.margin
        self.layer = self.inference.net.encoder_in
        self.weight = self.layer.weight.detach()
        self.rows = rows
        self.candidates = Encoded(candidates.values.copy(order="F"), candidates.codes.copy(order="F"))
        self.desired = self._tensor(desired)
        self.own, self.now = self._contributions(rows), self._contributions(candidates)
        changed = np.concatenate([rows.values != candidates.values, rows.codes != candidates.codes], axis=1)
        self.changed = self._tensor(changed)
        self.first = self._first_layer(self.now)
        self.order = self._least_important_first()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.weight.device)

    def _contributions(self, rows: Encoded) -> tuple[Tensor, Tensor]:
        """What each feature adds to the first layer: the row of its weight, and a factor."""
        units, codes = self._tensor(to_unit(rows.values, self.schema)), self._tensor(rows.codes)
        numbers = torch.arange(units.shape[1], device=codes.device).expand(len(rows), -1)
        categories = codes + self.layer.block_offsets + self.layer.num_continuous
        return torch.cat([numbers, categories], 1), torch.cat([units, torch.ones_like(codes, dtype=units.dtype)], 1)

    def _first_layer(self, contributions: tuple[Tensor, Tensor]) -> Tensor:
        """(B, units)"""
        index, factor = contributions
        count = self.layer.num_continuous
        codes = index[:, count:] - self.layer.block_offsets - count
        return self.inference.first_layer(Rows(factor[:, :count], codes)).T.contiguous()

    def _least_important_first(self) -> Tensor:
        """(B, F) features in the order of what the lead of the desired class loses when they go back, about."""
        net = self.inference.net
        with torch.inference_mode(False), torch.enable_grad():
            first = self.first.clone().requires_grad_()
            _, probabilities = net.predict(net.encoder(net.encoder_in_activation(first)))
            lead = _lead(probabilities.T, self.desired)
            (slope,) = torch.autograd.grad(lead.sum(), first)
        by_weight = slope @ self.weight.T  # (B, D): what one unit more of an encoded column gives
        gains = [by_weight.gather(1, index) * factor for index, factor in (self.own, self.now)]
        gain = torch.where(self.changed, gains[0] - gains[1], -torch.inf)
        return gain.argsort(dim=1, descending=True)

    def _stays(self, first: Tensor, some: Tensor | slice) -> Tensor:
        """Whether the desired class keeps its lead with this first layer, which is overwritten."""
        probabilities = self.inference.predict_from(first.T).probabilities
        return _lead(probabilities, self.desired[some]) > 2 * self.margin

    def take_back_the_first_in_order(self) -> None:
        """As many of the least important features as can go back at once, by halving."""
        places = torch.arange(self.order.shape[1], device=self.order.device).expand_as(self.order)
        place = torch.empty_like(self.order).scatter_(1, self.order, places)
        num_changed = self.changed.sum(dim=1)
        can, cannot = torch.zeros_like(num_changed), num_changed + 1
        for _ in range(int(num_changed.max()).bit_length()):
            middle = (can + cannot) // 2
            stays = self._stays(self._first_layer(self._mixed(place < middle[:, None])), slice(None))
            can, cannot = torch.where(stays, middle, can), torch.where(stays, cannot, middle)
        self.needed_place = can  # the next in order was tried, and the lead was lost
        back = place < can[:, None]
        self.first = self._first_layer(self._mixed(back))
        self.changed &= ~back

    def _mixed(self, back: Tensor) -> tuple[Tensor, Tensor]:
        """The contributions with the features in `back` (B, F) as in the rows."""
        return torch.where(back, self.own[0], self.now[0]), torch.where(back, self.own[1], self.now[1])

    def take_back_one_by_one(self) -> None:
        """What is left, each feature on its own."""
        for place in range(self.order.shape[1]):
            feature = self.order[:, place]
            tried = self.changed.gather(1, feature[:, None])[:, 0] & (self.needed_place != place)
            some = tried.nonzero()[:, 0]
            if not len(some):
                continue
            feature = feature[some]
            first = self.first[some]
            for (index, factor), sign in ((self.own, 1.0), (self.now, -1.0)):
                first.addcmul_(self.weight[index[some, feature]], factor[some, feature][:, None], value=sign)
            stays = self._stays(first.clone(), some)
            self.first[some[stays]] = first[stays]
            self.changed[some[stays], feature[stays]] = False
        self._write_back()

    def _write_back(self) -> None:
        kept = self.changed.cpu().numpy()
        count = self.candidates.values.shape[1]
        np.copyto(self.candidates.values, self.rows.values, where=~kept[:, :count])
        np.copyto(self.candidates.codes, self.rows.codes, where=~kept[:, count:])

    def shrink_numbers(self) -> None:
        """Each number that is still changed, towards the row's own value, by halving."""
        for column, feature in enumerate(self.schema.continuous):
            some = self.changed[:, column].nonzero()[:, 0]
            if not len(some):
                continue
            picked = some.cpu().numpy()
            x, start = self.rows.values[picked, column], self.candidates.values[picked, column]
            first, weight = self.first[some], self.weight[column][None]
            now, too_near = start.copy(), x.copy()
            for _ in range(_HALVINGS):
                middle = project_number(x, (too_near + now) / 2, feature)
                steps = self._tensor(((middle - start) / feature.span).astype(np.float32))
                stays: Mask = self._stays(torch.addcmul(first, weight, steps[:, None]), some).cpu().numpy()
                now, too_near = np.where(stays, middle, now), np.where(stays, too_near, middle)
            self.candidates.values[picked, column] = now
            moved = self._tensor(((now - start) / feature.span).astype(np.float32))
            self.first[some] = first.addcmul_(weight, moved[:, None])


def _lead(probabilities: Tensor, desired: Tensor) -> Tensor:
    """(B,) by how much the desired class leads the likeliest other, of (classes, B) probabilities."""
    wanted = probabilities.gather(0, desired[None])[0]
    if len(probabilities) == 2:
        return 2 * wanted - 1
    return wanted - probabilities.scatter(0, desired[None], -1.0).amax(dim=0)
