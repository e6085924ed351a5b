import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_cfnet.config import Words
from ray_cfnet.errors import InputError
from ray_cfnet.explain.columns import dictionary_columns, output_schema
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.tables.codec import bitmap, flag_column, label_column, number_column
from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema, Target
from tests.unit.helpers import people, people_schema, untrained_bundle

VALID = np.array([True, False, True])


def test_values_that_hardly_repeat_get_no_dictionary():
    schema = TableSchema(
        (
            Continuous("score", "double", 0.0, 1.0, None),
            Continuous("age", "int64", 18.0, 90.0, Grid(1, 0)),
            Categorical("housing", "string", ("own", "rent")),
        ),
        Target("y", "int64", (0, 1)),
        ("id",),
    )
    columns = pa.schema(
        [("id", pa.int64()), ("score", pa.float64()), ("age", pa.int64()), ("housing", pa.string()), ("y", pa.int64())]
    )
    names = dictionary_columns(schema, output_schema(schema, columns))
    assert names[:4] == ["age", "housing", "y", "pred_label"]
    assert {"cf_age", "fcf_housing", "row_status", "reason_1", "run_id"} <= set(names)
    hardly_repeat = {"id", "score", "cf_score", "fcf_score", "pred_proba", "fcf_distance", "explanation"}
    assert not hardly_repeat & set(names)


@pytest.mark.parametrize(("column", "partition"), [("Pred_Label", "ds"), ("note", "run_id"), ("FCF_age", "ds")])
def test_a_column_that_an_engine_would_take_for_ours_is_refused(column: str, partition: str):
    table = people(3).rename_columns({"note": column})
    taken = column if column != "note" else partition
    with pytest.raises(InputError, match=f"columns that ray-cfnet writes: {taken}\n"):
        output_schema(people_schema(), table.schema, 1, [partition])
    output_schema(people_schema(), people(3).schema, 1, ["ds", "note"])  # twice in the input is its owner's business


def test_columns_share_a_null_bitmap():
    valid = bitmap(VALID)
    assert number_column(np.array([1.5, 2.5, 3.5]), valid).to_pylist() == [1.5, None, 3.5]
    assert flag_column(np.array([False, True, True]), valid).to_pylist() == [False, None, True]
    assert label_column(np.array([1, 0, 0]), ("a", "b"), pa.string(), valid).to_pylist() == ["b", None, "a"]
    assert label_column(np.array([1, 0, 0]), (12, 24), pa.int64(), valid).to_pylist() == [24, None, 12]
    assert bitmap(np.array([True, True])) is None


def test_the_explained_table_is_valid_arrow_and_survives_parquet(tmp_path):
    table = Explainer(untrained_bundle(), None, words=Words()).explain_table(people(1_003), "run")[0]
    table.validate(full=True)
    pq.write_table(table, tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == table.to_pylist()
