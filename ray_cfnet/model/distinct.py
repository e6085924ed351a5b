"""How many different rows there are, counted in bounded memory and mergeable over any cut of a table."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.split import splitmix64

Hashes = npt.NDArray[np.uint64]

SKETCH_ROWS = 65_536
"""Different rows counted exactly; beyond, the count is an estimate with a standard error of 0.4 %."""


def row_hashes(rows: Encoded) -> Hashes:
    """(N,) 64 bits a row, equal for equal values and categories."""
    hashes = np.full(len(rows), len(rows.values.T), dtype=np.uint64)
    for numbers in rows.values.T:
        hashes = splitmix64(hashes ^ (numbers + 0.0).view(np.uint64))  # + 0.0: -0.0 is 0.0
    for codes in rows.codes.T:
        hashes = splitmix64(hashes ^ codes.astype(np.uint64))
    return hashes


@dataclass
class Distinct:
    """The smallest hashes seen (a KMV sketch): all of them up to SKETCH_ROWS, so that small counts are exact."""

    hashes: Hashes = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    is_estimate: bool = False

    def add(self, hashes: Hashes) -> None:
        kept = np.union1d(self.hashes, hashes)
        self.is_estimate |= len(kept) > SKETCH_ROWS
        self.hashes = kept[:SKETCH_ROWS].copy()

    def merge(self, other: "Distinct") -> None:
        """Afterwards as if all rows had been added here."""
        self.add(other.hashes)
        self.is_estimate |= other.is_estimate

    @property
    def count(self) -> float:
        if not self.is_estimate:
            return float(len(self.hashes))
        # Hashes are spread evenly: k of them below h mean k / h of the whole range.
        return (SKETCH_ROWS - 1) / (float(self.hashes[-1]) / 2.0**64)


@dataclass
class DistinctAnswers:
    """Different answers against the different rows they were given to."""

    rows: Distinct = field(default_factory=Distinct)
    answers: Distinct = field(default_factory=Distinct)

    def add(self, rows: Encoded, answers: Encoded) -> None:
        self.rows.add(row_hashes(rows))
        self.answers.add(row_hashes(answers))

    def merge(self, other: "DistinctAnswers") -> None:
        self.rows.merge(other.rows)
        self.answers.merge(other.answers)

    @property
    def share(self) -> float | None:
        """1: every different row got an answer of its own; None where nobody asked."""
        return self.answers.count / self.rows.count if self.rows.count else None
