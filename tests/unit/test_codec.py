import decimal
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ray_cfnet.tables.codec import REJECT_REASONS, Encoded, Rejects, codes_of, decode, encode, from_unit, to_unit
from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema
from tests.unit.strategies import (
    INT_TYPES,
    LARGEST_EXACT,
    Rows,
    grid_features,
    grid_value,
    int_limits,
    lies_on_grid,
    number,
    schema_of,
    valid_rows,
)

AGE = Continuous("age", "int64", 18.0, 90.0, Grid(1, 0), bounds=(0.0, 120.0))
INCOME = Continuous("income", "double", 0.0, 100.0, None)
HOUSING = Categorical("housing", "string", ("own", "rent"))


def faults(rejects: Rejects, schema: TableSchema) -> list[tuple[str, str] | None]:
    """(reason, column) of each rejected row, None for a good one."""
    return [
        (REJECT_REASONS[reason], schema.features[feature].name) if reason >= 0 else None
        for reason, feature in zip(rejects.reason.tolist(), rejects.feature.tolist(), strict=True)
    ]


def encode_column(feature: Continuous | Categorical, values: pa.Array) -> tuple[Encoded, Rejects]:
    return encode(pa.table({feature.name: values}), schema_of(feature))


@given(valid_rows())
def test_every_valid_row_comes_back_as_it_was(rows: Rows):
    encoded, rejects = encode(rows.table, rows.schema)
    decoded = decode(encoded, rows.schema, rows.types)
    assert rejects.good.all()
    assert {name: column.to_pylist() for name, column in decoded.items()} == rows.table.to_pydict()


@given(valid_rows())
def test_decoded_columns_hold_the_type_of_the_table(rows: Rows):
    encoded, _ = encode(rows.table, rows.schema)
    decoded = decode(encoded, rows.schema, rows.types)
    for column in rows.columns:
        actual = decoded[column.feature.name].type
        assert (actual.value_type if pa.types.is_dictionary(actual) else actual) == column.arrow_type


@given(valid_rows())
def test_codes_are_positions_in_the_vocabulary_and_values_are_raw(rows: Rows):
    encoded, _ = encode(rows.table, rows.schema)
    categorical = [c for c in rows.columns if isinstance(c.feature, Categorical)]
    continuous = [c for c in rows.columns if isinstance(c.feature, Continuous)]
    for position, column in enumerate(categorical):
        expected = [column.feature.categories.index(value) for value in column.values]
        assert encoded.codes[:, position].tolist() == expected
    for position, column in enumerate(continuous):
        assert encoded.values[:, position].tolist() == [float(value) for value in column.values]


@given(valid_rows())
def test_a_record_batch_encodes_like_a_table(rows: Rows):
    batch = rows.table.combine_chunks().to_batches()
    assume(batch)
    from_batch, _ = encode(batch[0], rows.schema)
    from_table, _ = encode(rows.table, rows.schema)
    np.testing.assert_array_equal(from_batch.values, from_table.values)
    np.testing.assert_array_equal(from_batch.codes, from_table.codes)


def test_an_empty_table_encodes_and_decodes_to_no_rows():
    schema = schema_of(AGE, HOUSING)
    table = pa.table({"age": pa.array([], pa.int64()), "housing": pa.array([], pa.string())})
    encoded, rejects = encode(table, schema)
    decoded = decode(encoded, schema, {"age": pa.int64(), "housing": pa.string()})
    assert len(encoded) == 0
    assert rejects.counts() == {}
    assert {name: len(column) for name, column in decoded.items()} == {"age": 0, "housing": 0}


def test_a_schema_without_numbers_has_a_value_matrix_without_columns():
    encoded, _ = encode_column(HOUSING, pa.array(["rent", "own"]))
    assert encoded.values.shape == (2, 0)
    assert to_unit(encoded.values, schema_of(HOUSING)).shape == (2, 0)
    assert from_unit(np.empty((2, 0), np.float32), schema_of(HOUSING)).shape == (2, 0)


def test_a_schema_without_categories_has_a_code_matrix_without_columns():
    encoded, _ = encode_column(INCOME, pa.array([1.0, 2.0]))
    assert encoded.codes.shape == (2, 0)
    assert len(encoded) == 2


