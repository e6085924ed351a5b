"""Commits: whatever dies and wherever, the next one finishes it, and no reader sees a row twice."""

import itertools
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ray_cfnet.cluster import commit
from ray_cfnet.cluster.commit import ParquetCommit, check_layout, commit_partition, finish_commits
from ray_cfnet.cluster.ledger import REJECTS, RunFiles, join
from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables.storage import Location

OLD, NEW = "0" * 16, "1" * 16


class Killed(BaseException):
    """Not an Exception: nothing may catch it, as nothing catches SIGKILL."""


def names(run_id: str, count: int) -> list[str]:
    return [f"part-{number:05d}-{run_id}.parquet" for number in range(count)]


def stage(output: Path, run_id: str, partition: str, count: int, rejects: int = 0) -> list[str]:
    """Complete files of a run in its staging directory, each with rows 0 .. 9 of its own number."""
    run = RunFiles(Location.of(output), run_id)
    files = [join(partition, name) for name in names(run_id, count)]
    files += [join(REJECTS, partition, name) for name in names(run_id, rejects)]
    for file in files:
        place = Path((run.staging / file).path)
        place.parent.mkdir(parents=True, exist_ok=True)
        number = int(place.name.split("-")[1])
        pq.write_table(pa.table({"id": range(10 * number, 10 * number + 10), "run": [run_id] * 10}), place)
    return files


def committed(output: Path, run_id: str, partition: str, count: int, rejects: int = 0) -> RunFiles:
    run = RunFiles(Location.of(output), run_id)
    commit_partition(run, partition, stage(output, run_id, partition, count, rejects))
    return run


