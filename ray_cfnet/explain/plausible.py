"""How usual rows are while changes are made on them and taken back: what `explain.plausibility` asks of refining."""

import numpy as np
import torch
from torch import Tensor

from ray_cfnet.tables.codec import CodeArray, Encoded, Mask
from ray_cfnet.tables.usual import Bins, Usual


class UsualTrial:
    """How usual the rows of a trial are with the changes made so far."""

    def __init__(self, counts: Usual, plausibility: float, rows: Encoded, candidates: Encoded) -> None:
        self.counts = counts
        self.own, self.new = self.counts.bins(rows), self.counts.bins(candidates)
        self.now = self.own.copy()
        self.weight = plausibility
        given = np.minimum(self.counts.log_probability(self.own), self.counts.log_probability(self.new))
        self.least = np.minimum(given, self.counts.limit(plausibility))

    def is_enough(self, rows: Encoded, some: CodeArray) -> Mask:
        """Whether rows of these places are usual enough."""
        return self._enough(self.counts.bins(rows), some)

    def _enough(self, bins: Bins, some: CodeArray) -> Mask:
        return self.counts.log_probability(bins) >= self.least[some]

    def promise(self, some: Tensor, gain: Tensor, leads: Tensor) -> Tensor:
        """(F, n) what changes bring: the share of what the desired class still lacks, and how usual the row gets."""
        picked = some.cpu().numpy()
        usual = torch.from_numpy(self.counts.gains(self.now[:, picked], self.new[:, picked])).to(gain.device)
        lacking = (-leads).clamp(min=0)
        share = torch.where(lacking > 0, (gain / lacking).clamp(max=1.0), 0.0)
        return torch.where(gain > -torch.inf, share + self.weight * usual.clamp(max=0), -torch.inf)

    def change(self, some: Tensor, features: Tensor) -> Tensor:
        """Makes a change of each of some rows; whether they are usual enough then."""
        picked, column = some.cpu().numpy(), features.cpu().numpy()
        self.now[column, picked] = self.new[column, picked]
        return torch.from_numpy(self._enough(self.now[:, picked], picked)).to(some.device)

    def take_back(
        self, some: Tensor, features: Tensor, partners: list[tuple[Tensor, Tensor]], wanted: Tensor
    ) -> Tensor:
        """Takes a change of each of some rows back, and the changes tied to it (at places among some).

        Only where that is wanted and leaves the row usual enough; where it did.
        """
        picked = some.cpu().numpy()
        bins = self.now[:, picked]
        for places, feature in [(torch.arange(len(some)), features), *partners]:
            place, column = places.cpu().numpy(), feature.cpu().numpy()
            bins[column, place] = self.own[column, picked[place]]
        done = wanted.cpu().numpy() & self._enough(bins, picked)
        self.now[:, picked[done]] = bins[:, done]
        return torch.from_numpy(done).to(some.device)
