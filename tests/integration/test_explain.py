"""The explain job on a real local Ray, read back by an engine that is not ours."""

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ray_cfnet.commands import run_evaluate, run_explain
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.errors import BundleError, ConfigError, InputError, JobError
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.storage import Location
from tests.integration.conftest import CONF, Trained

QUIET: Any = lambda *_: None  # noqa: E731


@pytest.fixture(scope="module")
def explained(trained: Trained) -> dict[str, Any]:
    return run_explain(trained.config, trained.bundle, None, QUIET)


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Config:
    """The table in a place of its own, to be damaged."""
    shutil.copytree(trained.config.table.path, tmp_path / "loans")
    overrides = [
        f"table.path={tmp_path}/loans",
        f"output.path={tmp_path}/out",
        "table.sample=null",
        "cluster.num_actors=1",
    ]
    return load_config(CONF / "loans.yaml", overrides)


def files_of(config: Config) -> list[Path]:
    return sorted(Path(config.table.path).glob("ds=*/*.parquet"))


def test_every_row_comes_out_once_with_its_own_values(trained: Trained, explained: dict[str, Any]) -> None:
    assert explained["rows_in"] == explained["rows_out"] == 4000
    assert explained["rows_rejected"] == 0
    differing = duckdb.sql(
        f"""
        SELECT count(*) FILTER (WHERE i.application_id IS NULL OR o.application_id IS NULL OR i.amount <> o.amount),
               count(*)
        FROM read_parquet('{trained.config.table.path}/ds=*/*.parquet', hive_partitioning = true) i
        FULL JOIN read_parquet('{explained["output"]}/ds=*/*.parquet', hive_partitioning = true) o
        ON i.application_id = o.application_id AND i.ds = o.ds
        """
    ).fetchall()[0]
    assert differing == (0, 4000)


def test_one_select_in_duckdb_answers_a_question(explained: dict[str, Any]) -> None:
    rows = duckdb.sql(
        f"""
        SELECT pred_label, row_status, count(*), avg(fcf_num_changed)
        FROM read_parquet('{explained["output"]}/ds=*/*.parquet') GROUP BY ALL ORDER BY ALL
        """
    ).fetchall()
    assert {row[1] for row in rows} <= {"ok", "already_desired", "no_feasible_cf"}
    assert sum(row[2] for row in rows) == 4000


@pytest.mark.parametrize("kind", ["cf", "fcf"])
def test_every_flag_holds_for_the_values_that_duckdb_reads(
    trained: Trained, explained: dict[str, Any], kind: str
) -> None:
    """Of both kinds, the true flags and the false ones: an own encoding and the plain network agree with each."""
    bundle = Bundle.load(Location.of(trained.bundle))
    output = duckdb.sql(f"SELECT * FROM read_parquet('{explained['output']}/ds=*/*.parquet')")
    told = output.filter(f"{kind}_proba IS NOT NULL").fetchall()
    assert len(told) > 100
    columns = dict(zip(output.columns, zip(*told, strict=True), strict=True))
    numbers = [
        (np.array(columns[f"{kind}_{feature.name}"], dtype=float) - feature.lower) / feature.span
        for feature in bundle.schema.continuous
    ]
    one_hot = [
        np.array([value == category for value in columns[f"{kind}_{feature.name}"]], dtype=float)
        for feature in bundle.schema.categorical
        for category in feature.categories
    ]
    with torch.no_grad():
        x = torch.tensor(np.stack([*numbers, *one_hot], axis=1), dtype=torch.float32)
        _, probabilities = bundle.net.predict(bundle.net.encode_dense(x))
    approved = bundle.schema.target.classes.index("approved")
    np.testing.assert_array_equal(probabilities.argmax(1) == approved, columns[f"{kind}_valid"])
    np.testing.assert_allclose(probabilities[:, approved], columns[f"{kind}_proba"], atol=1e-5)
    without = output.filter("fcf_proba IS NULL").aggregate("bool_or(fcf_valid), count(*)").fetchall()[0]
    assert without[0] is not True


def test_output_types_are_the_inputs_types(trained: Trained, explained: dict[str, Any]) -> None:
    written = pq.read_schema(next(Path(explained["output"]).glob("ds=*/*.parquet")))
    original = pq.read_schema(files_of(trained.config)[0])
    assert [written.field(name) for name in original.names] == list(original)
    assert written.field("fcf_housing").type == pa.string()
    assert written.field("fcf_age").type == pa.int64()


