import dataclasses
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema, Target, type_problem, value_type
from tests.unit.strategies import Rows, valid_rows

SCHEMA = TableSchema(
    (
        Continuous("age", "int64", 18.0, 90.0, Grid(1, 0), "increase", (None, 120.0)),
        Continuous("rate", "float", 0.0, 0.1, None, immutable=True),
        Categorical("housing", "string", ("own", "rent"), direction="decrease", ordered=True),
        Categorical("term", "int64", (12, 24)),
        Categorical("member", "bool", (False, True)),
    ),
    Target("decision", "bool", (False, True)),
    ("id",),
)


@given(valid_rows())
def test_a_schema_comes_back_from_json_as_it_was(rows: Rows):
    assert TableSchema.from_json(rows.schema.to_json()) == rows.schema


def test_every_rule_and_label_type_survives_json():
    back = TableSchema.from_json(SCHEMA.to_json())
    assert back == SCHEMA
    assert [type(label) for label in back.categorical[2].categories] == [bool, bool]
    assert [type(label) for label in back.categorical[1].categories] == [int, int]


def test_equal_schemas_have_equal_fingerprints():
    assert TableSchema.from_json(SCHEMA.to_json()).fingerprint == SCHEMA.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"keys": ()},
        {"features": SCHEMA.features[1:]},
        {"features": SCHEMA.features[::-1]},
        {"target": Target("decision", "bool", (True, False))},
        {"features": (dataclasses.replace(SCHEMA.features[0], upper=91.0), *SCHEMA.features[1:])},
        {"features": (dataclasses.replace(SCHEMA.features[0], immutable=True), *SCHEMA.features[1:])},
    ],
    ids=["keys", "fewer features", "feature order", "class order", "range", "rule"],
)
def test_any_difference_changes_the_fingerprint(change: dict):
    assert dataclasses.replace(SCHEMA, **change).fingerprint != SCHEMA.fingerprint


def test_features_are_told_apart_by_kind_and_keep_their_order():
    assert [feature.name for feature in SCHEMA.continuous] == ["age", "rate"]
    assert [feature.name for feature in SCHEMA.categorical] == ["housing", "term", "member"]
    assert SCHEMA.feature_names == ["age", "rate", "housing", "term", "member"]


def test_a_schema_of_another_version_is_refused():
    text = json.dumps({**json.loads(SCHEMA.to_json()), "version": 99})
    with pytest.raises(ValueError, match="version 99"):
        TableSchema.from_json(text)


@pytest.mark.parametrize("text", ["", "{}", '{"version": 1}', "not json", "[]", "null", '{"version": 1, "target": 3}'])
def test_a_text_that_is_no_schema_is_a_value_or_key_error(text: str):
    with pytest.raises((ValueError, KeyError)):
        TableSchema.from_json(text)


@pytest.mark.parametrize(
    ("step", "grid"),
    [(1.0, Grid(1, 0)), (0.05, Grid(5, 2)), (100.0, Grid(100, 0)), (2.5, Grid(25, 1)), (1e-6, Grid(1, 6))],
)
def test_a_step_is_the_grid_that_its_digits_say(step: float, grid: Grid):
    assert Grid.of_step(step) == grid


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_a_grid_value_is_the_double_that_its_decimal_literal_reads_as(position: int, decimals: int):
    sign, digits = "-" if position < 0 else "", str(abs(position)).rjust(decimals + 1, "0")
    literal = sign + (f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits)
    assert Grid(1, decimals).value(float(position)) == float(literal)


@given(st.integers(-(10**9), 10**9), st.sampled_from([Grid(1, 0), Grid(1, 2), Grid(5, 2), Grid(3, 0), Grid(7, 4)]))
def test_the_position_of_a_grid_value_rounds_to_where_it_came_from(position: int, grid: Grid):
    value = position * grid.multiple / 10**grid.decimals
    assert round(float(grid.index(value))) == position


def test_a_dictionary_column_counts_as_what_it_holds():
    assert value_type(pa.dictionary(pa.int8(), pa.string())) == pa.string()
    assert value_type(pa.int16()) == pa.int16()


@pytest.mark.parametrize(
    "arrow_type", [pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.decimal128(15, 2)], ids=str
)
def test_numbers_can_be_continuous(arrow_type: pa.DataType):
    assert type_problem(arrow_type, "continuous") is None


@pytest.mark.parametrize(
    "arrow_type",
    [pa.string(), pa.large_string(), pa.int8(), pa.bool_(), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)
def test_labels_can_be_categorical(arrow_type: pa.DataType):
    assert type_problem(arrow_type, "categorical") is None


@pytest.mark.parametrize(
    ("arrow_type", "kind"),
    [
        (pa.string(), "continuous"),
        (pa.date32(), "continuous"),
        (pa.duration("s"), "continuous"),
        (pa.decimal128(16, 2), "continuous"),
        (pa.decimal256(50, 2), "continuous"),
        (pa.float32(), "categorical"),
        (pa.decimal128(5, 2), "categorical"),
        (pa.timestamp("us"), "categorical"),
        (pa.binary(), "categorical"),
        (pa.struct([("a", pa.int8())]), "categorical"),
    ],
    ids=str,
)
def test_other_types_are_refused_with_a_reason(arrow_type: pa.DataType, kind: str):
    assert type_problem(arrow_type, kind)
