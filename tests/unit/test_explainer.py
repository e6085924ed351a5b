"""Explained tables: every flag is proven again here, from the written values alone."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_cfnet.explain.explainer import BATCH_ROWS, Explainer
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.net import Rows
from ray_cfnet.tables.codec import encode, to_unit
from tests.unit.helpers import people, untrained_bundle

RUN = "run-1"


def explained_people(bundle: Bundle, num_rows: int) -> pa.Table:
    return Explainer(bundle, bundle.desired).explain_table(people(num_rows, seed=7), RUN)[0]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return untrained_bundle()


@pytest.fixture(scope="module")
def explained(bundle: Bundle) -> pa.Table:
    return explained_people(bundle, 2_000)


def predictions(bundle: Bundle, table: pa.Table, prefix: str) -> np.ndarray:
    """Class probabilities of the columns with a prefix, read back as if from storage."""
    names = bundle.schema.feature_names
    features = pa.table({name: table.column(prefix + name) for name in names})
    rows, rejects = encode(features, bundle.schema)
    assert rejects.good.all()
    with torch.no_grad():
        dense = bundle.net.layout.dense(
            Rows(torch.from_numpy(to_unit(rows.values, bundle.schema)), torch.from_numpy(rows.codes.copy()))
        )
        return bundle.net.predict(bundle.net.encode_dense(dense))[1].numpy()


def test_input_columns_pass_through_first_and_unchanged(explained: pa.Table) -> None:
    original = people(2_000, seed=7)
    assert explained.select(original.column_names).equals(original)
    assert explained.column_names[: len(original.column_names)] == original.column_names


def test_added_columns_have_the_contracts_names_and_order(explained: pa.Table, bundle: Bundle) -> None:
    names = bundle.schema.feature_names
    assert explained.column_names[9:] == [
        "pred_label",
        "pred_proba",
        *(f"cf_{name}" for name in names),
        "cf_valid",
        "cf_proba",
        *(f"fcf_{name}" for name in names),
        "fcf_valid",
        "fcf_proba",
        "fcf_num_changed",
        "fcf_distance",
        "reason_1",
        "reason_2",
        "reason_3",
        "reason_4",
        "explanation",
        "row_status",
        "model_id",
        "run_id",
    ]


def test_prediction_is_the_likeliest_class(explained: pa.Table, bundle: Bundle) -> None:
    probabilities = predictions(bundle, explained, "")
    assert explained.column("pred_label").to_pylist() == probabilities.argmax(1).tolist()
    np.testing.assert_allclose(explained.column("pred_proba"), probabilities.max(1), rtol=1e-4)


@pytest.mark.parametrize("prefix", ["cf_", "fcf_"])
def test_validity_holds_for_the_written_values(explained: pa.Table, bundle: Bundle, prefix: str) -> None:
    told = explained.filter(pa.array(explained.column(f"{prefix}proba").is_valid()))
    probabilities = predictions(bundle, told, prefix)
    desired = 1 - np.array(told.column("pred_label"))
    assert told.column(f"{prefix}valid").to_pylist() == (probabilities.argmax(1) == desired).tolist()
    np.testing.assert_allclose(told.column(f"{prefix}proba"), probabilities[np.arange(len(told)), desired], rtol=1e-4)
    assert len(told) > 0


def test_a_row_without_feasible_counterfactual_tells_none(explained: pa.Table) -> None:
    rows = explained.to_pylist()
    assert {row["row_status"] for row in rows} == {"ok", "no_feasible_cf"}
    for row in rows:
        values = [row[name] for name in row if name.startswith("fcf_") and name != "fcf_valid"]
        if row["row_status"] == "ok":
            assert row["fcf_valid"] is True
            assert None not in values
        else:
            assert row["fcf_valid"] is False
            assert set(values) == {None}


def test_feasible_counterfactuals_keep_the_declared_rules(explained: pa.Table) -> None:
    order = ["low", "mid", "high"]
    for row in explained.to_pylist():
        if row["row_status"] != "ok":
            continue
        assert row["fcf_gender"] == row["gender"]
        assert row["age"] <= row["fcf_age"] <= 90
        assert row["fcf_income"] % 100 == 0
        assert order.index(row["fcf_grade"]) >= order.index(row["grade"])
        changed = [n for n in ("age", "income", "rate", "grade", "housing", "gender") if row[n] != row[f"fcf_{n}"]]
        assert row["fcf_num_changed"] == len(changed)


def test_counterfactual_columns_have_their_features_types(explained: pa.Table) -> None:
    assert explained.schema.field("fcf_age").type == pa.int32()
    assert explained.schema.field("cf_rate").type == pa.float64()
    rates = np.array(explained.column("cf_rate"))
    np.testing.assert_array_equal(rates, np.round(rates, 2))


def test_rows_already_as_desired_get_no_feasible_counterfactual(bundle: Bundle) -> None:
    table, _, _ = Explainer(bundle, 1).explain_table(people(500), RUN)
    for row in table.to_pylist():
        assert (row["row_status"] == "already_desired") == (row["pred_label"] == 1)
        if row["pred_label"] == 1:
            assert row["fcf_valid"] is None
            assert row["fcf_age"] is None


def test_bad_rows_are_rejected_with_reason_and_column_and_the_rest_is_explained(bundle: Bundle) -> None:
    rows = people(6).to_pylist()
    rows[1]["income"] = None
    rows[2]["rate"] = float("nan")
    rows[3]["housing"] = "castle"
    rows[4]["age"] = 17
    table = pa.Table.from_pylist(rows, schema=people(1).schema)
    good, bad, _ = Explainer(bundle, None).explain_table(table, RUN)
    assert good.column("id").to_pylist() == [0, 5]
    assert bad.select(["id", "reject_reason", "reject_column"]).to_pylist() == [
        {"id": 1, "reject_reason": "null", "reject_column": "income"},
        {"id": 2, "reject_reason": "nan", "reject_column": "rate"},
        {"id": 3, "reject_reason": "unseen_category", "reject_column": "housing"},
        {"id": 4, "reject_reason": "out_of_domain", "reject_column": "age"},
    ]


def test_a_table_of_bad_rows_only_and_an_empty_table_work(bundle: Bundle) -> None:
    table = people(3)
    nulls = table.set_column(2, "income", pa.nulls(3, pa.int64()))
    good, bad, _ = Explainer(bundle, None).explain_table(nulls, RUN)
    assert (len(good), len(bad)) == (0, 3)
    good, bad, _ = Explainer(bundle, None).explain_table(table.slice(0, 0), RUN)
    assert (len(good), len(bad)) == (0, 0)


def test_the_result_does_not_depend_on_how_rows_are_batched(bundle: Bundle) -> None:
    table = people(BATCH_ROWS + 100)
    explainer = Explainer(bundle, None)
    whole = explainer.explain_table(table, RUN)[0]
    tail = explainer.explain_table(table.slice(BATCH_ROWS), RUN)[0]
    for name in tail.column_names:
        expected = whole.column(name).slice(BATCH_ROWS)
        if name.endswith("_proba"):  # a matrix product may round otherwise for another number of rows
            np.testing.assert_allclose(tail.column(name), expected, rtol=1e-4)
        else:
            assert tail.column(name).to_pylist() == expected.to_pylist(), name


def test_the_target_column_is_not_needed(bundle: Bundle) -> None:
    table = people(20)
    with_target = Explainer(bundle, None).explain_table(table, RUN)[0].to_pylist()
    without = Explainer(bundle, None).explain_table(table.drop_columns(["approved"]), RUN)[0].to_pylist()
    assert [row["pred_label"] for row in without] == [row["pred_label"] for row in with_target]
