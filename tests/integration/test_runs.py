"""Runs that fail, repeat and replace each other, on a real local Ray."""

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ray_cfnet.commands import run_evaluate, run_explain, run_runs, run_show
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.errors import ConfigError, InputError, JobError
from ray_cfnet.tables.storage import Location
from tests.integration.conftest import CONF, Trained

QUIET: Any = lambda *_: None  # noqa: E731
ROWS, DAY_ROWS = 4000, 500


@pytest.fixture
def days(trained: Trained, tmp_path: Path) -> Path:
    """Three partitions of the table, to be damaged."""
    for day in ("13", "14", "15"):
        shutil.copytree(f"{trained.config.table.path}/ds=2026-11-{day}", tmp_path / "loans" / f"ds=2026-11-{day}")
    return tmp_path / "loans"


def configured(days: Path, *overrides: str) -> Config:
    places = [f"table.path={days}", f"output.path={days.parent}/out", "table.sample=null", "cluster.num_actors=1"]
    return load_config(CONF / "loans.yaml", [*places, "explain.retries=0", *overrides])


def rewrite(day: Path, **columns: pa.Array) -> None:
    [file] = day.glob("*.parquet")
    table = pq.read_table(file, partitioning=None)
    for name, values in columns.items():
        table = table.set_column(table.column_names.index(name), name, values)
    pq.write_table(table, file)


def counted(output: Path) -> dict[str, tuple[int, int]]:
    """Rows and distinct keys of each partition."""
    found = duckdb.sql(
        f"""
        SELECT ds::varchar, count(*), count(DISTINCT application_id)
        FROM read_parquet('{output}/ds=*/*.parquet', hive_partitioning = true) GROUP BY ALL
        """
    ).fetchall()
    return {ds: (rows, keys) for ds, rows, keys in found}


@pytest.mark.parametrize("damage", ["a page", "cut short"])
def test_an_unreadable_file_fails_its_partition_alone_and_mended_the_run_goes_on(
    damage: str, trained: Trained, days: Path
) -> None:
    [broken] = (days / "ds=2026-11-14").glob("*.parquet")
    whole = broken.read_bytes()
    third = len(whole) // 3
    # With a footer planning sees nothing, and reading the pages does; without one it is the other way round.
    broken.write_bytes(whole[:third] if damage == "cut short" else whole[:100] + bytes(third) + whole[100 + third :])
    output, config = days.parent / "out", configured(days)
    if damage == "cut short":
        assert run_explain(config, trained.bundle, "ds=2026-11-13", QUIET)["rows_in"] == DAY_ROWS, "no concern of it"
        with pytest.raises(InputError, match="not a readable Parquet file"):
            run_explain(config, trained.bundle, "ds=2026-11-14", QUIET)
        with pytest.raises(InputError, match="not a readable Parquet file"):
            run_evaluate(config, trained.bundle, None)  # figures of a part are none of the whole
    with pytest.raises(
        JobError, match=r"1 of 3 units failed; 2 of 3 partitions are committed(.|\n)*ds=2026-11-14"
    ) as failed:
        run_explain(config, trained.bundle, None, QUIET)
    assert failed.value.exit_code == 1
    assert counted(output) == {f"2026-11-{day}": (DAY_ROWS, DAY_ROWS) for day in ("13", "15")}
    run = run_runs(str(output), None)["runs"][-1]
    assert run["state"] == "incomplete"
    assert broken.name in run["failures"][0]["error"]
    assert run["partitions"]["ds=2026-11-14"]["state"] == "unfinished"
    assert run["partitions"]["ds=2026-11-15"]["state"] == "committed"
    broken.write_bytes(whole)
    result = run_explain(config, trained.bundle, None, QUIET)
    assert result["rows_in"] == 3 * DAY_ROWS
    assert len(counted(output)) == 3
    if damage == "cut short":
        broken.write_bytes(whole[:third])
        with pytest.raises(JobError, match="1 of 3 units failed"):
            run_explain(config, trained.bundle, None, QUIET)
        assert counted(output)["2026-11-14"] == (DAY_ROWS, DAY_ROWS), "what an earlier run said remains"


