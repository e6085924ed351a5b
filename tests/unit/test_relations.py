"""Rules between features, and what a category may become, against readings of one row at a time."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.config.ruletext import Relation, parse_relation
from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.constraints import project, violations
from ray_cfnet.tables.relations import linked_groups
from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema
from tests.unit.strategies import TARGET, schema_of

LABELS = tuple("abcde")


def at_most(first: str, second: str) -> Relation:
    return Relation("at_most", first, second)


def needs(first: str, second: str) -> Relation:
    return Relation("needs", first, second)


def may_become(x: int, code: int, feature: Categorical) -> bool:
    if code == x:
        return True
    return (
        not feature.immutable
        and not (feature.direction == "increase" and code < x)
        and not (feature.direction == "decrease" and code > x)
        and (feature.allowed is None or feature.categories[code] in feature.allowed)
        and (feature.categories[x], feature.categories[code]) not in feature.forbidden
    )


@st.composite
def restricted_categories(draw, name: str = "c") -> Categorical:
    ordered = draw(st.booleans())
    labels = st.sampled_from(LABELS)
    pairs = st.tuples(labels, labels).filter(lambda pair: pair[0] != pair[1])
    return Categorical(
        name,
        "string",
        LABELS,
        ordered,
        draw(st.sampled_from(["any", "increase", "decrease"])) if ordered else "any",
        draw(st.integers(0, 5)) == 0,
        allowed=draw(st.one_of(st.none(), st.sets(labels, min_size=1).map(lambda s: tuple(sorted(s))))),
        forbidden=tuple(sorted(draw(st.sets(pairs, max_size=8)))),
    )


@given(restricted_categories())
def test_every_category_becomes_the_nearest_one_that_it_may(feature: Categorical):
    x, candidate = (side.ravel()[:, None] for side in np.indices((5, 5)))
    rows, candidates = (Encoded(np.empty((25, 0)), side) for side in (x, candidate))
    result = project(rows, candidates, schema_of(feature))
    for row, wanted, code in zip(x[:, 0].tolist(), candidate[:, 0].tolist(), result.codes[:, 0].tolist(), strict=True):
        assert may_become(row, code, feature)
        between = range(min(row, wanted), max(row, wanted) + 1) if feature.ordered else (wanted,)
        assert code == min((c for c in (*between, row) if may_become(row, c, feature)), key=lambda c: abs(c - wanted))
    np.testing.assert_array_equal(project(rows, result, schema_of(feature)).codes, result.codes)
    expected = [not may_become(*pair, feature) for pair in zip(x[:, 0].tolist(), candidate[:, 0].tolist(), strict=True)]
    assert violations(rows, candidates, schema_of(feature)).tolist() == expected
    assert not violations(rows, result, schema_of(feature)).any()


NAMES = ["p", "q", "r", "s"]
COLUMNS = {
    1: [("int64", Grid(1, 0)), ("int32", Grid(3, 0)), ("double", None), ("float", Grid(1, 0))],
    10: [
        *[("double", Grid(1, 1)), ("float", Grid(1, 1)), ("halffloat", Grid(1, 1)), ("decimal128(9, 1)", Grid(5, 1))],
        *[("double", Grid(25, 2)), ("float", None)],
    ],
}


@st.composite
def tied_features(draw) -> tuple[TableSchema, Encoded, Encoded]:
    """Three numbers and a category with rules between them, rows that keep the rules, and any candidates.

    Numbers are whole, or tenths in columns that round them in their own way.
    """
    scale = draw(st.sampled_from([1, 10]))
    sizes = st.integers(1, 12).map(lambda size: size / scale)
    numbers = []
    for name in NAMES[:3]:
        arrow_type, grid = draw(st.sampled_from(COLUMNS[scale]))
        room = draw(st.one_of(st.none(), sizes, st.just("25%")))
        number = Continuous(
            name,
            arrow_type,
            0.0,
            draw(st.sampled_from([5.0, 20.0, 60.0])) / scale,
            grid,
            draw(st.sampled_from(["any", "any", "increase", "decrease"])),
            draw(st.sampled_from([(None, None), (0.0, 30.0 / scale)])),
            draw(st.integers(0, 6)) == 0,
            max_change=None if room == "25%" else room,
            max_change_percent=25.0 if room == "25%" else None,
            tolerance=draw(st.one_of(st.just(0.0), sizes)),
        )
        listed = draw(st.sampled_from([None, None, [0.0, 7.0, 20.0]]))
        if listed is not None:
            number = replace(number, allowed=tuple(number.typed(np.array(listed) / scale).tolist()))
        numbers.append(number)
    orders = st.tuples(st.sampled_from(NAMES[:3]), st.sampled_from(NAMES[:3])).map(lambda pair: at_most(*pair))
    conditions = st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES)).map(lambda pair: needs(*pair))
    rules = draw(st.sets(st.one_of(orders, conditions).filter(lambda rule: rule.first != rule.second), max_size=4))
    rules = sorted(rules, key=str)
    schema = TableSchema((*numbers, draw(restricted_categories("s"))), TARGET, (), tuple(rules))

    def keeps(row: tuple[float, ...]) -> bool:
        return all(row[NAMES.index(r.first)] <= row[NAMES.index(r.second)] for r in rules if r.kind == "at_most")

    def written(row: tuple[int, ...]) -> tuple[float, ...]:
        return tuple(float(number.typed(np.float64(value / scale))) for number, value in zip(numbers, row, strict=True))

    row = st.tuples(*[st.integers(0, 30)] * 3).map(written)
    whole = st.integers(0, 30 // scale).map(lambda v: (float(v),) * 3)  # the same in every type: it keeps any order
    count = draw(st.integers(1, 6))
    x = draw(st.lists(st.one_of(row.filter(keeps), whole), min_size=count, max_size=count))
    wanted = draw(st.lists(row, min_size=count, max_size=count))
    codes = st.lists(st.integers(0, 4), min_size=count, max_size=count)
    sides = [(x, draw(codes)), (wanted, draw(codes))]
    rows, candidates = (
        Encoded(np.asfortranarray(values, dtype=float), np.array(chosen)[:, None]) for values, chosen in sides
    )
    return schema, rows, candidates


@given(tied_features())
def test_no_rule_is_broken_whatever_was_asked_for(case: tuple[TableSchema, Encoded, Encoded]):
    schema, rows, candidates = case
    once = project(rows, candidates, schema)
    assert not violations(rows, once, schema).any()
    again = project(rows, once, schema)
    np.testing.assert_array_equal(again.values, once.values)
    np.testing.assert_array_equal(again.codes, once.codes)
    same = project(rows, rows, schema)
    np.testing.assert_array_equal(same.values, rows.values)
    np.testing.assert_array_equal(same.codes, rows.codes)


@given(tied_features())
def test_rows_do_not_depend_on_each_other(case: tuple[TableSchema, Encoded, Encoded]):
    schema, rows, candidates = case
    together = project(rows, candidates, schema)
    for row in range(len(rows)):
        alone = project(rows.take(slice(row, row + 1)), candidates.take(slice(row, row + 1)), schema)
        assert alone.values.tolist() == together.values[row : row + 1].tolist()
        assert alone.codes.tolist() == together.codes[row : row + 1].tolist()


@given(tied_features())
def test_the_audit_sees_every_broken_relation(case: tuple[TableSchema, Encoded, Encoded]):
    schema, rows, candidates = case
    alone = TableSchema(schema.features, TARGET)
    broken = violations(rows, candidates, alone)
    for row in range(len(rows)):
        x = dict(zip(NAMES, (*rows.values[row], rows.codes[row, 0]), strict=True))
        wanted = dict(zip(NAMES, (*candidates.values[row], candidates.codes[row, 0]), strict=True))
        for rule in schema.rules:
            if rule.kind == "at_most":
                broken[row] |= wanted[rule.first] > wanted[rule.second]
            else:
                broken[row] |= wanted[rule.first] != x[rule.first] and wanted[rule.second] == x[rule.second]
    assert violations(rows, candidates, schema).tolist() == broken.tolist()


steps = st.sampled_from([Grid(1, 0), Grid(4, 0)])
rooms = st.one_of(st.none(), st.integers(1, 10).map(float))


@given(
    grids=st.tuples(steps, steps),
    room=st.tuples(rooms, rooms),
    tolerance=st.tuples(st.sampled_from([0.0, 3.0]), st.sampled_from([0.0, 3.0])),
    x=st.tuples(st.integers(0, 15), st.integers(0, 15)).map(sorted),
    wanted=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_an_order_costs_the_smaller_of_two_moves(grids, room, tolerance, x, wanted):
    features = [
        Continuous(name, "int64", 0.0, span, grid, bounds=(0.0, 20.0), max_change=limit, tolerance=least)
        for name, span, grid, limit, least in zip("ab", (20.0, 10.0), grids, room, tolerance, strict=True)
    ]
    rows, candidates = (Encoded(np.array([side], dtype=float), np.empty((1, 0), np.int64)) for side in (x, wanted))
    single = project(rows, candidates, schema_of(*features)).values[0]
    result = project(rows, candidates, TableSchema(tuple(features), TARGET, (), (at_most("a", "b"),))).values[0]
    assert result[0] <= result[1]
    if single[0] <= single[1]:
        assert result.tolist() == single.tolist()
        return

    def permitted(column: int) -> list[float]:
        values = [float(value) for value in range(21)]
        columns = np.array(values)[:, None]
        alone = schema_of(features[column])
        own = Encoded(np.full((21, 1), float(x[column])), np.empty((21, 0), np.int64))
        broken = violations(own, Encoded(columns, own.codes), alone)
        return [value for value, bad in zip(values, broken, strict=True) if not bad]

    moves = [((single[0] - value) / 20.0, (value, single[1])) for value in permitted(0) if value <= single[1]]
    moves += [((value - single[1]) / 10.0, (single[0], value)) for value in permitted(1) if value >= single[0]]
    if not moves:
        assert result.tolist() == [float(value) for value in x]
        return
    cheapest = min(cost for cost, _ in moves)
    assert tuple(result) in [pair for cost, pair in moves if cost <= cheapest + 1e-9]


def numbers_and_rules(*rules: Relation, **options: dict) -> TableSchema:
    features = [Continuous(name, "int64", 0.0, 100.0, Grid(1, 0), **options.get(name, {})) for name in "abc"]
    return TableSchema((*features, Categorical("job", "string", ("no", "yes"))), TARGET, (), rules)


def one_row(a: float, b: float, c: float, job: int = 0) -> Encoded:
    return Encoded(np.array([[a, b, c]], dtype=float), np.array([[job]]))


@pytest.mark.parametrize(
    ("rules", "candidate", "expected"),
    [
        ([needs("a", "b")], (15, 20, 30, 0), (10, 20, 30, 0)),
        ([needs("a", "b")], (15, 21, 30, 0), (15, 21, 30, 0)),
        ([needs("a", "job")], (15, 20, 30, 0), (10, 20, 30, 0)),
        ([needs("job", "a")], (10, 20, 30, 1), (10, 20, 30, 0)),
        ([needs("a", "b"), needs("b", "c")], (15, 25, 30, 0), (10, 20, 30, 0)),
        ([at_most("a", "b"), needs("b", "c")], (25, 22, 30, 0), (20, 20, 30, 0)),
    ],
)
def test_a_change_that_needs_another_goes_back_without_it(rules, candidate, expected):
    result = project(one_row(10, 20, 30), one_row(*candidate), numbers_and_rules(*rules))
    assert (*result.values[0].tolist(), result.codes.item()) == expected


@pytest.mark.parametrize(
    ("rule", "candidate"),
    [(at_most("a", "b"), (21, 20, 30, 0)), (needs("a", "b"), (11, 20, 30, 0)), (needs("job", "c"), (10, 20, 30, 1))],
)
def test_the_audit_names_rows_that_break_a_rule_between_features(rule: Relation, candidate: tuple):
    rows = one_row(10, 20, 30)
    assert violations(rows, one_row(*candidate), numbers_and_rules(rule)).tolist() == [True]
    assert violations(rows, one_row(*candidate), numbers_and_rules()).tolist() == [False]
    assert violations(rows, rows, numbers_and_rules(rule)).tolist() == [False]


def test_a_move_for_an_order_is_a_whole_change_or_none():
    schema = numbers_and_rules(at_most("a", "b"), a={"tolerance": 15.0}, b={"immutable": True})
    assert project(one_row(10, 20, 30), one_row(60, 20, 30), schema).values[0].tolist() == [10, 20, 30]
    schema = numbers_and_rules(at_most("a", "b"), a={"tolerance": 5.0}, b={"immutable": True})
    assert project(one_row(10, 20, 30), one_row(60, 20, 30), schema).values[0].tolist() == [20, 20, 30]


@pytest.mark.parametrize(
    ("frozen", "candidate", "expected"),
    [("b", (60, 20, 30), [20, 20, 30]), ("a", (10, 5, 30), [10, 10, 30]), ("", (60, 20, 30), [60, 60, 30])],
)
def test_an_order_is_kept_by_what_may_move(frozen: str, candidate: tuple, expected: list):
    schema = numbers_and_rules(at_most("a", "b"))
    wide = replace(schema.continuous[1], upper=200.0) if frozen != "a" else replace(schema.continuous[1], upper=50.0)
    schema = replace(schema, features=(schema.features[0], wide, *schema.features[2:]))
    still = np.array([[name == frozen for name in "abcj"]])
    assert project(one_row(10, 20, 30), one_row(*candidate), schema, frozen=still).values[0].tolist() == expected


def test_a_chain_of_orders_holds_from_end_to_end():
    schema = numbers_and_rules(at_most("a", "b"), at_most("b", "c"))
    for wanted in itertools.product((5, 25, 60), repeat=3):
        result = project(one_row(10, 20, 30), one_row(*wanted), schema).values[0]
        assert result[0] <= result[1] <= result[2]


@pytest.mark.parametrize(("arrow_type", "most"), [("int8", 127.0), ("decimal128(3, 1)", 99.0), ("uint8", 255.0)])
def test_a_move_for_an_order_stays_within_what_the_column_can_hold(arrow_type: str, most: float):
    wide, narrow = (
        Continuous(name, kind, 0.0, span, Grid(1, 0))
        for name, kind, span in (("a", "int64", 10.0), ("b", arrow_type, 1e9))
    )
    schema = TableSchema((wide, narrow), TARGET, (), (at_most("a", "b"),))
    rows, candidates = (Encoded(np.array([side]), np.empty((1, 0), np.int64)) for side in ([5.0, 6.0], [900.0, 6.0]))
    assert project(rows, candidates, schema).values.tolist() == [[6.0, 6.0]]
    candidates.values[0, 0] = most
    assert project(rows, candidates, schema).values.tolist() == [[most, most]]


def test_groups_are_what_rules_tie_together_through_any_number_of_features():
    assert linked_groups(numbers_and_rules()) == []
    assert linked_groups(numbers_and_rules(at_most("a", "c"))) == [[0, 2]]
    assert linked_groups(numbers_and_rules(at_most("a", "c"), needs("job", "b"))) == [[0, 2], [1, 3]]
    assert linked_groups(numbers_and_rules(at_most("a", "c"), needs("job", "b"), needs("c", "job"))) == [[0, 1, 2, 3]]


NAMES_IN_RULES = ["a", "b", "net income", "v1.2", "x <= y", "if", "a changes then b"]


@pytest.mark.parametrize(
    ("text", "relation"),
    [
        ("a <= b", at_most("a", "b")),
        ("a<=b", at_most("a", "b")),
        ("  a >=  b ", at_most("b", "a")),
        ("net income <= v1.2", at_most("net income", "v1.2")),
        ("x <= y <= a", at_most("x <= y", "a")),
        ("a <= x <= y", at_most("a", "x <= y")),
        ("if a changes then b changes", needs("a", "b")),
        ("if  net income  changes then v1.2 changes", needs("net income", "v1.2")),
        ("if if changes then a changes", needs("if", "a")),
        ("if a changes then b changes then if changes", needs("a changes then b", "if")),
    ],
)
def test_a_rule_is_read_as_it_is_written(text: str, relation: Relation):
    assert parse_relation(text, NAMES_IN_RULES) == relation
    assert parse_relation(str(relation), NAMES_IN_RULES) == relation


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a < b", "is no rule; write `a <= b`"),
        ("a", "is no rule"),
        ("", "is no rule"),
        ("a <= ", "is no rule"),
        ("if a changes", "is no rule"),
        ("if a changes then b", "is no rule"),
        ("__import__('os')", "is no rule"),
        ("a <= a", "'a' is related to itself"),
        ("net incom <= a", "unknown feature 'net incom', did you mean 'net income'?"),
        ("a <= 5", "unknown feature '5'"),
        ("if a changes then zzz changes", "unknown feature 'zzz'"),
    ],
)
def test_what_is_no_rule_is_told(text: str, said: str):
    with pytest.raises(ValueError, match=re.escape(said)):
        parse_relation(text, NAMES_IN_RULES)
