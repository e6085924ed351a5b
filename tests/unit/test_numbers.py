"""Numbers as texts, compared with Python's own format."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.explain.numbers import _FEW, number_texts, shown_decimals
from ray_cfnet.tables.schema import Continuous, Grid
from tests.unit.strategies import GRIDS


def texts_of(values: list[float] | np.ndarray, decimals: int, prefix: str = "") -> list[str]:
    codes, texts = number_texts(np.asarray(values, dtype=np.float64), decimals, prefix)
    texts.validate(full=True)
    return texts.take(codes).to_pylist()


@given(st.sampled_from(GRIDS), st.lists(st.integers(-(2**51) // 100, 2**51 // 100), max_size=30))
def test_values_on_a_grid_read_as_python_formats_them(grid: Grid, positions: list[int]) -> None:
    values = grid.value(np.array(positions, dtype=np.float64))
    assert texts_of(values, grid.decimals) == [format(float(value) + 0.0, f",.{grid.decimals}f") for value in values]


@given(st.lists(st.integers(-(2**53) + 1, 2**53 - 1), max_size=30))
def test_whole_numbers_are_exact_as_far_as_a_double_is(numbers: list[int]) -> None:
    assert texts_of([float(number) for number in numbers], 0) == [f"{number:,}" for number in numbers]


@pytest.mark.parametrize("width", [1_000, 100_000_000])
def test_few_distinct_and_many_distinct_numbers_read_alike(width: int) -> None:
    cents = np.random.default_rng(0).integers(-width, width, 5_000)
    assert texts_of(cents / 100, 2) == [f"{cent / 100:,.2f}" for cent in cents]


def test_few_numbers_become_few_texts() -> None:
    values = np.random.default_rng(0).integers(0, 20, 10_000) * 100.0
    assert len(number_texts(values, 0)[1]) == 20
    assert 16 * 10_000 > _FEW > 2_000  # else the flags would not have been taken


def test_a_prefix_stands_between_sign_and_digits() -> None:
    assert texts_of([-1234.5, 0, 1e6], 2, "$") == ["-$1,234.50", "$0.00", "$1,000,000.00"]


def test_what_rounds_to_zero_has_no_sign() -> None:
    assert texts_of([-0.001, -0.0], 2) == ["0.00", "0.00"]


def test_a_number_too_large_for_its_decimals_is_told_without_spoiling_its_neighbours() -> None:
    assert texts_of([1.5, -1e300, 2.5, 1e17], 1) == ["1.5", "-1e+300", "2.5", "1e+17"]


def test_no_numbers_are_no_texts() -> None:
    assert texts_of([], 2) == []


@pytest.mark.parametrize(("span", "decimals"), [(0.002, 7), (1.0, 4), (30.0, 3), (99_999.0, 0), (1e9, 0)])
def test_a_number_without_a_grid_shows_a_ten_thousandth_of_its_range(span: float, decimals: int) -> None:
    assert shown_decimals(Continuous("x", "double", 0.0, span, None)) == decimals