def test_too_many_rejects_fail_the_run_after_all_is_written(trained: Trained, days: Path) -> None:
    [file] = (days / "ds=2026-11-15").glob("*.parquet")
    income = pq.read_table(file, partitioning=None).column("income").to_pylist()
    rewrite(days / "ds=2026-11-15", income=pa.array([None] * 200 + income[200:], pa.int64()))
    output = days.parent / "out"
    for _ in range(2):  # the second time nothing is done, and it fails all the same
        with pytest.raises(JobError, match=r"13\.3% of the rows were rejected \(null 200\)"):
            run_explain(configured(days), trained.bundle, None, QUIET)
    assert counted(output)["2026-11-15"] == (300, 300)
    rejected = duckdb.sql(
        f"SELECT reject_reason, count(*) FROM read_parquet('{output}/_rejects/ds=*/*.parquet') GROUP BY 1"
    ).fetchall()
    assert rejected == [("null", 200)]
    result = run_explain(configured(days, "explain.max_reject_fraction=0.2"), trained.bundle, None, QUIET)
    assert result["already_done"], "a limit is no part of the run's identity"


def test_runs_replace_each_other_and_going_back_is_noticed(trained: Trained, days: Path) -> None:
    output = days.parent / "out"
    first = run_explain(configured(days), trained.bundle, None, QUIET)
    other = run_explain(configured(days, "explain.unit_rows=499999"), trained.bundle, None, QUIET)
    assert first["run_id"] != other["run_id"]
    again = run_explain(configured(days), trained.bundle, None, QUIET)
    assert again["run_id"] == first["run_id"]
    assert not again["already_done"], "its files were replaced meanwhile"
    assert set(counted(output).values()) == {(DAY_ROWS, DAY_ROWS)}
    assert run_explain(configured(days), trained.bundle, None, QUIET)["already_done"]
    shown = run_runs(str(output), first["run_id"][:6])
    assert shown["rows_in"] == 3 * DAY_ROWS
    assert {run["run_id"] for run in run_runs(str(output), None)["runs"]} == {first["run_id"], other["run_id"]}


def test_files_with_narrower_types_join_the_others(trained: Trained, days: Path) -> None:
    [file] = (days / "ds=2026-11-14").glob("*.parquet")
    table = pq.read_table(file, partitioning=None)
    narrow = table.column("income").cast(pa.int32())
    as_trained = run_evaluate(configured(days), trained.bundle, None)
    housing, decision = (table.column(name).cast(pa.large_string()) for name in ("housing", "decision"))
    rewrite(days / "ds=2026-11-14", income=narrow, housing=housing, decision=decision)
    measured = run_evaluate(configured(days), trained.bundle, None)
    assert measured["accuracy"] == as_trained["accuracy"]
    result = run_explain(configured(days), trained.bundle, None, QUIET)
    assert result["rows_out"] == 3 * DAY_ROWS
    types = {
        str(pq.read_schema(path).field(name).type)
        for path in Path(result["output"]).glob("ds=*/*.parquet")
        for name in ("income", "fcf_income")
    }
    assert types == {"int64"}


def test_a_delta_table_gets_one_version_a_run_and_keeps_the_old_ones(trained: Trained, days: Path) -> None:
    output, config = days.parent / "out", configured(days, "output.format=delta")
    first = run_explain(config, trained.bundle, None, QUIET)
    table = DeltaTable(str(output))
    before = table.version()
    [file] = (days / "ds=2026-11-15").glob("*.parquet")
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 100), file)
    second = run_explain(config, trained.bundle, "ds=2026-11-15", QUIET)
    table = DeltaTable(str(output))
    assert table.version() == before + 1

    def rows(version: int) -> list[tuple]:
        files = DeltaTable(str(output), version=version).file_uris()
        sql = f"SELECT run_id, count(*) FROM read_parquet({files}) GROUP BY 1 ORDER BY 2"
        return duckdb.sql(sql).fetchall()

    assert rows(before) == [(first["run_id"], 3 * DAY_ROWS)]
    assert rows(before + 1) == [(second["run_id"], 100), (first["run_id"], 2 * DAY_ROWS)]
    assert run_explain(config, trained.bundle, "ds=2026-11-15", QUIET)["already_done"]
    assert DeltaTable(str(output)).version() == before + 1
    with pytest.raises(InputError, match="holds a Delta table"):
        run_explain(configured(days), trained.bundle, None, QUIET)
    [file] = (days / "ds=2026-11-14").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(JobError, match="1 of 3 units failed"):
        run_explain(config, trained.bundle, None, QUIET)
    third = run_runs(str(output), None)["runs"][-1]["run_id"]
    assert rows(before + 2) == [(first["run_id"], DAY_ROWS), (third, DAY_ROWS + 100)], "the old rows of 14 remain"