def test_the_manifest_accounts_for_every_row_and_file(explained: dict[str, Any]) -> None:
    output = Path(explained["output"])
    manifest = json.loads((output / "_runs" / explained["run_id"] / "manifest.json").read_text())
    assert manifest["version"] == 2
    assert manifest["state"] == "complete"
    assert manifest["row_status_share"]["ok"] == pytest.approx(manifest["row_status"]["ok"] / 4000, abs=1e-6)
    told = duckdb.sql(
        f"""
        SELECT avg(fcf_distance), avg((fcf_income <> income)::int), avg((fcf_housing <> housing)::int)
        FROM read_parquet('{output}/ds=*/*.parquet') WHERE row_status = 'ok'
        """
    ).fetchall()[0]
    assert manifest["mean_fcf_distance"] == pytest.approx(told[0], abs=1e-5)
    for name, share in zip(("income", "housing"), told[1:], strict=True):
        assert manifest["changed_features"].get(name, share) == pytest.approx(share, abs=1e-6)
    assert manifest["peak_rss_mb"] > 100
    assert manifest["rows_in"] == manifest["rows_out"] + manifest["rows_rejected"] == 4000
    assert sum(part["rows_in"] for part in manifest["partitions"].values()) == 4000
    listed = {file for unit in manifest["units"] for file in unit["files"]}
    assert listed == {str(path.relative_to(output)) for path in output.glob("ds=*/*.parquet")}
    assert not (output / "_runs" / explained["run_id"] / "staging").exists()


def test_units_smaller_than_files_give_the_same_rows(
    trained: Trained, explained: dict[str, Any], tmp_path: Path
) -> None:
    # Re-cut into many row groups, so that a file becomes several units.
    for file in files_of(trained.config):
        place = tmp_path / "loans" / file.parent.name / file.name
        place.parent.mkdir(parents=True)
        pq.write_table(pq.read_table(file, partitioning=None), place, row_group_size=70)
    overrides = [f"table.path={tmp_path}/loans", f"output.path={tmp_path}/out", "table.sample=null"]
    config = load_config(CONF / "loans.yaml", [*overrides, "explain.unit_rows=150"])
    result = run_explain(config, trained.bundle, None, QUIET)
    columns = "application_id, pred_label, fcf_income, fcf_amount, fcf_housing, row_status"

    def rows(output: str) -> list[tuple]:
        return duckdb.sql(f"SELECT {columns} FROM read_parquet('{output}/ds=*/*.parquet') ORDER BY 1").fetchall()

    assert rows(result["output"]) == rows(explained["output"])
    assert len(list(Path(result["output"]).glob("ds=*/*.parquet"))) == 8 * 4


def test_one_partition_alone(trained: Trained, tmp_path: Path) -> None:
    config = trained.config.model_copy(
        update={"output": trained.config.output.model_copy(update={"path": str(tmp_path)})}
    )
    result = run_explain(config, trained.bundle, "ds=2026-11-15", QUIET)
    assert result["rows_out"] == 500
    assert [path.name for path in tmp_path.glob("ds=*")] == ["ds=2026-11-15"]
    with pytest.raises(InputError, match="no partition ds=2026-12-01"):
        run_explain(config, trained.bundle, "ds=2026-12-01", QUIET)


def test_a_second_run_with_changed_input_replaces_the_partition(trained: Trained, copied: Config) -> None:
    first = run_explain(copied, trained.bundle, None, QUIET)
    file = files_of(copied)[0]
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 100), file)
    second = run_explain(copied, trained.bundle, None, QUIET)
    assert second["run_id"] != first["run_id"]
    written = f"{copied.output.path}/ds=*/*.parquet"
    assert duckdb.sql(f"SELECT count(*), count(DISTINCT run_id) FROM read_parquet('{written}')").fetchall()[0] == (
        3600,
        1,
    )


