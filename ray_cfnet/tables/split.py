"""Which rows train, validate and test: decided by a row's number in the table, so any worker can tell."""

from decimal import Decimal
from math import ceil
from typing import Literal

import numpy as np
import numpy.typing as npt

from ray_cfnet.config import Split

SplitName = Literal["train", "validation", "test"]


def rows_in_split(
    name: SplitName, split: Split, first_row: int, num_rows: int, table_rows: int
) -> npt.NDArray[np.bool_]:
    """Mask of the rows first_row .. first_row + num_rows that belong to a split."""
    numbers = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
    if split.method == "sequential":
        start, stop = _sequential_range(name, split, table_rows)
        return (numbers >= start) & (numbers < stop)
    draw = _uniform(numbers, split.seed)
    low, high = {
        "train": (0.0, split.train),
        "validation": (split.train, split.train + split.validation),
        "test": (split.train + split.validation, np.inf),
    }[name]
    return (draw >= low) & (draw < high)


def has_rows(name: SplitName, split: Split, table_rows: int) -> bool:
    """Whether any row falls into a split."""
    block = 1_000_000
    return any(
        rows_in_split(name, split, first, min(block, table_rows - first), table_rows).any()
        for first in range(0, table_rows, block)
    )


def expected_rows(name: SplitName, split: Split, first_row: int, num_rows: int, table_rows: int) -> int:
    """How many of these rows belong to a split, without looking at each: exact if sequential, else about (never 0)."""
    if split.method == "sequential":
        start, stop = _sequential_range(name, split, table_rows)
        return max(0, min(stop, first_row + num_rows) - max(start, first_row))
    return ceil(num_rows * {"train": split.train, "validation": split.validation, "test": split.test}[name])


class SpacedRows:
    """Picks evenly spaced rows out of batches that come one after another: `limit` at most of about `total`."""

    def __init__(self, total: int, limit: int) -> None:
        self.total, self.limit = max(total, 1), limit
        self.seen = self.picked = 0

    def next(self, num_rows: int) -> npt.NDArray[np.bool_]:
        """Which rows of the next batch are picked."""
        numbers = np.arange(self.seen, self.seen + num_rows)
        share = min(self.limit, self.total)
        mask = (numbers + 1) * share // self.total > numbers * share // self.total
        mask[np.flatnonzero(mask)[self.limit - self.picked :]] = False
        self.seen += num_rows
        self.picked += int(mask.sum())
        return mask


def _sequential_range(name: SplitName, split: Split, table_rows: int) -> tuple[int, int]:
    # As decimals: 0.7 + 0.1 of 10 rows is 8, not 7.999...
    train, validation = Decimal(repr(split.train)), Decimal(repr(split.validation))
    first, second = int(table_rows * train), int(table_rows * (train + validation))
    return {"train": (0, first), "validation": (first, second), "test": (second, table_rows)}[name]


def _uniform(numbers: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.float64]:
    """A number in [0, 1) for each row: splitmix64, the same on every machine and for any cut of the table."""
    with np.errstate(over="ignore"):
        x = splitmix64(numbers + np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95))
    return (x >> np.uint64(11)).astype(np.float64) / 2.0**53


def splitmix64(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Each number as 64 bits that look random; different numbers stay different."""
    with np.errstate(over="ignore"):
        x = numbers + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
