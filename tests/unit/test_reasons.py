"""Explained rows in words."""

from typing import Any

import pytest

from ray_cfnet.explain.reasons import sentence
from tests.unit.helpers import people, people_schema


def row(**changes: Any) -> dict[str, Any]:
    values = people(1).to_pylist()[0]
    told = {f"fcf_{name}": values[name] for name in people_schema().feature_names}
    return {**values, **told, "pred_label": 0, "pred_proba": 0.8, "row_status": "ok", "fcf_proba": 0.6, **changes}


def test_the_largest_change_comes_first_with_its_direction() -> None:
    values = row(income=2_000, fcf_income=90_000, age=30, fcf_age=31, housing="rent", fcf_housing="own")
    assert sentence(values, people_schema(), 1) == (
        "id 0: predicted approved is 0 (80%). To get 1 (60%): raise income from 2,000 to 90,000, "
        "change housing from rent to own and raise age from 30 to 31."
    )


def test_more_than_four_changes_are_summed_up() -> None:
    values = row(
        income=100, fcf_income=90_000, age=30, fcf_age=31, housing="rent", fcf_housing="own",
        rate=9.0, fcf_rate=1.0, grade="low", fcf_grade="high", gender="f", fcf_gender="m",
    )  # fmt: skip
    assert sentence(values, people_schema(), 1).endswith(" and 2 smaller changes.")


@pytest.mark.parametrize(("status", "words"), [("already_desired", "already"), ("no_feasible_cf", "No change")])
def test_a_row_without_counterfactual_says_why(status: str, words: str) -> None:
    assert words in sentence(row(row_status=status, fcf_proba=None), people_schema(), 1)
