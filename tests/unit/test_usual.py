"""How usual a combination is: against a count by hand, and against what shuffling does to a table."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.schema import Categorical, Grid
from ray_cfnet.tables.usual import NUM_BINS, Usual
from tests.unit.strategies import number, schema_of

SCHEMA = schema_of(
    number(pa.float64(), 0.0, 100.0, Grid(1, 0)),
    Categorical("job", "string", ("clerk", "cook", "judge")),
    Categorical("town", "string", ("big", "small")),
)


def table(num_rows: int, seed: int) -> Encoded:
    """Income follows from the job; the town from nothing."""
    rng = np.random.default_rng(seed)
    job = rng.integers(0, 3, num_rows)
    income = np.rint(20 + 25 * job + rng.normal(0, 3, num_rows))
    return Encoded(income[:, None], np.stack([job, rng.integers(0, 2, num_rows)], axis=1))


def by_hand(rows: Encoded, usual: Usual, row: int) -> float:
    """The probability of one row of the table it was counted on, from plain counts."""
    bins = usual.bins(rows).T.tolist()
    total = 0.0
    for feature, parent in enumerate(usual.parents.tolist()):
        size = int(usual.sizes[feature])
        alike = [other for other in bins if parent < 0 or other[parent] == bins[row][parent]]
        same = sum(other[feature] == bins[row][feature] for other in alike)
        total += math.log((same + 0.1) / (len(alike) + 0.1 * size))
    return total


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), num_rows=st.integers(3, 60))
def test_log_probabilities_are_those_of_plain_counts(seed: int, num_rows: int) -> None:
    rows = table(num_rows, seed)
    usual = Usual.counted(rows, SCHEMA)
    found = usual.log_probability(usual.bins(rows))
    for row in range(0, num_rows, 7):
        assert found[row] == pytest.approx(by_hand(rows, usual, row), rel=1e-4)


def test_features_are_counted_with_the_one_that_tells_most_about_them() -> None:
    usual = Usual.counted(table(3_000, 0), SCHEMA)
    assert usual.parents[1] == 0  # job with income
    assert sorted(usual.sizes.tolist()) == [2, 3, NUM_BINS]


def test_what_does_not_go_together_is_less_usual() -> None:
    rows = table(3_000, 0)
    usual = Usual.counted(rows, SCHEMA)
    torn = Encoded(rows.values, np.roll(rows.codes, 1, axis=0))
    own, other = (usual.log_probability(usual.bins(some)) for some in (rows, torn))
    assert own.mean() > other.mean() + 1
    assert (own < usual.limit(0.1)).mean() == pytest.approx(0.1, abs=0.03)
    assert (other < usual.limit(0.1)).mean() > 0.4


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_gain_of_a_change_is_the_difference_it_makes(seed: int) -> None:
    usual = Usual.counted(table(200, seed), SCHEMA)
    now, new = usual.bins(table(50, seed + 1)), usual.bins(table(50, seed + 2))
    gains = usual.gains(now, new)
    for feature in range(3):
        changed = now.copy()
        changed[feature] = new[feature]
        expected = usual.log_probability(changed) - usual.log_probability(now)
        np.testing.assert_allclose(gains[feature], expected, atol=1e-4)


def test_rare_values_of_a_large_category_are_one() -> None:
    schema = schema_of(Categorical("zip", "string", tuple(f"{i:04}" for i in range(3_000))), SCHEMA.categorical[0])
    rng = np.random.default_rng(0)
    codes = np.stack([np.minimum(rng.zipf(1.5, 5_000) - 1, 2_999), rng.integers(0, 3, 5_000)], axis=1)
    rows = Encoded(np.empty((5_000, 0)), codes)
    usual = Usual.counted(rows, schema)
    assert usual.sizes.tolist() == [50, 3]
    counts = np.bincount(codes[:, 0], minlength=3_000)
    assert usual.code_bins[counts.argmax()] == 0
    assert (usual.bins(rows)[0] == 49).sum() == 5_000 - np.sort(counts)[::-1][:49].sum()
    never_seen = Encoded(np.empty((1, 0)), np.array([[2_998, 0]]))
    assert np.isfinite(usual.log_probability(usual.bins(never_seen))).all()
