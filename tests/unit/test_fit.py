import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet import config
from ray_cfnet.errors import InputError
from ray_cfnet.tables.codec import encode
from ray_cfnet.tables.fit import TableStats, check_types, fit_schema
from ray_cfnet.tables.schema import Categorical, Grid, TableSchema
from tests.unit.strategies import fitted_rows

CONTINUOUS = {"kind": "continuous"}
CATEGORICAL = {"kind": "categorical"}


def declared(**features: dict) -> config.Table:
    return config.Table.model_validate({"path": "loans", "target": "decision", "features": features})


def with_target(columns: dict[str, pa.Array]) -> pa.Table:
    num_rows = len(next(iter(columns.values())))
    return pa.table({**columns, "decision": pa.array([row % 2 for row in range(num_rows)])})


def fit(table: pa.Table, features: config.Table, max_reject_fraction: float = 0.0) -> TableSchema:
    stats = TableStats()
    stats.add(table, features, "part-0.parquet")
    return fit_schema(features, table.schema, stats, max_reject_fraction)


def fit_column(values: pa.Array, feature: dict, max_reject_fraction: float = 0.0):
    return fit(with_target({"x": values}), declared(x=feature), max_reject_fraction).features[0]


def fault_of(values: pa.Array, feature: dict, max_reject_fraction: float = 0.0) -> str:
    with pytest.raises(InputError) as error:
        fit_column(values, feature, max_reject_fraction)
    return str(error.value)


def type_fault_of(arrow_type: pa.DataType, feature: dict) -> str:
    columns = pa.schema([("x", arrow_type), ("decision", pa.int64())])
    with pytest.raises(InputError) as error:
        check_types(declared(x=feature), columns, "loans/part-0.parquet")
    return str(error.value)


ALL_KINDS = declared(count=CONTINUOUS, price=CONTINUOUS, narrow=CONTINUOUS, free=CONTINUOUS, town=CATEGORICAL)

ALL_TYPES = pa.schema(
    [
        ("count", pa.int32()),
        ("price", pa.float64()),
        ("narrow", pa.float32()),
        ("free", pa.float64()),
        ("town", pa.string()),
        ("decision", pa.bool_()),
    ]
)


def outcome(stats: TableStats) -> TableSchema | str:
    try:
        return fit_schema(ALL_KINDS, ALL_TYPES, stats, 0.0)
    except InputError as error:
        return str(error)


@given(rows=st.lists(fitted_rows, min_size=2, max_size=12), data=st.data())
def test_any_cut_of_a_table_gives_the_schema_of_one_pass(rows: list[dict], data: st.DataObject):
    table = pa.Table.from_pylist(rows, schema=ALL_TYPES)
    whole = TableStats()
    whole.add(table, ALL_KINDS, "file")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = TableStats()
        part.add(table.slice(start, stop - start), ALL_KINDS, "file")
        parts.append(part)
    merged = TableStats()
    for part in data.draw(st.permutations(parts)):
        merged.merge(part)
    assert outcome(merged) == outcome(whole)
    assert merged.num_rows == len(rows)


@pytest.mark.parametrize("values", [[1e-13, 0.25, 3.5], [5.5e-17, 0.123456, 1.0]])
def test_a_number_almost_zero_gives_the_same_grid_for_any_cut(values: list[float]):
    features = declared(x=CONTINUOUS)
    table = with_target({"x": pa.array(values)})
    merged = TableStats()
    for row in range(len(values)):
        merged.add(table.slice(row, 1), features, "file")
    assert fit_schema(features, table.schema, merged, 0.0) == fit(table, features)


def test_range_vocabulary_and_classes_are_those_of_the_rows():
    table = pa.table({"age": [40, 18, 90], "town": ["b", "a", "b"], "decision": ["yes", "no", "yes"]})
    schema = fit(table, declared(age=CONTINUOUS, town=CATEGORICAL))
    age, town = schema.features
    assert (age.arrow_type, age.lower, age.upper, age.grid) == ("int64", 18.0, 90.0, Grid(1, 0))
    assert (town.arrow_type, town.categories, town.ordered) == ("string", ("a", "b"), False)
    assert (schema.target.name, schema.target.classes) == ("decision", ("no", "yes"))


def test_features_keep_the_order_of_the_configuration():
    table = with_target({"a": pa.array([1, 2]), "b": pa.array(["x", "y"]), "c": pa.array([1, 2])})
    assert fit(table, declared(c=CONTINUOUS, b=CATEGORICAL, a=CONTINUOUS)).feature_names == ["c", "b", "a"]


def test_rules_of_the_configuration_reach_the_schema():
    feature = fit_column(
        pa.array([20, 30]), {**CONTINUOUS, "step": 5, "direction": "increase", "bounds": [18, None], "immutable": True}
    )
    assert (feature.grid, feature.direction, feature.bounds) == (Grid(5, 0), "increase", (18.0, None))
    assert feature.immutable