def test_null_is_rejected_in_numbers_and_categories():
    schema = schema_of(INCOME, HOUSING)
    table = pa.table({"income": pa.array([1.0, None, 2.0]), "housing": pa.array(["own", "own", None])})
    _, rejects = encode(table, schema)
    assert faults(rejects, schema) == [None, ("null", "income"), ("null", "housing")]


def test_null_is_rejected_in_integers_and_decimals():
    _, rejects = encode_column(number(pa.uint8(), 0.0, 9.0, Grid(1, 0)), pa.array([1, None], pa.uint8()))
    assert rejects.counts() == {"null": 1}
    prices = pa.array([decimal.Decimal("1.50"), None], pa.decimal128(5, 2))
    _, rejects = encode_column(number(prices.type, 0.0, 9.0, Grid(1, 2)), prices)
    assert rejects.counts() == {"null": 1}


def test_null_is_rejected_in_dictionary_columns():
    _, rejects = encode_column(HOUSING, pa.array(["own", None, "rent"]).dictionary_encode())
    assert faults(rejects, schema_of(HOUSING)) == [None, ("null", "housing"), None]


def test_a_dictionary_entry_that_is_null_counts_as_null():
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["own", None]))
    _, rejects = encode_column(HOUSING, column)
    assert faults(rejects, schema_of(HOUSING)) == [None, ("null", "housing")]


@pytest.mark.parametrize("width", [np.float16, np.float32, np.float64])
def test_nan_and_infinity_are_rejected_with_their_own_reasons(width: type):
    values = pa.array(np.array([1.0, math.nan, math.inf, -math.inf], dtype=width))
    feature = number(values.type, 0.0, 100.0)
    _, rejects = encode_column(feature, values)
    assert faults(rejects, schema_of(feature)) == [None, ("nan", "x"), ("infinite", "x"), ("infinite", "x")]


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_an_unseen_category_is_rejected(as_dictionary: bool):
    column = pa.array(["own", "yurt", "rent"])
    _, rejects = encode_column(HOUSING, column.dictionary_encode() if as_dictionary else column)
    assert faults(rejects, schema_of(HOUSING)) == [None, ("unseen_category", "housing"), None]


def test_unseen_integer_and_boolean_categories_are_rejected():
    terms = Categorical("term", "int64", (12, 24))
    _, rejects = encode_column(terms, pa.array([12, 13, 24]))
    assert faults(rejects, schema_of(terms)) == [None, ("unseen_category", "term"), None]


def test_values_outside_the_declared_bounds_are_rejected_and_the_bounds_themselves_are_not():
    _, rejects = encode_column(AGE, pa.array([0, 120, -1, 121]))
    out = ("out_of_domain", "age")
    assert faults(rejects, schema_of(AGE)) == [None, None, out, out]


@pytest.mark.parametrize("beyond", [LARGEST_EXACT + 1, LARGEST_EXACT + 2, -LARGEST_EXACT - 1, 2**62])
def test_integers_beyond_what_a_double_holds_exactly_are_rejected(beyond: int):
    feature = number(pa.int64(), -(2.0**53), 2.0**53, Grid(1, 0))
    _, rejects = encode_column(feature, pa.array([LARGEST_EXACT, beyond, -LARGEST_EXACT]))
    assert faults(rejects, schema_of(feature)) == [None, ("out_of_domain", "x"), None]


def test_unsigned_integers_beyond_what_a_double_holds_exactly_are_rejected():
    feature = number(pa.uint64(), 0.0, 2.0**53, Grid(1, 0))
    _, rejects = encode_column(feature, pa.array([5, 2**64 - 1], pa.uint64()))
    assert faults(rejects, schema_of(feature)) == [None, ("out_of_domain", "x")]


@given(sign=st.sampled_from([-1, 1]), ranges=st.floats(1.1e6, 1e300))
def test_values_more_than_a_million_training_ranges_away_are_rejected(sign: int, ranges: float):
    _, rejects = encode_column(INCOME, pa.array([50.0, sign * ranges * 100.0, sign * 0.9e8]))
    assert faults(rejects, schema_of(INCOME)) == [None, ("out_of_domain", "income"), None]


