import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.config import Split
from ray_cfnet.tables.split import SpacedRows, expected_rows, rows_in_split
from tests.unit.strategies import splits

NAMES = ("train", "validation", "test")


def sizes(split: Split, table_rows: int) -> list[int]:
    return [int(rows_in_split(name, split, 0, table_rows, table_rows).sum()) for name in NAMES]


@given(splits, st.integers(0, 500))
def test_the_three_splits_partition_the_rows(split: Split, table_rows: int):
    masks = [rows_in_split(name, split, 0, table_rows, table_rows) for name in NAMES]
    assert np.sum(masks, axis=0).tolist() == [1] * table_rows


@given(splits, st.integers(1, 300), st.data())
def test_any_cut_of_the_table_gives_the_same_rows(split: Split, table_rows: int, data: st.DataObject):
    cuts = sorted(data.draw(st.lists(st.integers(0, table_rows), max_size=4)))
    for name in NAMES:
        whole = rows_in_split(name, split, 0, table_rows, table_rows)
        parts = [
            rows_in_split(name, split, start, stop - start, table_rows)
            for start, stop in zip([0, *cuts], [*cuts, table_rows], strict=True)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_ten_rows_in_sequence_are_seven_one_two():
    assert sizes(Split(method="sequential"), 10) == [7, 1, 2]


def test_sequential_splits_follow_the_order_of_the_rows():
    split = Split(method="sequential")
    assert np.flatnonzero(rows_in_split("train", split, 0, 10, 10)).tolist() == list(range(7))
    assert np.flatnonzero(rows_in_split("validation", split, 0, 10, 10)).tolist() == [7]
    assert np.flatnonzero(rows_in_split("test", split, 0, 10, 10)).tolist() == [8, 9]


@pytest.mark.parametrize("table_rows", [100, 1_000, 10**6, 10**8, 10**10])
@pytest.mark.parametrize("percent", [(70, 10, 20), (29, 1, 70), (57, 13, 30)])
def test_sequential_borders_stand_at_the_exact_fractions(table_rows: int, percent: tuple[int, int, int]):
    split = Split(train=percent[0] / 100, validation=percent[1] / 100, test=percent[2] / 100)
    train_end = table_rows * percent[0] // 100
    validation_end = table_rows * (percent[0] + percent[1]) // 100
    assert rows_in_split("train", split, train_end - 1, 2, table_rows).tolist() == [True, False]
    assert rows_in_split("test", split, validation_end - 1, 2, table_rows).tolist() == [False, True]


@given(st.integers(0, 2**31 - 1))
def test_random_splits_are_about_as_large_as_asked(seed: int):
    train, validation, test = sizes(Split(method="random", seed=seed), 20_000)
    assert train == pytest.approx(14_000, abs=400)
    assert validation == pytest.approx(2_000, abs=300)
    assert test == pytest.approx(4_000, abs=350)


def test_random_splits_are_as_mixed_at_the_end_of_the_table_as_at_its_start():
    split = Split(method="random")
    shares = [rows_in_split("train", split, first, 1_000, 10**9).mean() for first in (0, 500_000, 10**9 - 1_000)]
    assert shares == pytest.approx([0.7] * 3, abs=0.06)


def test_random_splits_differ_between_seeds_and_repeat_for_the_same_seed():
    def first(seed: int) -> list[bool]:
        return rows_in_split("train", Split(method="random", seed=seed), 0, 200, 200).tolist()

    assert first(0) == first(0)
    assert len({tuple(first(seed)) for seed in range(20)}) == 20


def test_random_membership_does_not_depend_on_the_size_of_the_table():
    split = Split(method="random", seed=3)
    np.testing.assert_array_equal(
        rows_in_split("train", split, 0, 50, 50), rows_in_split("train", split, 0, 50, 1_000_000)
    )


@given(splits, st.integers(1, 300), st.data())
def test_expected_rows_are_exact_for_a_sequential_split(split: Split, table_rows: int, data: st.DataObject):
    split = split.model_copy(update={"method": "sequential"})
    first = data.draw(st.integers(0, table_rows))
    count = data.draw(st.integers(0, table_rows - first))
    for name in NAMES:
        mask = rows_in_split(name, split, first, count, table_rows)
        assert expected_rows(name, split, first, count, table_rows) == mask.sum()


@given(st.integers(0, 400), st.integers(0, 400), st.lists(st.integers(0, 90), max_size=6))
def test_spaced_rows_are_even_the_same_for_any_cut_and_never_too_many(total: int, limit: int, batches: list[int]):
    spaced, whole = SpacedRows(total, limit), SpacedRows(total, limit)
    picked = np.concatenate([np.empty(0, bool), *(spaced.next(rows) for rows in batches)])
    assert picked.tolist() == whole.next(sum(batches)).tolist()
    assert picked.sum() <= limit
    if limit <= total == len(picked) > 0:
        assert picked.sum() == limit
        assert len(set(np.diff(np.flatnonzero(picked)))) <= 2
