import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.constraints import project, violations
from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema
from tests.unit.strategies import (
    Change,
    as_type,
    category_rule_broken,
    changes,
    grid_value,
    number,
    one_number,
    schema_of,
)


def projected(change: Change) -> float:
    return project(one_number(change.x), one_number(change.candidate), change.schema).values.item()


def project_number(feature: Continuous, x: float, candidate: float) -> float:
    return project(one_number(x), one_number(candidate), schema_of(feature)).values.item()


def flagged(feature: Continuous, x: float, candidate: float) -> bool:
    return violations(one_number(x), one_number(candidate), schema_of(feature)).item()


@given(changes())
def test_projection_never_breaks_a_rule(change: Change):
    assert change.broken(projected(change)) is None


@given(changes())
def test_the_audit_finds_nothing_after_projection(change: Change):
    assert not flagged(change.feature, change.x, projected(change))


@given(changes())
def test_projecting_twice_is_projecting_once(change: Change):
    once = projected(change)
    assert project_number(change.feature, change.x, once) == once


@given(changes())
def test_a_row_that_changes_nothing_stays_as_it_is(change: Change):
    assert project_number(change.feature, change.x, change.x) == change.x
    assert not flagged(change.feature, change.x, change.x)


@given(changes(off_grid_candidates=False))
def test_an_allowed_candidate_stays_as_it_is(change: Change):
    assume(change.broken(change.candidate) is None)
    assert projected(change) == change.candidate


@given(changes())
def test_projection_never_goes_further_than_the_candidate_and_one_step(change: Change):
    asked = abs(change.candidate - change.x)
    rounding = 1e-6 * max(1.0, abs(change.candidate))
    assert abs(projected(change) - change.x) <= asked + change.step + rounding


@given(changes())
def test_immutable_feature_never_changes(change: Change):
    fixed = number(change.arrow_type, -1.0, 1.0, change.feature.grid, immutable=True)
    assert project_number(fixed, change.x, change.candidate) == change.x


@given(changes())
def test_the_audit_agrees_with_the_rules_read_one_by_one(change: Change):
    assert flagged(change.feature, change.x, change.candidate) == (change.broken(change.candidate) is not None)


