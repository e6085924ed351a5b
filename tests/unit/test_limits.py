"""max_change, tolerance and listed values of a number, against a reading in exact decimals, value by value."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.constraints import project, project_number, violations
from ray_cfnet.tables.schema import Continuous, Grid
from tests.unit.strategies import FLOAT_TYPES, grid_value, number, schema_of

GRIDS = [Grid(1, 0), Grid(5, 0), Grid(1, 1), Grid(5, 2)]


def exact(value: float, arrow_type: pa.DataType) -> Fraction:
    """A value as its digits say: 0.7 is seven tenths."""
    return Fraction(Decimal(str(FLOAT_TYPES[arrow_type](value) if arrow_type in FLOAT_TYPES else value)))


@dataclass(frozen=True)
class Limited:
    """A number with limits, and rows with candidates for it."""

    feature: Continuous
    arrow_type: pa.DataType
    rows: list[tuple[float, float]]

    @property
    def x(self) -> np.ndarray:
        return np.array([x for x, _ in self.rows])

    @property
    def candidates(self) -> np.ndarray:
        return np.array([candidate for _, candidate in self.rows])

    def projected(self) -> np.ndarray:
        return project_number(self.x, self.candidates, self.feature)

    def change(self, x: float, value: float) -> Fraction:
        return abs(exact(value, self.arrow_type) - exact(x, self.arrow_type))

    def counts_as_change(self, x: float, value: float) -> bool:
        return self.change(x, value) >= Fraction(Decimal(repr(self.feature.tolerance)))

    def reachable(self, x: float) -> list[float]:
        """Every value that the row may get, tolerance left aside."""
        feature, grid = self.feature, self.feature.grid
        if feature.allowed is not None:
            values = list(feature.allowed)
        else:
            values = [grid_value(position, grid, self.arrow_type) for position in range(-400, 401)]
        lower, upper = feature.bounds
        room = Fraction(10**9)
        if feature.max_change is not None:
            room = Fraction(Decimal(repr(feature.max_change)))
        if feature.max_change_percent is not None:
            room = abs(exact(x, self.arrow_type)) * Fraction(Decimal(repr(feature.max_change_percent))) / 100
        return [x] + [
            value
            for value in values
            if not (feature.direction == "increase" and value < x)
            and not (feature.direction == "decrease" and value > x)
            and (lower is None or value >= lower)
            and (upper is None or value <= upper)
            and self.change(x, value) <= room
        ]


@st.composite
def limited_numbers(draw) -> Limited:
    arrow_type = draw(st.sampled_from([pa.int64(), pa.float64(), pa.float32()]))
    whole = pa.types.is_integer(arrow_type)
    grid = draw(st.sampled_from([grid for grid in GRIDS if not (whole and grid.decimals)]))
    fine = grid if whole else Grid(1, grid.decimals + 1)
    values = st.integers(-300, 300).map(lambda position: grid_value(position, fine, arrow_type))
    on_grid = st.integers(-100, 100).map(lambda position: grid_value(position, grid, arrow_type))
    sizes = st.integers(1, 200).map(lambda position: position * fine.multiple / 10**fine.decimals)
    ends = sorted(draw(st.tuples(values, values)))
    rules = {
        "direction": draw(st.sampled_from(["any", "any", "increase", "decrease"])),
        "bounds": (draw(st.sampled_from([None, ends[0]])), draw(st.sampled_from([None, ends[1]]))),
        "tolerance": draw(st.one_of(st.just(0.0), sizes)),
        "allowed": draw(st.one_of(st.none(), st.sets(on_grid, min_size=1, max_size=6).map(lambda s: tuple(sorted(s))))),
    }
    limit = draw(st.sampled_from(["max_change", "max_change_percent", None]))
    if limit:
        rules[limit] = draw(sizes if limit == "max_change" else st.integers(1, 200).map(float))
    inside = values.filter(lambda value: ends[0] <= value <= ends[1])
    rows = draw(st.lists(st.tuples(st.one_of(st.just(ends[0]), inside), values), min_size=1, max_size=6))
    return Limited(number(arrow_type, -300.0, 300.0, grid, **rules), arrow_type, rows)


@given(limited_numbers())
def test_every_row_gets_the_nearest_value_that_it_may_have(case: Limited):
    for (x, candidate), result in zip(case.rows, case.projected().tolist(), strict=True):
        reachable = case.reachable(x)
        nearest = min(abs(value - candidate) for value in reachable)
        ties = [value for value in reachable if abs(abs(value - candidate) - nearest) < 1e-4]
        assert result in [value if case.counts_as_change(x, value) else x for value in ties]


@given(limited_numbers())
def test_what_is_projected_keeps_every_limit_and_stays(case: Limited):
    once = case.projected()
    np.testing.assert_array_equal(project_number(case.x, once, case.feature), once)
    np.testing.assert_array_equal(project_number(case.x, case.x, case.feature), case.x)
    for (x, _), result in zip(case.rows, once.tolist(), strict=True):
        assert result == x or (result in case.reachable(x) and case.counts_as_change(x, result))


def encoded(values: np.ndarray) -> Encoded:
    return Encoded(values[:, None], np.empty((len(values), 0), np.int64))


@given(limited_numbers())
def test_the_audit_agrees_with_the_limits_read_one_by_one(case: Limited):
    schema = schema_of(case.feature)
    found = violations(encoded(case.x), encoded(case.candidates), schema).tolist()
    fine = [
        candidate == x or (candidate in case.reachable(x) and case.counts_as_change(x, candidate))
        for x, candidate in case.rows
    ]
    assert found == [not good for good in fine]
    assert not violations(encoded(case.x), encoded(case.projected()), schema).any()


def limited(x: float, candidate: float, grid: Grid | None = None, **rules) -> float:
    feature = number(rules.pop("arrow_type", pa.float64()), 0.0, 100.0, grid, **rules)
    return project(encoded(np.array([x])), encoded(np.array([candidate])), schema_of(feature)).values.item()


@pytest.mark.parametrize(("x", "room", "reached"), [(0.7, 0.1, 0.8), (0.3, 0.1, 0.4), (1.1, 2.2, 3.3), (8.1, 0.3, 8.4)])
@pytest.mark.parametrize("arrow_type", [pa.float64(), pa.float32()], ids=str)
def test_a_change_is_measured_as_it_is_written(x: float, room: float, reached: float, arrow_type: pa.DataType):
    x, reached = (grid_value(round(value * 10), Grid(1, 1), arrow_type) for value in (x, reached))
    assert limited(x, 50.0, Grid(1, 1), max_change=room, arrow_type=arrow_type) == reached
    assert limited(x, reached, Grid(1, 1), tolerance=room, arrow_type=arrow_type) == reached


def test_a_share_is_that_of_the_rows_own_value():
    assert limited(50.0, 90.0, Grid(1, 0), max_change_percent=20.0) == 60.0
    assert limited(-50.0, 90.0, Grid(1, 0), max_change_percent=20.0) == -40.0
    assert limited(0.0, 90.0, Grid(1, 0), max_change_percent=20.0) == 0.0


def test_nothing_changes_when_no_step_lies_within_the_largest_change():
    assert limited(14.0, 0.0, Grid(10, 0), max_change=3.0) == 14.0
    assert limited(14.0, 99.0, Grid(10, 0), max_change=3.0) == 14.0
    assert limited(14.0, 0.0, Grid(10, 0), max_change=4.0) == 10.0


def test_a_change_below_the_tolerance_is_taken_back():
    assert limited(40.0, 44.0, Grid(1, 0), tolerance=5.0) == 40.0
    assert limited(40.0, 45.0, Grid(1, 0), tolerance=5.0) == 45.0


def test_a_changed_value_is_one_of_those_listed():
    assert limited(40.0, 59.0, Grid(1, 0), allowed=(0.0, 12.5, 60.0)) == 60.0
    assert limited(40.0, 45.0, Grid(1, 0), allowed=(0.0, 12.5, 60.0)) == 40.0
    assert limited(40.0, 10.0, Grid(1, 0), allowed=(0.0, 12.5, 60.0)) == 12.5
    assert limited(40.0, 59.0, Grid(1, 0), allowed=(0.0, 60.0), max_change=15.0) == 40.0


def test_listed_values_at_the_very_ends_of_the_bounds_can_be_reached():
    for candidate in (0.0, 60.0):
        assert limited(40.0, candidate, Grid(1, 0), allowed=(0.0, 60.0), bounds=(0.0, 60.0)) == candidate
        assert limited(40.0, candidate, Grid(1, 0), allowed=(20.0, 60.0), max_change=20.0) in (20.0, 60.0)


@given(
    x=st.floats(-1e3, 1e3, width=32),
    candidate=st.floats(-1e6, 1e6, width=32),
    room=st.floats(1e-3, 1e3),
    arrow_type=st.sampled_from([pa.float32(), pa.float64()]),
    tolerance=st.sampled_from([0.0, 0.5, 10.0]),
)
def test_numbers_without_steps_move_as_far_as_they_may(x, candidate, room, arrow_type, tolerance):
    feature = number(arrow_type, -1e3, 1e3, max_change=room, tolerance=tolerance)
    rows, once = (
        encoded(np.array([x])),
        limited(x, candidate, max_change=room, tolerance=tolerance, arrow_type=arrow_type),
    )
    assert abs(once - x) <= room * (1 + 1e-12)
    if abs(candidate - x) >= room >= tolerance * 1.001:
        assert abs(once - x) >= room * (1 - 1e-5) - 1e-4
    assert not violations(rows, encoded(np.array([once])), schema_of(feature)).any()
    assert limited(x, once, max_change=room, tolerance=tolerance, arrow_type=arrow_type) == once


@pytest.mark.parametrize(
    ("rules", "candidate"),
    [
        ({"max_change": 5.0}, 46.0),
        ({"max_change": 5.0}, 34.0),
        ({"max_change_percent": 10.0}, 45.0),
        ({"allowed": (0.0, 60.0)}, 41.0),
        ({"tolerance": 3.0}, 42.0),
    ],
)
def test_the_audit_names_rows_that_pass_a_limit_and_no_others(rules: dict, candidate: float):
    schema = schema_of(number(pa.float64(), 0.0, 100.0, Grid(1, 0), **rules))
    candidates = encoded(np.array([40.0, candidate, 40.0]))
    assert violations(encoded(np.full(3, 40.0)), candidates, schema).tolist() == [False, True, False]