def test_the_declared_order_is_the_vocabulary_also_for_values_not_yet_seen():
    feature = fit_column(pa.array(["low", "high"]), {**CATEGORICAL, "order": ["low", "mid", "high"]})
    assert feature == Categorical("x", "string", ("low", "mid", "high"), ordered=True)


def test_dictionary_columns_fit_like_plain_ones():
    values = pa.array(["b", "a", "b"])
    assert fit_column(values.dictionary_encode(), CATEGORICAL) == fit_column(values, CATEGORICAL)


@pytest.mark.parametrize(
    ("arrow_type", "values", "decimals"),
    [
        (pa.float64(), [19.99, 5.0, 0.1], 2),
        (pa.float64(), [3.0, 4.0], 0),
        (pa.float64(), [0.000001, 2.0], 6),
        (pa.float64(), [1234567.89, 0.01], 2),
        (pa.float64(), [0.1 + 0.2, 1.0], 1),
        (pa.float32(), [19.99, 5.0, 0.1], 2),
        (pa.float32(), [3.0, 4.0], 0),
        (pa.float32(), [12345.67, 0.01], 2),
    ],
    ids=str,
)
def test_the_decimals_seen_in_training_make_the_grid(arrow_type: pa.DataType, values: list[float], decimals: int):
    assert fit_column(pa.array(values, arrow_type), CONTINUOUS).grid == Grid(1, decimals)


@pytest.mark.parametrize("value", [100_000.25, 600_000.5, 1_000_000.5])
def test_large_float32_values_keep_the_decimals_they_have(value: float):
    grid = fit_column(pa.array([0.0, value], pa.float32()), CONTINUOUS).grid
    assert grid is None or value * 10**grid.decimals == round(value * 10**grid.decimals)


def test_numbers_with_endless_decimals_have_no_grid():
    assert fit_column(pa.array([math.pi, math.e]), CONTINUOUS).grid is None


def test_a_decimal_column_has_the_grid_of_its_scale():
    values = pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(9, 2))
    assert fit_column(values, CONTINUOUS).grid == Grid(1, 2)


def test_a_float32_bound_means_the_value_that_the_column_holds():
    feature = fit_column(pa.array([0.1, 0.9], pa.float32()), {**CONTINUOUS, "bounds": [0.1, 0.9]})
    assert feature.bounds == (float(np.float32(0.1)), float(np.float32(0.9)))


def test_a_decimal_bound_accepts_the_value_it_names():
    values = pa.array([Decimal("0.1"), Decimal("0.3")], pa.decimal128(3, 1))
    table = with_target({"x": values})
    schema = fit(table, declared(x={**CONTINUOUS, "bounds": [0.1, 0.3]}))
    assert encode(table, schema)[1].counts() == {}


@pytest.mark.parametrize("values", [pa.array([7, 7]), pa.array([7.5, 7.5]), pa.array([7, None, 7])])
def test_a_constant_number_is_refused(values: pa.Array):
    fault = fault_of(values, CONTINUOUS, 0.5)
    assert "column x: constant" in fault
    assert "remove it from features" in fault


def test_a_constant_category_is_refused():
    fault = fault_of(pa.array(["only", "only"]), CATEGORICAL)
    assert "column x: constant ('only')" in fault
    assert "remove it from features" in fault


def test_a_column_without_a_usable_value_is_refused():
    assert "column x: no usable value" in fault_of(pa.array([None, math.nan], pa.float64()), CONTINUOUS, 0.99)


@pytest.mark.parametrize("batches", [1, 10])
def test_a_hundred_thousand_categories_are_refused(batches: int):
    table = with_target({"x": pa.array([f"id-{n}" for n in range(100_000)])})
    features, stats = declared(x=CATEGORICAL), TableStats()
    for start in range(0, 100_000, 100_000 // batches):
        stats.add(table.slice(start, 100_000 // batches), features, "file")
    with pytest.raises(InputError) as error:
        fit_schema(features, table.schema, stats, 0.0)
    assert "column x: more than 1000 categories" in str(error.value)
    assert "list it under keys" in str(error.value)


def test_a_thousand_categories_are_accepted():
    feature = fit_column(pa.array(range(1000)), CATEGORICAL)
    assert feature.categories == tuple(range(1000))


def test_a_target_with_a_single_class_is_refused():
    table = pa.table({"x": [1, 2], "decision": ["yes", "yes"]})
    with pytest.raises(InputError, match=r"target decision: a single class in the training split \('yes'\)"):
        fit(table, declared(x=CONTINUOUS))


def test_a_target_with_too_many_classes_is_refused():
    table = pa.table({"x": range(101), "decision": range(101)})
    with pytest.raises(InputError, match="target decision: more than 100 classes"):
        fit(table, declared(x=CONTINUOUS))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0, 2.0, None, 3.0], "1 x null"),
        ([1.0, 2.0, math.nan, 3.0], "1 x nan"),
        ([1.0, 2.0, math.inf, 3.0], "1 x infinite"),
    ],
)
def test_unusable_values_over_the_limit_are_refused_with_column_file_and_remedy(values: list, reason: str):
    fault = fault_of(pa.array(values), CONTINUOUS, 0.2)
    assert f"part-0.parquet: column x has {reason} in 4 training rows" in fault
    assert "training.max_reject_fraction to at least 0.25" in fault


