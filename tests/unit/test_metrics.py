"""Metrics against loops over rows."""

import numpy as np
import pyarrow as pa
import pytest

from ray_cfnet.config import Selection
from ray_cfnet.model.metrics import EvaluationSums, Manifold, distances, num_changed, selection_score
from ray_cfnet.tables.codec import Encoded, encode
from ray_cfnet.tables.schema import TableSchema
from tests.unit.helpers import people, people_schema


@pytest.fixture(scope="module")
def schema() -> TableSchema:
    return people_schema()


def encoded(schema: TableSchema, num_rows: int, seed: int) -> Encoded:
    return encode(people(num_rows, seed), schema)[0]


def one_hot_row(rows: Encoded, index: int, schema: TableSchema) -> list[float]:
    row = [(value - f.lower) / f.span for value, f in zip(rows.values[index], schema.continuous, strict=True)]
    for code, feature in zip(rows.codes[index], schema.categorical, strict=True):
        row += [float(position == code) for position in range(len(feature.categories))]
    return row


def test_distance_is_l1_of_one_hot_rows_divided_by_their_width(schema: TableSchema) -> None:
    rows, others = encoded(schema, 40, 1), encoded(schema, 40, 2)
    for index, distance in enumerate(distances(rows, others, schema)):
        a, b = one_hot_row(rows, index, schema), one_hot_row(others, index, schema)
        assert distance == pytest.approx(sum(abs(x - y) for x, y in zip(a, b, strict=True)) / len(a))


def test_num_changed_counts_raw_features(schema: TableSchema) -> None:
    first, second = people(40, 1), people(40, 2)
    rows, others = encode(first, schema)[0], encode(second, schema)[0]
    names = schema.feature_names
    expected = [
        sum(a[name] != b[name] for name in names)
        for a, b in zip(first.select(names).to_pylist(), second.select(names).to_pylist(), strict=True)
    ]
    assert num_changed(rows, others).tolist() == expected


def test_manifold_distance_is_that_of_the_nearest_reference_row(schema: TableSchema) -> None:
    reference, rows = encoded(schema, 300, 1), encoded(schema, 30, 2)
    references = np.array([one_hot_row(reference, i, schema) for i in range(len(reference))])
    expected = [np.abs(references - one_hot_row(rows, i, schema)).sum(axis=1).min() for i in range(len(rows))]
    np.testing.assert_allclose(Manifold(reference, schema).distances(rows), expected, rtol=1e-4, atol=1e-5)


def test_a_training_row_lies_on_the_manifold(schema: TableSchema) -> None:
    rows = encoded(schema, 50, 1)
    assert Manifold(rows, schema).distances(rows).max() == 0


def test_sums_of_any_cut_merge_to_the_sums_of_the_whole(schema: TableSchema) -> None:
    rows, cf = encoded(schema, 60, 1), encoded(schema, 60, 2)
    rng = np.random.default_rng(0)
    valid, given = rng.random(60) < 0.7, rng.random(60) < 0.9
    manifold = Manifold(encoded(schema, 100, 3), schema)

    whole = EvaluationSums(rows=60)
    whole.cf.add(rows, cf, valid, given, schema, manifold)
    merged = EvaluationSums()
    for cut in (slice(0, 13), slice(13, 13), slice(13, 60)):
        part = EvaluationSums(rows=len(range(60)[cut]))
        part.cf.add(rows.take(cut), cf.take(cut), valid[cut], given[cut], schema, manifold)
        merged.merge(part)
    assert merged.numbers() == pytest.approx(whole.numbers())
    assert whole.summary()["cf"]["validity"] == pytest.approx((valid & given).sum() / 60)


def test_metrics_without_rows_are_unknown_not_zero() -> None:
    summary = EvaluationSums().summary()
    assert summary["accuracy"] is None
    assert summary["cf"]["validity"] is None


def test_better_validity_beats_better_accuracy_beats_better_proximity() -> None:
    def score(validity: float, accuracy: float, proximity: float) -> float:
        cf = {"validity": validity, "proximity": proximity}
        return selection_score({"accuracy": accuracy, "cf": cf, "fcf": {"validity": 1.0}}, Selection())

    assert score(0.99, 0.80, 0.20) > score(0.98, 0.83, 0.20)
    assert score(0.99, 0.82, 0.20) > score(0.99, 0.80, 0.17)
    assert score(0.99, 0.80, 0.10) > score(0.99, 0.80, 0.20)
    assert score(1.0, 0.8, 0.1) == score(0.9985, 0.8, 0.1)


def test_tables_of_other_types_have_the_same_distance(schema: TableSchema) -> None:
    table = people(20, 1)
    wider = table.set_column(1, "age", table.column("age").cast(pa.int64()))
    assert distances(encode(table, schema)[0], encode(wider, schema)[0], schema).max() == 0