def test_bad_rows_go_to_the_rejects_table_and_nothing_is_lost(trained: Trained, copied: Config) -> None:
    file = files_of(copied)[2]
    table = pq.read_table(file, partitioning=None)
    income = table.column("income").to_pylist()
    housing = table.column("housing").to_pylist()
    income[3], housing[5], housing[6] = None, "castle", "boat"
    table = table.set_column(table.schema.get_field_index("income"), "income", pa.array(income))
    table = table.set_column(table.schema.get_field_index("housing"), "housing", pa.array(housing))
    pq.write_table(table, file)
    result = run_explain(copied, trained.bundle, None, QUIET)
    assert (result["rows_in"], result["rows_out"], result["rows_rejected"]) == (4000, 3997, 3)
    assert result["rejects"] == {"null": 1, "unseen_category": 2}
    rejects = duckdb.sql(
        f"SELECT housing, reject_reason, reject_column FROM read_parquet('{copied.output.path}/_rejects/*/*.parquet') "
        "ORDER BY application_id"
    ).fetchall()
    assert rejects[1:] == [("castle", "unseen_category", "housing"), ("boat", "unseen_category", "housing")]
    assert rejects[0][1:] == ("null", "income")
    assert [path.name for path in Path(copied.output.path, "_rejects").iterdir()] == [file.parent.name]


def test_evaluate_agrees_with_the_written_table(trained: Trained, explained: dict[str, Any]) -> None:
    metrics = run_evaluate(trained.config, trained.bundle, None)
    accuracy, validity, changed, distance = duckdb.sql(
        f"""
        SELECT avg((pred_label = decision)::INT), avg(fcf_valid::INT), avg(fcf_num_changed) / 13, avg(fcf_distance)
        FROM read_parquet('{explained["output"]}/ds=*/*.parquet')
        """
    ).fetchall()[0]
    assert metrics["rows"] == 4000
    assert metrics["accuracy"] == pytest.approx(accuracy)
    assert metrics["fcf"]["validity"] == pytest.approx(validity)
    assert metrics["fcf"]["sparsity"] == pytest.approx(changed)
    assert metrics["fcf"]["proximity"] == pytest.approx(distance, rel=1e-4)

    schema = Bundle.load(Location.of(trained.bundle)).schema
    for key, condition in (("cf", "true"), ("fcf", "row_status = 'ok'")):
        answers = ", ".join(f"{key}_{name}" for name in schema.feature_names)
        share = duckdb.sql(
            f"""
            SELECT count(DISTINCT ({answers})) / count(DISTINCT ({", ".join(schema.feature_names)}))
            FROM read_parquet('{explained["output"]}/ds=*/*.parquet') WHERE {condition}
            """
        ).fetchall()[0][0]
        assert metrics[key]["distinct"] == pytest.approx(share)
        second = metrics[key]["second_order"]
        assert second["validity"] <= 1
        assert second["l1"] <= metrics[key]["l1"]
        assert second["sparsity"] <= metrics[key]["sparsity"]
        assert second["num_changed"] == pytest.approx(13 * second["sparsity"])

    wanting = duckdb.sql(
        f"SELECT count(*) FROM read_parquet('{explained['output']}/ds=*/*.parquet') "
        "WHERE row_status <> 'already_desired'"
    ).fetchall()[0][0]
    trivial = metrics["trivial"]
    assert trivial["rows"] == wanting
    assert trivial["constant"]["validity"] == trivial["nearest"]["validity"] == 1
    assert 0 < trivial["nearest"]["proximity"] < trivial["constant"]["proximity"]
    stability = metrics["stability"]
    assert stability["rows"] == 4000
    assert stability["epsilons"] == trained.config.evaluate.epsilons
    for attack in ("fgsm", "pgd"):
        assert stability[attack][0] == 1
        assert 1 > stability[attack][-1] >= 0
    assert 0 < metrics["ms_per_row"] < 100
    assert metrics["second_order_threshold"] == 2


def test_against_the_paper_needs_one_of_its_tables(trained: Trained) -> None:
    with pytest.raises(ConfigError, match="adult, cancer, covertype, credit"):
        run_evaluate(trained.config, trained.bundle, "test", against="paper")


def test_a_missing_column_is_named_with_the_nearest(trained: Trained, copied: Config) -> None:
    file = files_of(copied)[1]
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.rename_columns(["incomes" if name == "income" else name for name in table.column_names]), file)
    with pytest.raises(InputError, match="column income is missing; did you mean incomes"):
        run_explain(copied, trained.bundle, None, QUIET)


def test_a_retyped_column_is_named_with_both_types(trained: Trained, copied: Config) -> None:
    file = files_of(copied)[1]
    table = pq.read_table(file, partitioning=None)
    position = table.schema.get_field_index("income")
    pq.write_table(table.set_column(position, "income", table.column("income").cast(pa.string())), file)
    with pytest.raises(InputError, match="column income is string, expected int64"):
        run_explain(copied, trained.bundle, None, QUIET)