def test_a_delta_run_killed_before_its_commit_is_finished_without_work(
    trained: Trained, days: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, config = days.parent / "out", configured(days, "output.format=delta")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ray_cfnet.cluster.commit.commit_delta", dies)
        with pytest.raises(KeyboardInterrupt):
            run_explain(config, trained.bundle, None, QUIET)
    assert DeltaTable(str(output)).file_uris() == []
    fresh: list[bool] = []
    result = run_explain(config, trained.bundle, None, lambda _, __, done_now: fresh.append(done_now))
    assert fresh == [False] * 3
    assert (result["rows_in"], result["rows_per_s"]) == (3 * DAY_ROWS, 0), "the rows of earlier attempts are no speed"
    assert len(DeltaTable(str(output)).file_uris()) == 3


def test_the_manifest_has_what_the_documentation_says(trained: Trained, days: Path) -> None:
    result = run_explain(configured(days), trained.bundle, None, QUIET)
    place = Path(result["output"]) / "_runs" / result["run_id"] / "manifest.json"
    text = (Path(__file__).parent.parent.parent / "docs" / "manifest.md").read_text()
    described = {
        name for line in text.splitlines() if line.startswith("| `") for name in line.split("|")[1].split("`")[1::2]
    }
    assert set(json.loads(place.read_text())) == described


def test_other_words_are_another_run_and_without_words_the_columns_stay(trained: Trained, days: Path) -> None:
    explained = [
        run_explain(configured(days, *overrides), trained.bundle, "ds=2026-11-14", QUIET)
        for overrides in (
            (),
            ("words.to_reach='{changes}'",),
            ("explain.words=false",),
            ("words.to_reach='{changes}'",),
        )
    ]
    assert len({run["run_id"] for run in explained}) == 3
    assert explained[1]["run_id"] == explained[3]["run_id"]
    told = duckdb.sql(
        f"SELECT row_status, explanation, reason_1 FROM read_parquet('{days.parent}/out/ds=2026-11-14/*.parquet')"
    ).fetchall()
    assert len(told) == DAY_ROWS
    assert not any(text.startswith("To be approved") for _, text, _ in told)
    assert all((reason is None) == (status != "ok") for status, _, reason in told)
    row = run_show(f"{days.parent}/out", ["application_id=3000"], None, None)
    assert row["rules_problem"] is None
    assert Location.of(trained.bundle).uri == run_runs(f"{days.parent}/out", explained[3]["run_id"])["bundle"]


@pytest.mark.parametrize("asked", ["actor_cpus=4096", "actor_gpus=1"])
def test_an_actor_that_no_machine_has_room_for_is_told_and_not_waited_for(
    asked: str, trained: Trained, days: Path
) -> None:
    with pytest.raises(JobError, match=r"no machine has room for an actor of .*cluster\.actor_cpus"):
        run_explain(configured(days, f"cluster.{asked}"), trained.bundle, None, QUIET)


def test_a_wrong_class_among_the_words_stops_before_anything_starts(trained: Trained, days: Path) -> None:
    with pytest.raises(ConfigError, match="granted not among"):
        run_explain(configured(days, "words.classes={granted: yes!}"), trained.bundle, None, QUIET)
    assert not (days.parent / "out").exists()
