"""Counting different rows against Python's sets."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.model import distinct
from ray_cfnet.model.distinct import Distinct, DistinctAnswers, row_hashes
from ray_cfnet.tables.codec import Encoded


def some_rows(num_rows: int, seed: int, values: int = 4) -> Encoded:
    rng = np.random.default_rng(seed)
    return Encoded(rng.integers(-1, values, (num_rows, 2)) / 10, rng.integers(0, 2, (num_rows, 2)))


def tuples(rows: Encoded) -> set[tuple[float, ...]]:
    return {(*values, *codes) for values, codes in zip(rows.values.tolist(), rows.codes.tolist(), strict=True)}


def test_hashes_tell_rows_apart_exactly_as_their_values_do() -> None:
    rows = some_rows(500, 0)
    hashes = row_hashes(rows)
    assert len(set(hashes.tolist())) == len(tuples(rows))
    swapped = Encoded(rows.values[:, ::-1], rows.codes)
    differ = rows.values[:, 0] != rows.values[:, 1]
    assert ((row_hashes(swapped) != hashes) == differ).all()


def test_minus_zero_is_zero() -> None:
    codes = np.zeros((1, 1), dtype=np.int64)
    assert row_hashes(Encoded(np.array([[-0.0]]), codes)) == row_hashes(Encoded(np.array([[0.0]]), codes))


@given(st.lists(st.integers(0, 300), max_size=4))
def test_any_cut_merges_to_the_count_of_the_whole(cuts: list[int]) -> None:
    rows, answers = some_rows(300, 1), some_rows(300, 2, values=2)
    bounds = [0, *sorted(cuts), 300]
    merged = DistinctAnswers()
    for start, stop in pairwise(bounds):
        part = DistinctAnswers()
        part.add(rows.take(slice(start, stop)), answers.take(slice(start, stop)))
        merged.merge(part)
    assert merged.share == len(tuples(answers)) / len(tuples(rows))


@pytest.mark.parametrize("num_parts", [1, 3])
def test_beyond_its_size_the_sketch_estimates_and_still_merges(monkeypatch: pytest.MonkeyPatch, num_parts: int) -> None:
    monkeypatch.setattr(distinct, "SKETCH_ROWS", 4096)
    numbers = np.arange(100_000, dtype=np.float64)
    hashes = row_hashes(Encoded(numbers[:, None], np.empty((100_000, 0), dtype=np.int64)))
    whole, merged = Distinct(), Distinct()
    whole.add(hashes)
    for part_hashes in np.array_split(np.concatenate([hashes, hashes[:50_000]]), num_parts):
        part = Distinct()
        part.add(part_hashes)
        merged.merge(part)
    assert len(merged.hashes) == 4096
    assert merged.count == whole.count == pytest.approx(100_000, rel=0.05)


def test_nobody_asked_is_unknown_not_zero() -> None:
    assert DistinctAnswers().share is None