def test_the_first_faulty_feature_in_schema_order_is_named():
    schema = schema_of(HOUSING, AGE, INCOME)
    table = pa.table(
        {
            "income": pa.array([math.nan, math.nan, math.nan, None]),
            "age": pa.array([50, 500, 500, 50]),
            "housing": pa.array(["rent", "rent", "yurt", None]),
        }
    )
    _, rejects = encode(table, schema)
    assert faults(rejects, schema) == [
        ("nan", "income"),
        ("out_of_domain", "age"),
        ("unseen_category", "housing"),
        ("null", "housing"),
    ]


@given(st.lists(st.sampled_from(["good", "null", "nan", "infinite", "unseen_category", "out_of_domain"])))
def test_rows_without_faults_are_untouched_by_their_neighbours(plan: list[str]):
    incomes = {"nan": math.nan, "infinite": math.inf, "null": None}
    table = pa.table(
        {
            "age": pa.array([999 if fault == "out_of_domain" else 40 for fault in plan], pa.int64()),
            "income": pa.array([incomes.get(fault, 12.5) for fault in plan], pa.float64()),
            "housing": pa.array(["yurt" if fault == "unseen_category" else "rent" for fault in plan], pa.string()),
        }
    )
    encoded, rejects = encode(table, schema_of(AGE, INCOME, HOUSING))
    good = [row for row, fault in enumerate(plan) if fault == "good"]
    assert np.flatnonzero(rejects.good).tolist() == good
    assert encoded.values[good].tolist() == [[40.0, 12.5]] * len(good)
    assert encoded.codes[good].tolist() == [[1]] * len(good)
    assert rejects.counts() == {fault: plan.count(fault) for fault in REJECT_REASONS if fault in plan}


def test_the_training_range_becomes_zero_to_one():
    units = to_unit(np.array([[18.0], [54.0], [90.0]]), schema_of(AGE))
    assert units.dtype == np.float32
    assert units[:, 0].tolist() == [0.0, 0.5, 1.0]


FURTHEST = {"int32": 2**24, "int64": 2**46, "double": 2**46, "float": 2**21, "halffloat": 2**9}
GRID_TYPES = [pa.int32(), pa.int64(), pa.float64(), pa.float32(), pa.float16()]


@pytest.mark.parametrize("arrow_type", GRID_TYPES, ids=str)
@given(data=st.data())
def test_scaling_there_and_back_keeps_values_on_the_grid(arrow_type: pa.DataType, data: st.DataObject):
    feature, first, last = data.draw(grid_features(arrow_type, FURTHEST[str(arrow_type)], 2**22))
    position = data.draw(st.sampled_from([first, last]) | st.integers(first, last))
    value = grid_value(position, feature.grid, arrow_type)
    schema = schema_of(feature)
    assert from_unit(to_unit(np.array([[value]]), schema), schema).tolist() == [[value]]


@pytest.mark.parametrize("arrow_type", GRID_TYPES, ids=str)
@given(data=st.data())
def test_whatever_the_network_says_becomes_a_grid_value_inside_the_training_range(
    arrow_type: pa.DataType, data: st.DataObject
):
    feature, _, _ = data.draw(grid_features(arrow_type, FURTHEST[str(arrow_type)], 2**30))
    unit = data.draw(st.floats(-3, 4, width=32))
    [[value]] = from_unit(np.array([[unit]], np.float32), schema_of(feature)).tolist()
    assert feature.lower <= value <= feature.upper
    assert lies_on_grid(value, feature.grid, arrow_type)


