"""Metrics against loops over rows."""

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from ray_cfnet.config import Selection
from ray_cfnet.model.metrics import (
    ChangeSums,
    EvaluationSums,
    Manifold,
    distances,
    num_changed,
    second_order,
    selection_score,
)
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


def test_the_nearest_reference_row_is_named_by_its_position(schema: TableSchema) -> None:
    reference, rows = encoded(schema, 300, 1), encoded(schema, 30, 2)
    found, positions = Manifold(reference, schema).nearest(rows)
    chosen = reference.take(positions)
    for index in range(len(rows)):
        a, b = one_hot_row(rows, index, schema), one_hot_row(chosen, index, schema)
        assert found[index] == pytest.approx(sum(abs(x - y) for x, y in zip(a, b, strict=True)), abs=1e-5)


def test_many_rows_and_references_give_what_few_at_a_time_give(schema: TableSchema) -> None:
    reference, rows = encoded(schema, 5000, 1), encoded(schema, 600, 2)
    halves = [Manifold(reference.take(half), schema) for half in (slice(0, 2500), slice(2500, None))]
    expected = np.minimum(*(half.distances(rows) for half in halves))
    np.testing.assert_allclose(Manifold(reference, schema).distances(rows), expected, atol=1e-5)


def test_manifold_works_without_numbers_and_without_categories() -> None:
    table = people(50)
    for names in (["age", "rate"], ["grade", "gender"]):
        features = tuple(f for f in people_schema().features if f.name in names)
        some = replace(people_schema(), features=features)
        rows = encode(table, some)[0]
        assert Manifold(rows.take(slice(0, 30)), some).distances(rows.take(slice(0, 30))).max() == 0
        distance, position = Manifold(rows.take(slice(0, 30)), some).nearest(rows.take(slice(30, 50)))
        width = len(one_hot_row(rows, 0, some))
        apart = distances(rows.take(slice(30, 50)), rows.take(position), some) * width
        np.testing.assert_allclose(distance, apart, atol=1e-5)


def test_second_order_takes_back_small_number_changes_and_keeps_categories(schema: TableSchema) -> None:
    rows, cf = encoded(schema, 80, 1), encoded(schema, 80, 2)
    kept = second_order(rows, cf, 2.0)
    for index in range(80):
        for column in range(len(schema.continuous)):
            x, changed = float(rows.values[index, column]), float(cf.values[index, column])
            apart = abs(Decimal(repr(x)) - Decimal(repr(changed)))
            assert kept.values[index, column] == (x if apart <= 2 else changed)
    assert (kept.codes == cf.codes).all()
    assert (kept.values != cf.values).any()


def test_a_change_of_exactly_the_threshold_is_small_in_decimals() -> None:
    x = np.arange(0, 100) / 10
    rows, cf = (
        Encoded(x[:, None], np.empty((100, 0), int)),
        Encoded((x + 0.3).round(1)[:, None], np.empty((100, 0), int)),
    )
    assert (np.abs(rows.values - cf.values) > 0.3).any()  # as doubles some are further
    assert (second_order(rows, cf, 0.3).values == rows.values).all()
    assert (second_order(rows, cf, 0.29).values == cf.values).all()


def test_change_sums_are_those_of_a_loop(schema: TableSchema) -> None:
    rows, answers = encoded(schema, 40, 1), encoded(schema, 40, 2)
    rng = np.random.default_rng(0)
    valid, given = rng.random(40) < 0.7, rng.random(40) < 0.8
    sums = ChangeSums()
    sums.add(rows, answers, valid, given, schema)
    found = sums.summary(schema)
    picked = [i for i in range(40) if given[i]]
    l1 = [
        sum(abs(a - b) for a, b in zip(one_hot_row(rows, i, schema), one_hot_row(answers, i, schema), strict=True))
        for i in picked
    ]
    width = len(one_hot_row(rows, 0, schema))
    assert found["validity"] == pytest.approx(sum(valid[i] for i in picked) / 40)
    assert found["l1"] == pytest.approx(sum(l1) / len(picked))
    assert found["proximity"] == pytest.approx(sum(l1) / len(picked) / width)
    assert found["num_changed"] == pytest.approx(num_changed(rows, answers)[given].mean())
    assert found["sparsity"] == pytest.approx(num_changed(rows, answers)[given].mean() / 6)


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