def test_an_unreadable_file_is_named(trained: Trained, copied: Config) -> None:
    files_of(copied)[1].write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(JobError, match=r"part-0.parquet: not a readable Parquet file"):
        run_explain(copied, trained.bundle, None, QUIET)
    for file in files_of(copied):
        file.write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(InputError, match=r"part-0.parquet: not a readable Parquet file"):
        run_explain(copied, trained.bundle, None, QUIET)


def test_the_output_may_not_lie_among_the_inputs_files(trained: Trained, copied: Config) -> None:
    before = sorted(Path(copied.table.path).rglob("*"))
    inside = [copied.table.path, f"{copied.table.path}/ds=2026-11-15", f"{copied.table.path}/new"]
    around = str(Path(copied.table.path).parent)  # its readers would find the input's rows beside ours
    for place in (*inside, around):
        config = copied.model_copy(update={"output": copied.output.model_copy(update={"path": place})})
        with pytest.raises(InputError, match="among the input's files"):
            run_explain(config, trained.bundle, None, QUIET)
    single = copied.table.model_copy(update={"path": str(files_of(copied)[0])})
    beside = copied.output.model_copy(update={"path": str(files_of(copied)[0].parent)})
    with pytest.raises(InputError, match="among the input's files"):
        run_explain(copied.model_copy(update={"table": single, "output": beside}), trained.bundle, None, QUIET)
    assert sorted(Path(copied.table.path).rglob("*")) == before


def test_other_files_in_the_output_are_left_alone_and_an_emptied_partition_is_emptied(
    trained: Trained, copied: Config
) -> None:
    note = Path(copied.output.path) / "ds=2026-11-08" / "notes.txt"
    note.parent.mkdir(parents=True)
    note.write_text("mine")
    run_explain(copied, trained.bundle, None, QUIET)
    emptied = files_of(copied)[0]
    pq.write_table(pq.read_table(emptied, partitioning=None).slice(0, 0), emptied)
    assert run_explain(copied, trained.bundle, None, QUIET)["rows_out"] == 3500
    assert [path.name for path in note.parent.iterdir()] == ["notes.txt"]


def test_passed_through_columns_keep_types_that_parquet_itself_does_not_know(trained: Trained, copied: Config) -> None:
    file = files_of(copied)[-1]
    table = pq.read_table(file, partitioning=None)
    count = len(table)
    extra = {
        "seen_at": pa.array([1] * count, pa.timestamp("us", "Europe/Berlin")),
        "waited": pa.array([5] * count, pa.duration("s")),
        "branch": pa.array(["a"] * count, pa.large_string()),
        "tier": pa.array(["gold"] * count).dictionary_encode(),
    }
    for name, column in extra.items():
        table = table.append_column(name, column)
    pq.write_table(table, file)
    result = run_explain(copied, trained.bundle, file.parent.name, QUIET)
    written = pq.read_table(next(Path(result["output"]).glob("ds=*/*.parquet")), partitioning=None)
    assert written.select(table.column_names).schema.equals(table.schema)
    assert written.select(list(extra)).equals(table.select(list(extra)))


def test_a_bundle_reaches_only_the_class_it_was_trained_for(trained: Trained) -> None:
    explain = trained.config.explain.model_copy(update={"desired": "opposite"})
    config = trained.config.model_copy(update={"explain": explain})
    with pytest.raises(BundleError, match="trained to reach 'approved'"):
        run_explain(config, trained.bundle, None, QUIET)
    with pytest.raises(BundleError, match="trained to reach 'approved'"):
        run_evaluate(config, trained.bundle, "test")


def test_an_explained_table_is_no_input(trained: Trained, explained: dict[str, Any], tmp_path: Path) -> None:
    overrides = [f"table.path={explained['output']}", f"output.path={tmp_path}", "table.sample=null"]
    with pytest.raises(InputError, match="columns that ray-cfnet writes: pred_label"):
        run_explain(load_config(CONF / "loans.yaml", overrides), trained.bundle, None, QUIET)


def test_a_damaged_bundle_explains_nothing(trained: Trained, tmp_path: Path) -> None:
    shutil.copytree(trained.bundle, tmp_path / "bundle")
    (tmp_path / "bundle" / "schema.json").write_text("{}")
    with pytest.raises(BundleError, match=r"schema\.json"):
        run_explain(trained.config, str(tmp_path / "bundle"), None, QUIET)