@pytest.mark.parametrize("arrow_type", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@given(unit=st.floats(-3, 4, width=32))
def test_numbers_without_a_grid_stay_inside_the_training_range_and_the_type(arrow_type: pa.DataType, unit: float):
    feature = number(arrow_type, -1.5, 1000.5)
    [[value]] = from_unit(np.array([[unit]], np.float32), schema_of(feature)).tolist()
    assert -1.5 <= value <= 1000.5
    assert pa.array([value], arrow_type).to_pylist() == [value]


@pytest.mark.parametrize("arrow_type", INT_TYPES, ids=str)
@given(data=st.data())
def test_integers_out_of_the_network_are_whole_and_fit_their_type(arrow_type: pa.DataType, data: st.DataObject):
    lowest, highest = int_limits(arrow_type)
    lower = data.draw(st.integers(lowest, highest - 1))
    upper = data.draw(st.integers(lower + 1, highest))
    step = data.draw(st.sampled_from([1, 2, 7, 50, 100, 150]))
    assume(math.ceil(lower / step) <= math.floor(upper / step))
    feature = number(arrow_type, float(lower), float(upper), Grid(step, 0))
    [[value]] = from_unit(np.array([[data.draw(st.floats(0, 1, width=32))]], np.float32), schema_of(feature)).tolist()
    assert value == round(value)
    assert int(value) % step == 0
    assert lowest <= value <= highest


@pytest.mark.parametrize(
    ("arrow_type", "lower", "upper"),
    [(pa.float32(), 0.0, 9.99), (pa.float32(), 1.01, 99.99), (pa.float64(), 0.07, 1234567.89)],
    ids=str,
)
def test_the_ends_of_the_training_range_can_be_reached(arrow_type: pa.DataType, lower: float, upper: float):
    lower, upper = pa.array([lower, upper], arrow_type).to_pylist()
    feature = number(arrow_type, lower, upper, Grid(1, 2))
    assert from_unit(np.array([[0.0], [1.0]], np.float32), schema_of(feature)).tolist() == [[lower], [upper]]


@pytest.mark.parametrize(
    ("arrow_type", "lower", "upper", "grid"),
    [
        (pa.int16(), -300.0, 300.0, Grid(1, 0)),
        (pa.float16(), -1.5, 100.0, None),
        (pa.float32(), 0.0, 1.5, None),
        (pa.float64(), 0.0, 1.0, Grid(1, 2)),
        (pa.decimal128(9, 2), 0.0, 1234567.0, Grid(1, 2)),
        (pa.decimal128(12, 8), 0.0, 1000.0, Grid(1, 8)),
    ],
    ids=str,
)
@given(unit=st.floats(0, 1, width=32))
def test_generated_values_are_the_values_that_get_written(arrow_type, lower, upper, grid, unit: float):
    feature = number(arrow_type, lower, upper, grid)
    schema = schema_of(feature)
    generated = from_unit(np.array([[unit]], np.float32), schema)
    written = decode(Encoded(generated, np.empty((1, 0), np.int64)), schema, {"x": arrow_type})
    read_again, _ = encode(pa.table(written), schema)
    assert read_again.values.tolist() == generated.tolist()


@pytest.mark.parametrize("dictionary", [False, True])
def test_labels_beyond_a_narrower_column_are_never_met_there(dictionary: bool) -> None:
    column = pa.array([5, None, -3, 7], pa.int8())
    codes = codes_of(column.dictionary_encode() if dictionary else column, (300, 5, -3, -1000))
    assert codes.tolist() == [1, -1, 2, -1]


@pytest.mark.parametrize("index", [np.array([3, 0, 3]), np.array([True, False, False, True]), slice(1, 3)], ids=str)
def test_chosen_rows_are_those_of_plain_indexing_and_stay_column_major(index) -> None:
    whole = Encoded(np.asfortranarray(np.arange(8.0).reshape(4, 2)), np.asfortranarray(np.arange(12).reshape(4, 3)))
    part = whole.take(index)
    np.testing.assert_array_equal(part.values, whole.values[index])
    np.testing.assert_array_equal(part.codes, whole.codes[index])
    assert part.values.strides[0] == part.codes.strides[0] == 8


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(IndexError, match="a mask of 1 for 4 rows"):
        Encoded(np.zeros((4, 2)), np.zeros((4, 3), dtype=np.int64)).take(np.array([True]))


@pytest.mark.parametrize("places", [np.array([3, 0]), np.array([True, False, False, True])], ids=str)
def test_put_overwrites_the_chosen_rows_alone(places) -> None:
    whole = Encoded(np.zeros((4, 2)), np.zeros((4, 3), dtype=np.int64))
    whole.put(places, Encoded(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1, 2, 3], [4, 5, 6]])))
    values, codes = np.zeros((4, 2)), np.zeros((4, 3))
    values[places], codes[places] = [[1, 2], [3, 4]], [[1, 2, 3], [4, 5, 6]]
    np.testing.assert_array_equal(whole.values, values)
    np.testing.assert_array_equal(whole.codes, codes)
