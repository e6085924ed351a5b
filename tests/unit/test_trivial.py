"""Trivial answers against loops over all pairs."""

import numpy as np
import pytest

from ray_cfnet.model.metrics import distances
from ray_cfnet.model.trivial import TrivialAnswers, mean_distances
from ray_cfnet.tables.codec import Encoded, encode
from ray_cfnet.tables.schema import TableSchema
from tests.unit.helpers import people, people_schema


@pytest.fixture(scope="module")
def schema() -> TableSchema:
    return people_schema()


def encoded(schema: TableSchema, num_rows: int, seed: int) -> Encoded:
    return encode(people(num_rows, seed), schema)[0]


def one(rows: Encoded, index: int, times: int) -> Encoded:
    return rows.take(np.full(times, index))


def test_mean_distances_are_the_means_over_all_pairs(schema: TableSchema) -> None:
    candidates, rows = encoded(schema, 60, 1), encoded(schema, 90, 2)
    width = 3 + sum(len(f.categories) for f in schema.categorical)
    expected = [distances(one(candidates, i, 90), rows, schema).mean() * width for i in range(60)]
    np.testing.assert_allclose(mean_distances(candidates, rows, schema), expected)


def test_the_constant_is_the_candidate_nearest_on_average_to_those_who_ask(schema: TableSchema) -> None:
    reference = encoded(schema, 120, 1)
    predicted = np.arange(120) % 2
    trivial = TrivialAnswers(reference, predicted, 1 - predicted, schema)
    answers, given = trivial.constant(np.array([0, 1, 0]))
    assert given.all()
    for label, answer in ((0, 0), (1, 1), (0, 2)):
        asking = reference.take(predicted == label)
        candidates = np.flatnonzero(predicted != label)
        costs = [distances(one(reference, i, len(asking)), asking, schema).mean() for i in candidates]
        best = candidates[int(np.argmin(costs))]
        assert answers.values[answer].tolist() == reference.values[best].tolist()
        assert answers.codes[answer].tolist() == reference.codes[best].tolist()


def test_the_nearest_is_the_nearest_row_of_the_desired_class(schema: TableSchema) -> None:
    reference, rows = encoded(schema, 200, 1), encoded(schema, 40, 2)
    predicted = np.arange(200) % 3
    desired = np.arange(40) % 3
    trivial = TrivialAnswers(reference, predicted, np.zeros(200, dtype=np.int64), schema)
    answers, given = trivial.nearest(rows, desired)
    assert given.all()
    found = distances(rows, answers, schema)
    for index in range(40):
        candidates = reference.take(predicted == desired[index])
        assert found[index] == pytest.approx(distances(one(rows, index, len(candidates)), candidates, schema).min())


def test_a_class_without_reference_rows_gets_no_answer(schema: TableSchema) -> None:
    reference, rows = encoded(schema, 50, 1), encoded(schema, 4, 2)
    predicted = np.zeros(50, dtype=np.int64)
    trivial = TrivialAnswers(reference, predicted, 1 - predicted, schema)
    assert not trivial.constant(np.zeros(4, dtype=np.int64))[1].any()
    assert trivial.nearest(rows, np.array([0, 1, 0, 1]))[1].tolist() == [True, False, True, False]