@given(
    x=st.integers(-30, 30),
    candidate=st.integers(-60, 60),
    step=st.integers(1, 12),
    direction=st.sampled_from(["any", "increase", "decrease"]),
    room=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_projection_finds_the_nearest_value_that_is_allowed(x: int, candidate: int, step: int, direction: str, room):
    lower, upper = x - room[0], x + room[1]
    feature = number(pa.int64(), -1.0, 1.0, Grid(step, 0), direction=direction, bounds=(float(lower), float(upper)))
    allowed = [x] + [
        value
        for value in range(lower, upper + 1)
        if value % step == 0
        and not (direction == "increase" and value < x)
        and not (direction == "decrease" and value > x)
    ]
    result = project_number(feature, float(x), float(candidate))
    assert result in allowed
    assert abs(result - candidate) == min(abs(value - candidate) for value in allowed)


@pytest.mark.parametrize(("direction", "expected"), [("any", 30.0), ("increase", 40.0), ("decrease", 30.0)])
def test_direction_stops_a_move_the_other_way(direction: str, expected: float):
    feature = number(pa.int64(), 0.0, 100.0, Grid(1, 0), direction=direction)
    assert project_number(feature, 40.0, 30.0) == expected


def test_a_candidate_beyond_the_bounds_stops_at_the_last_grid_value_inside():
    feature = number(pa.int64(), 0.0, 100.0, Grid(10, 0), bounds=(5.0, 45.0))
    assert project_number(feature, 20.0, 99.0) == 40.0
    assert project_number(feature, 20.0, 0.0) == 10.0


def test_nothing_changes_when_no_grid_value_lies_inside_the_bounds():
    feature = number(pa.float64(), 0.0, 100.0, Grid(10, 0), bounds=(11.0, 19.0))
    assert project_number(feature, 15.0, 18.0) == 15.0


def test_a_row_off_the_grid_stays_when_it_is_nearer_than_the_grid():
    feature = number(pa.float64(), 0.0, 100.0, Grid(10, 0))
    assert project_number(feature, 14.0, 15.5) == 14.0
    assert project_number(feature, 14.0, 18.0) == 20.0


def test_a_bound_just_below_a_grid_value_excludes_it():
    feature = number(pa.float64(), 0.0, 100.0, Grid(100, 0), bounds=(0.0, 99.99999))
    assert project_number(feature, 50.0, 99.0) <= 99.99999


def test_a_whole_bound_just_below_a_wide_step_excludes_it():
    feature = number(pa.int64(), 0.0, 999_999.0, Grid(1_000_000, 0), bounds=(0.0, 999_999.0))
    assert project_number(feature, 400_000.0, 999_999.0) <= 999_999.0


@pytest.mark.parametrize("bound", [0.3, 9.99, 99.99, 1234.56])
def test_a_float32_bound_on_the_grid_can_be_reached(bound: float):
    upper = as_type(bound, pa.float32())
    feature = number(pa.float32(), 0.0, upper, Grid(1, 2), bounds=(0.0, upper))
    assert project_number(feature, 0.0, 5_000.0) == upper


@pytest.mark.parametrize("arrow_type", [pa.float16(), pa.float32()], ids=str)
@given(position=st.integers(-999, 999))
def test_narrow_columns_hold_grid_values_as_their_type_rounds_them(arrow_type: pa.DataType, position: int):
    grid = Grid(1, 1)
    feature = number(arrow_type, -100.0, 100.0, grid)
    result = project_number(feature, 0.0, position / 10)
    assert result == grid_value(position, grid, arrow_type)
    assert not flagged(feature, 0.0, result)


@pytest.mark.parametrize(
    ("grid", "candidate"),
    [(Grid(1, 2), 123_456.785), (Grid(100, 0), 60_000_050.0), (Grid(1, 0), 2_000_000.5)],
)
def test_the_audit_sees_large_values_half_a_step_off_the_grid(grid: Grid, candidate: float):
    assert flagged(number(pa.float64(), 0.0, 1e8, grid), 0.0, candidate)


@pytest.mark.parametrize(
    ("rules", "candidate"),
    [
        ({"immutable": True}, 41.0),
        ({"direction": "increase"}, 39.0),
        ({"direction": "decrease"}, 41.0),
        ({"bounds": (30.0, 50.0)}, 51.0),
        ({"bounds": (30.0, 50.0)}, 29.0),
        ({}, 40.5),
    ],
)
def test_the_audit_names_rows_that_break_a_rule_and_no_others(rules: dict, candidate: float):
    schema = schema_of(number(pa.float64(), 0.0, 100.0, Grid(1, 0), **rules))
    rows = Encoded(np.full((3, 1), 40.0), np.empty((3, 0), np.int64))
    candidates = Encoded(np.array([[40.0], [candidate], [40.0]]), np.empty((3, 0), np.int64))
    assert violations(rows, candidates, schema).tolist() == [False, True, False]


category_features = st.builds(
    lambda direction, immutable: Categorical("c", "string", tuple("abcdef"), True, direction, immutable),
    st.sampled_from(["any", "increase", "decrease"]),
    st.booleans(),
)


@given(category_features, st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=8))
def test_categories_follow_their_rules(feature: Categorical, pairs: list[tuple[int, int]]):
    schema = schema_of(feature)
    rows, candidates = (
        Encoded(np.empty((len(pairs), 0)), np.array(side)[:, None]) for side in zip(*pairs, strict=True)
    )
    result = project(rows, candidates, schema)
    for (x, candidate), code in zip(pairs, result.codes[:, 0].tolist(), strict=True):
        assert category_rule_broken(x, code, feature) is None
        assert code == (candidate if category_rule_broken(x, candidate, feature) is None else x)
    np.testing.assert_array_equal(project(rows, result, schema).codes, result.codes)
    expected = [category_rule_broken(x, candidate, feature) is not None for x, candidate in pairs]
    assert violations(rows, candidates, schema).tolist() == expected
    assert not violations(rows, result, schema).any()


def mixed_schema() -> TableSchema:
    return schema_of(
        Categorical("gender", "string", ("f", "m"), immutable=True),
        Continuous("age", "int64", 0.0, 99.0, Grid(1, 0), direction="increase"),
        Categorical("education", "string", ("low", "mid", "high"), True, "increase"),
        Continuous("income", "double", 0.0, 9e4, Grid(100, 0), bounds=(0.0, 50_000.0)),
    )


def test_each_rule_acts_on_its_own_column():
    rows = Encoded(np.array([[40.0, 20_000.0]]), np.array([[0, 1]]))
    candidates = Encoded(np.array([[35.0, 70_049.0]]), np.array([[1, 0]]))
    result = project(rows, candidates, mixed_schema())
    assert result.values.tolist() == [[40.0, 50_000.0]]
    assert result.codes.tolist() == [[0, 1]]


def test_projection_leaves_its_arguments_alone():
    rows = Encoded(np.array([[40.0, 20_000.0]]), np.array([[0, 1]]))
    candidates = Encoded(np.array([[35.0, 70_049.0]]), np.array([[1, 0]]))
    result = project(rows, candidates, mixed_schema())
    result.values[:] = -1
    result.codes[:] = -1
    assert rows.values.tolist() == [[40.0, 20_000.0]]
    assert rows.codes.tolist() == [[0, 1]]
    assert candidates.values.tolist() == [[35.0, 70_049.0]]
    assert candidates.codes.tolist() == [[1, 0]]


def test_no_rows_project_to_no_rows():
    nothing = Encoded(np.empty((0, 2)), np.empty((0, 2), np.int64))
    assert len(project(nothing, nothing, mixed_schema())) == 0
    assert violations(nothing, nothing, mixed_schema()).tolist() == []
