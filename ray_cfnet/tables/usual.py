"""How usual a combination of values is, counted on training rows.

Numbers are cut into bins of about as many rows each. Every feature is counted together with one other, along the tree
of pairs that tells most about the table (Chow and Liu, 1968), so the measure knows which values go together, costs one
look-up a feature, and needs no training.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.schema import FloatArray, TableSchema

NUM_BINS = 10
"""Of a number."""
MOST_BINS = 50
"""Of a category: its rarer values are one. A table of two has at most so many squared counts."""
_TREE_ROWS = 10_000
"""Which pairs tell most shows on so many rows; the pairs themselves are counted on all."""
_PRIOR_ROWS = 0.1
"""Added to every count: what was never seen is unlikely, not impossible."""

Bins = npt.NDArray[np.int64]
"""(F, N) the bin of each feature of each row: numbers first, then categories."""


@dataclass(frozen=True)
class Usual:
    """A tree of counted pairs."""

    edges: FloatArray
    """(numbers, NUM_BINS - 1) where bins of numbers begin, the first one's left out; infinite where there are fewer."""
    code_bins: npt.NDArray[np.int64]
    """The bin of each code of each category, one category after the other."""
    code_starts: npt.NDArray[np.int64]
    """(categories,) where each category's part of `code_bins` begins."""
    parents: npt.NDArray[np.int64]
    """(F,) the position of the feature that each one is counted with; -1 for the tree's root."""
    sizes: npt.NDArray[np.int64]
    """(F,) number of bins."""
    tables: npt.NDArray[np.float32]
    """Logarithms of P(bin | bin of the parent), one feature after the other, a line for each bin of the parent."""
    quantiles: npt.NDArray[np.float32]
    """(101,) of the training rows' log-probabilities: the k-th is that of the k-th percent of least usual rows."""

    @classmethod
    def counted(cls, rows: Encoded, schema: TableSchema) -> "Usual":
        edges = np.full((len(schema.continuous), NUM_BINS - 1), np.inf)
        for column in range(len(schema.continuous)):
            cuts = np.unique(np.quantile(rows.values[:, column], np.arange(1, NUM_BINS) / NUM_BINS))
            cuts = cuts[cuts > rows.values[:, column].min()]
            edges[column, : len(cuts)] = cuts
        code_bins = [_by_frequency(rows.codes[:, i], len(f.categories)) for i, f in enumerate(schema.categorical)]
        code_starts = np.cumsum([0, *map(len, code_bins)])[:-1]
        flat = np.concatenate([np.empty(0, dtype=np.int64), *code_bins])
        sizes = np.array([NUM_BINS] * len(edges) + [int(bins.max()) + 1 for bins in code_bins])
        bins = _binned(rows, edges, flat, code_starts)
        parents = _tree(bins[:, :: max(1, len(rows) // _TREE_ROWS)], sizes)
        tables = []
        for feature, parent in enumerate(parents.tolist()):
            alone = np.bincount(bins[feature], minlength=sizes[feature])[None]
            shares = (_counts(bins, sizes, parent, feature) if parent >= 0 else alone) + _PRIOR_ROWS
            tables.append(np.log(shares / shares.sum(axis=1, keepdims=True)).ravel())
        logarithms = np.concatenate(tables).astype(np.float32)
        usual = cls(edges, flat, code_starts, parents, sizes, logarithms, np.zeros(0, dtype=np.float32))
        quantiles = np.quantile(usual.log_probability(bins), np.linspace(0, 1, 101)).astype(np.float32)
        return replace(usual, quantiles=quantiles)

    def bins(self, rows: Encoded) -> Bins:
        return _binned(rows, self.edges, self.code_bins, self.code_starts)

    def log_probability(self, bins: Bins) -> npt.NDArray[np.float32]:
        """(N,) the logarithm of the probability of each row's combination of bins."""
        total = np.zeros(bins.shape[1], dtype=np.float32)
        start = 0
        for feature, (parent, size) in enumerate(zip(self.parents.tolist(), self.sizes.tolist(), strict=True)):
            place = bins[feature] + start if parent < 0 else bins[parent] * size + bins[feature] + start
            total += self.tables.take(place)
            start += size * (1 if parent < 0 else int(self.sizes[parent]))
        return total

    def gains(self, now: Bins, new: Bins) -> npt.NDArray[np.float32]:
        """(F, N) by how much the log-probability grows when one feature alone changes from its bin to another."""
        gains = np.zeros(now.shape, dtype=np.float32)
        start = 0
        for feature, (parent, size) in enumerate(zip(self.parents.tolist(), self.sizes.tolist(), strict=True)):
            if parent < 0:
                gains[feature] += self.tables.take(new[feature] + start) - self.tables.take(now[feature] + start)
                start += size
                continue
            line = now[parent] * size + start
            before = self.tables.take(line + now[feature])
            gains[feature] += self.tables.take(line + new[feature]) - before
            gains[parent] += self.tables.take(new[parent] * size + now[feature] + start) - before
            start += size * int(self.sizes[parent])
        return gains

    def limit(self, share: float) -> float:
        """The log-probability that this share of the training rows does not reach."""
        return float(np.interp(share, np.linspace(0, 1, 101), self.quantiles))


def _by_frequency(codes: npt.NDArray[np.int64], num_categories: int) -> npt.NDArray[np.int64]:
    """The bin of each code: its rank among the most frequent ones, and one bin for the rest."""
    rank = np.empty(num_categories, dtype=np.int64)
    rank[np.argsort(-np.bincount(codes, minlength=num_categories), kind="stable")] = np.arange(num_categories)
    return np.minimum(rank, MOST_BINS - 1)


def _binned(
    rows: Encoded, edges: FloatArray, code_bins: npt.NDArray[np.int64], code_starts: npt.NDArray[np.int64]
) -> Bins:
    bins = np.empty((len(edges) + rows.codes.shape[1], len(rows)), dtype=np.int64)
    for column, cuts in enumerate(edges):
        bins[column] = np.searchsorted(cuts, rows.values[:, column], side="right")
    for column, start in enumerate(code_starts.tolist()):
        bins[len(edges) + column] = code_bins.take(rows.codes[:, column] + start)
    return bins


def _counts(bins: Bins, sizes: npt.NDArray[np.int64], one: int, two: int) -> FloatArray:
    """Rows of each pair of bins."""
    shape = (int(sizes[one]), int(sizes[two]))
    return np.bincount(bins[one] * shape[1] + bins[two], minlength=shape[0] * shape[1]).reshape(shape).astype(float)


def _tree(bins: Bins, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The parents that make the sum of mutual information along the tree largest (Prim's algorithm)."""
    parents = np.full(len(sizes), -1)
    best = np.full(len(sizes), -np.inf)
    outside = list(range(1, len(sizes)))
    newest = 0
    while outside:
        for feature in outside:
            shared = _mutual_information(_counts(bins, sizes, newest, feature))
            if shared > best[feature]:
                best[feature], parents[feature] = shared, newest
        newest = max(outside, key=lambda feature: best[feature])
        outside.remove(newest)
    return parents


def _mutual_information(counts: FloatArray) -> float:
    joint = counts / counts.sum()
    apart = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    seen = joint > 0
    return float((joint[seen] * np.log(joint[seen] / apart[seen])).sum())