def visible(output: Path) -> list[str]:
    """All files outside of _runs."""
    found = (path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    return sorted(path for path in found if not path.startswith("_runs"))


def count_calls(monkeypatch: pytest.MonkeyPatch, die_at: int | None) -> list[str]:
    """Counts every change of the file system and, at the given one, dies before it."""
    calls: list[str] = []

    def wrapped(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def step(*arguments: object, **named: object) -> object:
            if die_at is not None and len(calls) == die_at:
                raise Killed
            calls.append(name)
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, step)

    wrapped(commit, "exchange")
    wrapped(os, "rename")
    wrapped(os, "replace")
    for method in ("delete", "move_to"):
        wrapped(Location, method)
    return calls


@pytest.mark.parametrize("can_exchange", [True, False], ids=["exchange", "two renames"])
@pytest.mark.parametrize("partition", ["ds=1", "ds=1/country=DE", ""], ids=["ds", "nested", "flat"])
def test_a_commit_killed_at_any_step_is_finished_by_the_next_run(
    partition: str, can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(commit, "exchange", lambda *_: False)
    expected = sorted([join(partition, name) for name in names(NEW, 3)] + [join(REJECTS, partition, names(NEW, 1)[0])])
    for die_at in itertools.count():
        output = tmp_path / str(die_at)
        committed(output, OLD, partition, 2, 1)
        files = stage(output, NEW, partition, 3, 1)
        with monkeypatch.context() as patched:
            calls = count_calls(patched, die_at)
            with suppress(Killed):
                commit_partition(RunFiles(Location.of(output), NEW), partition, files)
        finished = finish_commits(Location.of(output))
        if finished:
            assert finished == [partition]
            assert visible(output) == expected
        else:  # died before the journal was written, or not at all
            assert visible(output) == expected or all(OLD in path for path in visible(output))
        assert not list((output / "_runs").glob("*/commit.json"))
        if len(calls) < die_at:
            assert visible(output) == expected
            break
    assert die_at >= 4, "the test killed nothing"


def test_the_new_rows_replace_the_old_ones_and_foreign_files_stay(tmp_path: Path) -> None:
    committed(tmp_path, OLD, "ds=1", 3, 1)
    committed(tmp_path, OLD, "ds=2", 1)
    (tmp_path / "ds=1" / "notes.txt").write_text("mine")
    committed(tmp_path, NEW, "ds=1", 1)
    ours = [f"ds=1/{names(NEW, 1)[0]}", f"ds=2/{names(OLD, 1)[0]}"]
    assert visible(tmp_path) == sorted([*ours, "ds=1/notes.txt"])


def test_half_a_file_of_a_killed_actor_does_not_come_along(tmp_path: Path) -> None:
    files = stage(tmp_path, NEW, "ds=1", 2)
    (tmp_path / "_runs" / NEW / "staging" / "ds=1" / ".part-00000.parquet.ab12").write_bytes(b"half")
    commit_partition(RunFiles(Location.of(tmp_path), NEW), "ds=1", files)
    assert visible(tmp_path) == files


def test_a_staged_file_that_is_gone_stops_the_commit_before_anything_is_deleted(tmp_path: Path) -> None:
    committed(tmp_path, OLD, "", 2)
    before = visible(tmp_path)
    files = stage(tmp_path, NEW, "", 2)
    (tmp_path / "_runs" / NEW / "staging" / files[1]).unlink()
    with pytest.raises(JobError, match=r"part-00001-1{16}\.parquet: is gone"):
        commit_partition(RunFiles(Location.of(tmp_path), NEW), "", files)
    assert visible(tmp_path) == before


def test_a_run_that_was_replaced_does_not_stand_by_what_an_orphan_staged(tmp_path: Path) -> None:
    old = committed(tmp_path, OLD, "ds=1", 1)
    files = {f"ds=1/{names(OLD, 1)[0]}"}
    assert ParquetCommit(old).stands(files)
    committed(tmp_path, NEW, "ds=1", 1)
    stage(tmp_path, OLD, "ds=1", 1)
    assert not ParquetCommit(old).stands(files)


@pytest.mark.parametrize(
    ("before", "after"), [("ds=1", "ds=1/h=0"), ("ds=1/h=0", "ds=1"), ("", "ds=1"), ("ds=1", "")], ids=str
)
def test_a_changed_layout_is_refused_because_rows_would_be_there_twice(before: str, after: str, tmp_path: Path) -> None:
    committed(tmp_path, OLD, before, 1)
    with pytest.raises(InputError, match="layout changed"):
        check_layout(Location.of(tmp_path), [after])
    check_layout(Location.of(tmp_path), [before, "ds=2", "ds=11"])


@pytest.mark.parametrize(
    "journal",
    [
        {"partition": "x", "directories": ["../elsewhere"], "files": []},
        {"partition": "x", "directories": ["ds=1"], "files": ["ds=1/notes.txt"]},
        {"partition": "x", "directories": ["ds=1"], "files": [f"../part-00000-{NEW}.parquet"]},
        {"partition": "x"},
        [],
    ],
    ids=str,
)
def test_a_journal_that_no_run_wrote_moves_nothing(journal: object, tmp_path: Path) -> None:
    committed(tmp_path / "out", OLD, "ds=1", 1)
    committed(tmp_path / "elsewhere", OLD, "", 1)
    (tmp_path / "out" / "_runs" / NEW).mkdir()
    (tmp_path / "out" / "_runs" / NEW / "commit.json").write_text(json.dumps(journal))
    before = visible(tmp_path)
    with pytest.raises(JobError, match="not a journal of ray-cfnet"):
        finish_commits(Location.of(tmp_path / "out"))
    assert visible(tmp_path) == before


def test_a_partition_whose_rows_are_gone_is_emptied(tmp_path: Path) -> None:
    run = committed(tmp_path, OLD, "ds=1", 2, 1)
    commit_partition(RunFiles(run.output, NEW), "ds=1", [])
    assert visible(tmp_path) == []


def test_a_file_that_is_in_place_already_is_not_lost_when_another_joins_it(tmp_path: Path) -> None:
    run = committed(tmp_path, NEW, "ds=1", 2)
    files = [f"ds=1/{name}" for name in names(NEW, 2)]
    (tmp_path / files[1]).unlink()
    stage(tmp_path, NEW, "ds=1", 2)
    (tmp_path / "_runs" / NEW / "staging" / files[0]).unlink()  # the unit of the first file is done, the second again
    commit_partition(run, "ds=1", files)
    assert visible(tmp_path) == files


def test_a_partition_with_partitions_below_it_leaves_them_alone(tmp_path: Path) -> None:
    committed(tmp_path, OLD, "ds=1", 1)
    committed(tmp_path, OLD, "ds=1/country=DE", 1)
    committed(tmp_path, NEW, "ds=1", 2)
    assert visible(tmp_path) == sorted(
        [f"ds=1/{names(NEW, 2)[0]}", f"ds=1/{names(NEW, 2)[1]}", f"ds=1/country=DE/{names(OLD, 1)[0]}"]
    )


def test_what_cannot_be_committed_is_told_and_the_journal_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = stage(tmp_path, NEW, "ds=1", 1)

    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    run = committed(tmp_path, OLD, "ds=1", 1)
    monkeypatch.setattr(commit, "exchange", full)
    with pytest.raises(JobError, match="No space left on device"):
        commit_partition(RunFiles(run.output, NEW), "ds=1", files)
    monkeypatch.undo()
    assert json.loads((tmp_path / "_runs" / NEW / "commit.json").read_text())["partition"] == "ds=1"
    assert finish_commits(run.output) == ["ds=1"]
    assert visible(tmp_path) == files


@pytest.mark.parametrize("partition", ["ds=1", ""], ids=["partitioned", "flat"])
def test_a_reader_in_a_loop_never_sees_a_row_twice(partition: str, tmp_path: Path) -> None:
    committed(tmp_path, OLD, partition, 3)
    pattern = tmp_path / partition / "part-*.parquet"
    seen: set[tuple[int, int]] = set()
    stop = threading.Event()

    def read() -> None:
        connection = duckdb.connect()
        while not stop.is_set():
            try:
                sql = f"SELECT count(*), count(DISTINCT id) FROM read_parquet('{pattern}')"
                seen.add(connection.execute(sql).fetchall()[0])
            except duckdb.IOException:  # listed before the commit, opened after it
                continue

    reader = threading.Thread(target=read)
    reader.start()
    for round_ in range(60):
        committed(tmp_path, f"{round_:016x}", partition, 3)
    stop.set()
    reader.join()
    assert (30, 30) in seen
    assert all(count == distinct for count, distinct in seen)
    if partition:
        assert seen == {(30, 30)}, "all of the old files or all of the new ones"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["", "a=1", "a=1/b=2"]), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=8
    )
)
def test_after_any_sequence_of_commits_each_partition_holds_its_last_run(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    output = tmp_path_factory.mktemp("commits")
    expected: dict[str, list[str]] = {}
    for number, (partition, count, rejects) in enumerate(steps):
        run_id = f"{number:016x}"
        committed(output, run_id, partition, count, rejects)
        expected[partition] = [join(partition, name) for name in names(run_id, count)]
        expected[partition] += [join(REJECTS, partition, name) for name in names(run_id, rejects)]
    assert visible(output) == sorted(file for files in expected.values() for file in files)
