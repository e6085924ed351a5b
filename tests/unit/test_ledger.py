"""The ledger: which units are done, whether all rows are there, what a run adds up to."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.cluster.ledger import RunFiles, UnitRecord, reconcile, run_id, totals
from ray_cfnet.cluster.manifest import find_run, list_runs
from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables.plan import Piece, Source, SourceFile, Unit, UnreadableFile
from ray_cfnet.tables.storage import FoundFile, Location

COLUMNS = pa.schema([("x", pa.int64())])


def unit(number: int, rows: int = 10, partition: str = "ds=1") -> Unit:
    return Unit(number, partition, (Piece("ds=1/a.parquet", (number,), 10 * number, rows),))


def record(number: int, rows: int = 10, rejected: int = 0, **more: object) -> UnitRecord:
    counts = {"rejects": {"null": rejected} if rejected else {}, "status": {"ok": rows - rejected}}
    return UnitRecord(number, "ds=1", rows, rows - rejected, **counts, **more)  # type: ignore[arg-type]


def put(run: RunFiles, file: str, staged: bool) -> None:
    place = Path(((run.staging if staged else run.output) / file).path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"rows")


@pytest.mark.parametrize("staged", [True, False])
def test_a_unit_is_done_when_its_record_and_all_its_files_are_there(staged: bool, tmp_path: Path) -> None:
    run = RunFiles(Location.of(tmp_path), "ab" * 8)
    units = [unit(number) for number in range(4)]
    for number in range(3):
        files = [run.explained_file(units[number]), run.rejects_file(units[number])]
        for file in files:
            put(run, file, staged)
        run.write_record(record(number, rejected=1, files=files))
    put(run, run.explained_file(units[3]), staged)  # its record was never written
    lost = (run.staging if staged else run.output) / run.rejects_file(units[1])
    Path(lost.path).unlink()
    assert [found.number for found in run.done_units(units)] == [0, 2]
    assert run.done_units(units)[0] == record(
        0, rejected=1, files=[run.explained_file(unit(0)), run.rejects_file(unit(0))]
    )


def test_a_record_of_other_rows_or_another_version_does_not_count(tmp_path: Path) -> None:
    run = RunFiles(Location.of(tmp_path), "ab" * 8)
    run.write_record(record(0, rows=9))
    put(run, f"ds=1/part-00007-{run.run_id}.parquet", staged=True)
    run.write_record(record(3, files=[f"ds=1/part-00007-{run.run_id}.parquet"]))  # another unit's file
    (run.directory / "units" / "00001.json").write_bytes(b'{"number": 1, "other": 2}')
    (run.directory / "units" / "00002.json").write_bytes(b"{")
    assert run.done_units([unit(0), unit(1), unit(2), unit(3)]) == []


def test_the_files_of_another_run_do_not_count(tmp_path: Path) -> None:
    run, other = (RunFiles(Location.of(tmp_path), two * 8) for two in ("ab", "cd"))
    put(other, other.explained_file(unit(0)), staged=False)
    assert run.present_files() == set()
    assert other.present_files() == {other.explained_file(unit(0))}


@given(
    planned=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    lost=st.integers(-1, 1),
    where=st.sampled_from(["rows_in", "rows_out"]),
)
def test_a_partition_is_complete_only_when_no_row_is_missing_or_too_many(
    planned: list[int], lost: int, where: str
) -> None:
    units = [unit(number, rows) for number, rows in enumerate(planned)]
    records = [record(number, rows) for number, rows in enumerate(planned)]
    setattr(records[-1], where, getattr(records[-1], where) - lost)
    if lost:
        with pytest.raises(JobError, match=r"partition ds=1: \d+ rows planned"):
            reconcile("ds=1", units, records)
    else:
        reconcile("ds=1", units, records)


def test_a_unit_twice_does_not_stand_for_one_that_is_missing() -> None:
    units = [unit(0), unit(1)]
    for records in ([record(0), record(0)], [record(0, 8), record(1, 12)], [record(0), record(1), record(1)]):
        with pytest.raises(JobError, match="unit by unit not the same"):
            reconcile("ds=1", units, records)


def test_records_add_up() -> None:
    records = [
        record(0, 10, 2, cf_valid=8, fcf_distance=0.4, changed={"a": 4, "b": 1}, seconds=1.0),
        record(1, 10, 0, cf_valid=9, fcf_distance=0.5, changed={"a": 2}, seconds=0.5),
    ]
    records[1].status = {"ok": 7, "already_desired": 2, "no_feasible_cf": 1}
    summed = totals(records)
    assert (summed["rows_in"], summed["rows_out"], summed["rows_rejected"]) == (20, 18, 2)
    assert summed["row_status"] == {"ok": 15, "already_desired": 2, "no_feasible_cf": 1}
    assert summed["cf_validity"] == pytest.approx(17 / 18, abs=1e-6)
    assert summed["fcf_validity"] == pytest.approx(15 / 16)
    assert summed["mean_fcf_distance"] == pytest.approx(0.9 / 15)
    assert summed["changed_features"] == {"a": 0.4, "b": pytest.approx(1 / 15, abs=1e-6)}
    assert totals([])["cf_validity"] is None


def test_the_run_id_changes_with_whatever_changes_the_rows() -> None:
    def source(path: str = "a.parquet", size: int = 1, modified: int = 1) -> Source:
        return Source(Location("/t"), (SourceFile(FoundFile(path, size, modified), (3,), COLUMNS, 0),))

    arguments = (source(), "model", {"desired": "yes"}, COLUMNS)
    others = [
        (source("b.parquet"), *arguments[1:]),
        (source(size=2), *arguments[1:]),
        (source(modified=2), *arguments[1:]),
        (arguments[0], "other", *arguments[2:]),
        (*arguments[:2], {"desired": "no"}, COLUMNS),
        (*arguments[:3], pa.schema([("x", pa.int32())])),
    ]
    ids = {run_id(*changed) for changed in others}
    assert len(ids) == len(others)
    assert run_id(*arguments) not in ids
    assert run_id(*arguments) == run_id(source(), "model", {"desired": "yes"}, COLUMNS)


def test_a_file_that_cannot_be_read_makes_another_run_than_the_same_file_that_can() -> None:
    one, other = (FoundFile(f"ds=1/{name}.parquet", 1, 1) for name in "ab")
    readable = [SourceFile(found, (3,), COLUMNS, 0) for found in (one, other)]
    unreadable = UnreadableFile(other, InputError("b.parquet: not a readable Parquet file", "write it again"))
    root = Location("/t")
    sources = [
        Source(root, tuple(readable)),
        Source(root, (readable[0],), unreadable=(unreadable,)),
        Source(root, (readable[0],)),
    ]
    assert len({run_id(source, "model", {}, COLUMNS) for source in sources}) == 3


def test_runs_are_listed_in_the_order_of_their_ends_and_found_by_their_first_characters(tmp_path: Path) -> None:
    output = Location.of(tmp_path)
    for two, finished in (("ab", "2026-11-16"), ("cd", "2026-11-15")):
        RunFiles(output, two * 8).write_manifest(
            {"version": 2, "run_id": two * 8, "state": "complete", "finished_at": finished}
        )
    RunFiles(output, "ef" * 8).write_record(record(0))
    assert [(run["run_id"][:2], run["state"]) for run in list_runs(output)] == [
        ("cd", "complete"),
        ("ab", "complete"),
        ("ef", "unfinished"),
    ]
    assert find_run(output, "cd")["finished_at"] == "2026-11-15"
    with pytest.raises(InputError, match="no such run: 99"):
        find_run(output, "99")
    with pytest.raises(InputError, match="no runs in it"):
        list_runs(output / "elsewhere")
    (tmp_path / "_runs" / ("ab" * 8) / "manifest.json").write_text("[]")
    with pytest.raises(InputError, match="not a manifest"):
        list_runs(output)