def test_unusable_values_up_to_the_limit_are_left_out():
    feature = fit_column(pa.array([1.0, 2.0, None, math.nan]), CONTINUOUS, 0.5)
    assert (feature.lower, feature.upper) == (1.0, 2.0)


def test_nulls_in_categories_and_target_over_the_limit_are_refused():
    table = pa.table({"x": ["a", "b", None], "decision": ["yes", None, "no"]})
    with pytest.raises(InputError) as error:
        fit(table, declared(x=CATEGORICAL))
    assert "column x has 1 x null" in str(error.value)
    assert "column decision has 1 x null" in str(error.value)


def test_values_not_in_the_declared_order_are_refused():
    fault = fault_of(pa.array(["low", "huge"]), {**CATEGORICAL, "order": ["low", "high"]})
    assert "column x: values not in its order: 'huge'; add them to order" in fault


@pytest.mark.parametrize(
    ("values", "order"),
    [
        (pa.array([False, True]), [0, 1]),
        (pa.array([12, 24]), [12, 24, "36"]),
        (pa.array([1, 2], pa.uint8()), [1, 2, 300]),
        (pa.array(["a", "b"]), ["a", "b", 3]),
    ],
    ids=["integers for booleans", "a string among integers", "beyond uint8", "an integer among strings"],
)
def test_an_order_that_the_column_cannot_hold_is_refused(values: pa.Array, order: list):
    assert "column x" in fault_of(values, {**CATEGORICAL, "order": order})


def test_a_fractional_step_on_integers_is_refused():
    assert "column x: step 0.5 is finer" in fault_of(pa.array([1, 2]), {**CONTINUOUS, "step": 0.5})


def test_a_step_wider_than_the_training_range_is_refused():
    fault = fault_of(pa.array([30, 40]), {**CONTINUOUS, "step": 100})
    assert "column x: no multiple of its step 100 lies in its range 30 to 40" in fault


def test_a_step_finer_than_a_decimal_column_is_refused():
    values = pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(9, 2))
    assert "column x: step 0.001" in fault_of(values, {**CONTINUOUS, "step": 0.001})


@pytest.mark.parametrize(
    ("arrow_type", "feature", "remedy"),
    [
        (pa.date32(), CONTINUOUS, "turn it into a number first"),
        (pa.timestamp("us"), CONTINUOUS, "turn it into a number first"),
        (pa.string(), CONTINUOUS, "declare kind: categorical"),
        (pa.bool_(), CONTINUOUS, "declare kind: categorical"),
        (pa.decimal128(16, 2), CONTINUOUS, "cast it to double"),
        (pa.float64(), CATEGORICAL, "declare kind: continuous"),
        (pa.decimal128(9, 2), CATEGORICAL, "declare kind: continuous"),
        (pa.date32(), CATEGORICAL, "cast it to string"),
        (pa.list_(pa.int64()), CATEGORICAL, "cast it to string"),
    ],
    ids=str,
)
def test_a_type_that_does_not_fit_its_kind_is_refused(arrow_type: pa.DataType, feature: dict, remedy: str):
    fault = type_fault_of(arrow_type, feature)
    assert "loans/part-0.parquet" in fault
    assert f"column x is {arrow_type}" in fault
    assert remedy in fault


def test_all_columns_of_the_wrong_type_come_in_one_error():
    columns = pa.schema([("born", pa.date32()), ("town", pa.float64()), ("decision", pa.float64())])
    with pytest.raises(InputError) as error:
        check_types(declared(born=CONTINUOUS, town=CATEGORICAL), columns, "loans")
    for name in ("column born", "column town", "target decision"):
        assert name in str(error.value)


def test_all_faults_of_the_rows_come_in_one_error():
    table = pa.table(
        {
            "fixed": [1, 1],
            "same": ["a", "a"],
            "holes": pa.array([1.0, None]),
            "size": ["low", "huge"],
            "decision": ["yes", "yes"],
        }
    )
    features = declared(
        fixed=CONTINUOUS, same=CATEGORICAL, holes=CONTINUOUS, size={**CATEGORICAL, "order": ["low", "high"]}
    )
    with pytest.raises(InputError) as error:
        fit(table, features)
    for name in ("column fixed", "column same", "column holes", "column size", "target decision"):
        assert name in str(error.value)
