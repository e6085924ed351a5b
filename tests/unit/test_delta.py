import decimal
import json
import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from moto.server import ThreadedMotoServer
from pyarrow import fs as pafs

from ray_cfnet.errors import InputError, JobError
from ray_cfnet.tables import delta, storage
from ray_cfnet.tables.delta import DeltaFile, active_files, check_format, commit_delta, is_delta, prepare_delta
from ray_cfnet.tables.delta_plan import plan_delta
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.storage import Location

NUMBERS = pa.schema([("x", pa.int64())])
RUN_A, RUN_B, RUN_C = "a" * 16, "b" * 16, "c" * 16


def write(output: Location, partition: str, rows: pa.Table | list[int], run_id: str) -> DeltaFile:
    """A file as the job writes it."""
    table = rows if isinstance(rows, pa.Table) else pa.table({"x": pa.array(rows, pa.int64())})
    path = "/".join(part for part in (partition, f"part-00000-{run_id}.parquet") if part)
    with (output / path).atomic_sink() as sink:
        pq.write_table(table, sink, store_schema=False)
    return DeltaFile(path, partition, (output / path).info().size, table.num_rows)


def commit(output: Location, rows: dict[str, list[int]], run_id: str) -> int:
    """All partitions of a run; one with an empty list has no file."""
    files = [write(output, partition, numbers, run_id) for partition, numbers in rows.items() if numbers]
    return commit_delta(output, NUMBERS, list(rows), files, run_id)


def opened(output: Location, version: int | None = None) -> DeltaTable:
    return DeltaTable(delta._uri(output), version=version, storage_options=delta._storage_options(output))


def read(output: Location, *by: str, version: int | None = None) -> dict[Any, list[int]]:
    """The rows x of each partition, through DuckDB."""
    scanned = opened(output, version).to_pyarrow_dataset()  # noqa: F841 - DuckDB finds it by its name
    key = f"({', '.join(by)})" if len(by) > 1 else by[0] if by else "''"
    rows = duckdb.sql(f"select {key}, list(x order by x) from scanned group by all").fetchall()
    return dict(rows)


@pytest.fixture
def output(tmp_path: Path) -> Location:
    return Location.of(tmp_path / "out")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-seen")
    pafs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True).create_dir(
        "delta-table"
    )
    storage._s3.cache_clear()
    yield Location.of("s3://delta-table")
    storage._s3.cache_clear()
    server.stop()


# Replacing partitions


def test_a_commit_replaces_its_partitions_and_leaves_the_others(output: Location):
    assert commit(output, {"ds=1": [1], "ds=2": [2], "ds=3": [3]}, RUN_A) == 0
    assert commit(output, {"ds=1": [10, 11], "ds=3": [30], "ds=4": [40]}, RUN_B) == 1
    assert read(output, "ds") == {"1": [10, 11], "2": [2], "3": [30], "4": [40]}
    assert active_files(output) == [
        f"ds=1/part-00000-{RUN_B}.parquet",
        f"ds=2/part-00000-{RUN_A}.parquet",
        f"ds=3/part-00000-{RUN_B}.parquet",
        f"ds=4/part-00000-{RUN_B}.parquet",
    ]


def test_the_old_rows_stay_for_time_travel(output: Location):
    commit(output, {"ds=1": [1], "ds=2": [2]}, RUN_A)
    commit(output, {"ds=1": [10]}, RUN_B)
    assert read(output, "ds", version=0) == {"1": [1], "2": [2]}
    assert [entry["userMetadata"] for entry in opened(output).history()] == [
        f"ray-cfnet run {RUN_B}",
        f"ray-cfnet run {RUN_A}",
    ]


def test_a_partition_without_files_loses_its_rows(output: Location):
    commit(output, {"ds=1": [1], "ds=2": [2]}, RUN_A)
    assert commit(output, {"ds=1": [], "ds=2": [20]}, RUN_B) == 1
    assert read(output, "ds") == {"2": [20]}
    assert commit(output, {"ds=2": []}, RUN_C) == 2
    assert read(output, "ds") == {}


def test_a_flat_table_is_replaced_as_a_whole(output: Location):
    commit(output, {"": [1, 2]}, RUN_A)
    commit(output, {"": [3]}, RUN_B)
    assert read(output) == {"": [3]}
    assert read(output, version=0) == {"": [1, 2]}


def test_nested_partitions_are_replaced_one_by_one(output: Location):
    commit(output, {f"ds={ds}/country={c}": [ds] for ds in (1, 2) for c in ("DE", "FR")}, RUN_A)
    # No single filter says (1, DE) or (2, FR).
    commit(output, {"ds=1/country=DE": [10], "ds=2/country=FR": [20]}, RUN_B)
    assert read(output, "ds", "country") == {
        ("1", "DE"): [10],
        ("1", "FR"): [1],
        ("2", "DE"): [2],
        ("2", "FR"): [20],
    }


def test_the_null_partition_is_null_and_is_replaced(output: Location):
    commit(output, {"ds=__HIVE_DEFAULT_PARTITION__": [1], "ds=1": [2]}, RUN_A)
    assert read(output, "ds") == {None: [1], "1": [2]}
    commit(output, {"ds=__HIVE_DEFAULT_PARTITION__": [9]}, RUN_B)
    assert read(output, "ds") == {None: [9], "1": [2]}


def test_rows_are_counted_from_the_log_alone(output: Location):
    commit(output, {"ds=1": [1, 2, 3], "ds=2": [4]}, RUN_A)
    for file in active_files(output):
        (output / file).delete()
    assert opened(output).count() == 4


# Repeats


def test_the_same_run_again_writes_nothing(output: Location):
    commit(output, {"ds=1": [1], "ds=2": []}, RUN_A)
    commit(output, {"ds=3": [3]}, RUN_B)
    log = sorted(os.listdir((output / "_delta_log").path))
    assert commit(output, {"ds=1": [1], "ds=2": []}, RUN_A) == 0
    assert sorted(os.listdir((output / "_delta_log").path)) == log


def test_a_run_whose_rows_were_replaced_commits_again(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    commit(output, {"ds=1": [2]}, RUN_B)
    assert commit(output, {"ds=1": [1]}, RUN_A) == 2
    assert read(output, "ds") == {"1": [1]}
    assert commit(output, {"ds=1": [1]}, RUN_A) == 2


def test_a_file_written_again_with_another_size_is_committed_again(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    assert commit(output, {"ds=1": list(range(1000))}, RUN_A) == 1
    assert len(read(output, "ds")["1"]) == opened(output).count() == 1000


def test_an_expired_log_entry_changes_nothing(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    commit(output, {"ds=2": [2]}, RUN_B)
    opened(output).create_checkpoint()
    (output / "_delta_log" / f"{0:020d}.json").delete()
    assert commit(output, {"ds=1": [1]}, RUN_A) == 1
    assert commit(output, {"ds=1": [10]}, RUN_C) == 2
    assert read(output, "ds") == {"1": [10], "2": [2]}


# Values in paths


def hive(value: str | None) -> str:
    return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(value, safe="")


def check_against_plain_reader(output: Location, partitions: dict[str, int]) -> None:
    """The Delta table, read by two engines, has the values that DuckDB reads from the paths."""
    commit(output, {partition: [number] for partition, number in partitions.items()}, RUN_A)
    # A pattern of DuckDB's would not match some of the names literally.
    files = [str(output / file) for file in active_files(output)]
    plain = duckdb.sql(
        "select ds, list(x order by x) from read_parquet($files, hive_partitioning=true, hive_types_autocast=false)"
        " group by ds",
        params={"files": files},
    ).fetchall()
    assert read(output, "ds") == dict(plain)
    table = QueryBuilder().register("t", opened(output)).execute("select ds, x from t").read_all()
    assert {row["x"]: row["ds"] for row in pa.table(table).to_pylist()} == {
        x: ds for ds, numbers in plain for x in numbers
    }
    commit(output, {partition: [-number] for partition, number in partitions.items()}, RUN_B)
    assert sorted(x for numbers in read(output, "ds").values() for x in numbers) == sorted(
        -number for number in partitions.values()
    )


SPECIAL = ["New York", "50%", "%20", "k=v", "Zürich", "日本 🎉", "a/b", "a+b", "q?x#y", "it's", 'a"b', "a:b", "NULL"]


def test_special_characters_are_what_duckdb_reads_from_the_paths(output: Location):
    encoded = {f"ds={hive(value)}": number for number, value in enumerate([*SPECIAL, None], 1)}
    check_against_plain_reader(output, encoded)
    assert set(read(output, "ds")) == {*SPECIAL, None}


def test_names_that_nobody_encoded_work_too(output: Location):
    names = ["New York", "Zürich", "日本 🎉", "a+b", "q#x", "it's", "a:b"]
    check_against_plain_reader(output, {f"ds={name}": number for number, name in enumerate(names, 1)})
    assert set(read(output, "ds")) == set(names)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20))
@example("..")
@example(" ")
def test_any_value_round_trips(tmp_path_factory: pytest.TempPathFactory, value: str):
    output = Location.of(tmp_path_factory.mktemp("any"))
    commit(output, {f"ds={hive(value)}": [1], "ds=other than it": [2]}, RUN_A)
    commit(output, {f"ds={hive(value)}": [3]}, RUN_B)
    assert read(output, "ds") == {value: [3], "other than it": [2]}


@pytest.mark.parametrize("name", ["a b", "50%", "a#b", "ü", "a?b", "t v%#ü?"])
def test_an_output_path_with_special_characters(tmp_path: Path, name: str):
    output = Location.of(tmp_path / name)
    commit(output, {"ds=a%20b": [1], "ds=c": [2]}, RUN_A)
    commit(output, {"ds=a%20b": [3]}, RUN_B)
    assert read(output, "ds") == {"a b": [3], "c": [2]}
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["a%20b", "a\\b"])
def test_an_output_path_that_deltalake_would_mistake_is_refused(output: Location, name: str):
    with pytest.raises(InputError, match="%-escapes or backslashes"):
        prepare_delta(output / name, NUMBERS, ["ds=1"])
    assert not output.exists()


@pytest.mark.parametrize("partition", ["2026/11", "ds=1/part", "ds=", "=1"])
def test_a_layout_that_is_not_column_value_is_refused(output: Location, partition: str):
    with pytest.raises(InputError, match=r"is not column=value"):
        prepare_delta(output, NUMBERS, [partition])
    assert not output.exists()


def test_partitions_with_different_columns_are_refused(output: Location):
    with pytest.raises(InputError, match=r"ds=1 and month=11 have different columns"):
        prepare_delta(output, NUMBERS, ["ds=1", "month=11"])


@pytest.mark.parametrize("partition", ["x=1", "X=1"])
def test_a_partition_column_inside_the_files_is_refused(output: Location, partition: str):
    with pytest.raises(InputError, match=r"columns x and [xX] are one to Delta"):
        prepare_delta(output, NUMBERS, [partition])


def test_files_outside_the_partitions_are_a_mistake_of_the_caller(output: Location):
    with pytest.raises(ValueError, match="ds=2"):
        commit_delta(output, NUMBERS, ["ds=1"], [write(output, "ds=2", [1], RUN_A)], RUN_A)
    assert not is_delta(output)


# Types


MOMENT = datetime(2026, 11, 15, 12, 30, 1)
KEPT: list[tuple[pa.DataType, Any]] = [
    (pa.bool_(), True),
    (pa.int8(), -1),
    (pa.int64(), 2**60),
    (pa.float32(), 0.5),
    (pa.float64(), 0.1),
    (pa.string(), "ü"),
    (pa.large_string(), "ü"),
    (pa.dictionary(pa.int32(), pa.string()), "ü"),
    (pa.binary(), b"b"),
    (pa.binary(2), b"bb"),
    (pa.date32(), date(2026, 11, 15)),
    (pa.date64(), date(2026, 11, 15)),
    (pa.timestamp("s"), MOMENT),
    (pa.timestamp("ms"), MOMENT),
    (pa.timestamp("us"), MOMENT),
    (pa.timestamp("us", "UTC"), MOMENT.replace(tzinfo=UTC)),
    (pa.timestamp("s", "Europe/Berlin"), MOMENT.replace(tzinfo=UTC)),
    (pa.decimal128(38, 2), decimal.Decimal("1.50")),
    (pa.list_(pa.int32()), [1, 2]),
    (pa.large_list(pa.timestamp("s")), [MOMENT]),
    (pa.list_(pa.int32(), 2), [1, 2]),
    (pa.struct([("a", pa.dictionary(pa.int8(), pa.string())), ("b", pa.list_(pa.int8()))]), {"a": "x", "b": [1]}),
    (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
]


@pytest.mark.parametrize(("kind", "value"), KEPT, ids=[str(kind) for kind, _ in KEPT])
def test_values_of_every_type_come_back(output: Location, kind: pa.DataType, value: Any):
    rows = pa.table({"c": pa.array([value, None], kind)})
    commit_delta(output, rows.schema, [""], [write(output, "", rows, RUN_A)], RUN_A)
    assert opened(output).to_pyarrow_table().column("c").to_pylist() == [value, None]
    table = QueryBuilder().register("t", opened(output)).execute("select * from t").read_all()
    assert pa.table(table).column("c").to_pylist() == [value, None]


REFUSED = [
    pa.uint8(),
    pa.uint64(),
    pa.float16(),
    pa.time32("s"),
    pa.time64("us"),
    pa.duration("us"),
    pa.decimal256(50, 2),
    pa.decimal128(5, -2),
    pa.timestamp("ns"),
    pa.timestamp("ns", "UTC"),
    pa.null(),
    pa.month_day_nano_interval(),
    pa.list_(pa.uint8()),
    pa.struct([("a", pa.float16())]),
    pa.map_(pa.string(), pa.time32("s")),
    pa.dictionary(pa.int8(), pa.uint16()),
]


@pytest.mark.parametrize("kind", REFUSED, ids=str)
def test_a_type_that_delta_lacks_is_named_before_anything_is_written(output: Location, kind: pa.DataType):
    columns = pa.schema([("x", pa.int64()), ("odd", kind)])
    for attempt in (
        lambda: prepare_delta(output, columns, [""]),
        lambda: commit_delta(output, columns, [""], [DeltaFile("p", "", 1, 1)], RUN_A),
    ):
        with pytest.raises(InputError) as caught:
            attempt()
        assert f"column odd is {kind}; use " in caught.value.problem
        assert "output.format to parquet" in caught.value.remedy
    assert not output.exists()


# Changed columns


def rows_with_moment(x: int) -> pa.Table:
    # A timestamp without a time zone needs a table feature that the first version does not have.
    return pa.table({"x": [x], "seen": pa.array([MOMENT], pa.timestamp("us"))})


def test_new_columns_for_all_partitions_define_the_table_anew(output: Location):
    commit(output, {"ds=1": [1], "ds=2": [2]}, RUN_A)
    rows = rows_with_moment(3)
    prepare_delta(output, rows.schema, ["ds=1", "ds=2"])
    files = [write(output, "ds=2", rows, RUN_B)]
    assert commit_delta(output, rows.schema, ["ds=1", "ds=2"], files, RUN_B) == 1
    assert opened(output).to_pyarrow_table().to_pylist() == [{"x": 3, "seen": MOMENT, "ds": "2"}]
    assert read(output, "ds", version=0) == {"1": [1], "2": [2]}
    assert commit_delta(output, rows.schema, ["ds=1", "ds=2"], files, RUN_B) == 1
    assert commit(output, {"ds=2": [4]}, RUN_C) == 2  # and back
    assert read(output, "ds") == {"2": [4]}


def comments(output: Location) -> dict[str, str]:
    return {field.name: field.metadata["comment"] for field in opened(output).schema().fields if field.metadata}


COMMENTED = pa.schema(
    [
        pa.field(
            "x",
            pa.int64(),
            metadata={"comment": "größer is 'better'", "PARQUET:field_id": "7", "delta.generationExpression": "1"},
        )
    ]
)


def test_comments_of_columns_stand_in_the_table(output: Location):
    prepare_delta(output, COMMENTED, ["ds=1"])
    commit_delta(output, COMMENTED, ["ds=1"], [write(output, "ds=1", [1], RUN_A)], RUN_A)
    commit_delta(output, COMMENTED, ["ds=2"], [write(output, "ds=2", [2], RUN_B)], RUN_B)
    assert comments(output) == {"x": "größer is 'better'"}
    [x, ds] = opened(output).schema().fields
    assert (x.metadata, ds.metadata) == ({"comment": "größer is 'better'"}, {}), "other keys may mean something"
    assert read(output, "ds") == {"1": [1], "2": [2]}
    opened(output).create_checkpoint()
    assert comments(output) == {"x": "größer is 'better'"}


def test_a_table_without_comments_goes_on_without_them(output: Location):
    commit(output, {"ds=1": [1], "ds=2": [2]}, RUN_A)
    prepare_delta(output, COMMENTED, ["ds=1"])
    assert commit_delta(output, COMMENTED, ["ds=1"], [write(output, "ds=1", [10], RUN_B)], RUN_B) == 1
    assert comments(output) == {}
    assert read(output, "ds") == {"1": [10], "2": [2]}


def test_comments_that_the_tables_owner_changed_stay(output: Location):
    prepare_delta(output, COMMENTED, ["ds=1"])
    opened(output).alter.set_column_metadata("x", {"comment": "ours"})
    assert commit_delta(output, COMMENTED, ["ds=1"], [write(output, "ds=1", [1], RUN_A)], RUN_A) == 2
    assert comments(output) == {"x": "ours"}


def test_a_table_defined_anew_keeps_its_properties(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    opened(output).alter.set_table_properties({"delta.logRetentionDuration": "interval 5 days"})
    rows = rows_with_moment(3)
    commit_delta(output, rows.schema, ["ds=1"], [write(output, "ds=1", rows, RUN_B)], RUN_B)
    assert opened(output).metadata().configuration == {"delta.logRetentionDuration": "interval 5 days"}


def test_new_columns_for_some_partitions_are_refused(output: Location):
    commit(output, {"ds=1": [1], "ds=2": [2]}, RUN_A)
    rows = rows_with_moment(3)
    for attempt in (
        lambda: prepare_delta(output, rows.schema, ["ds=1"]),
        lambda: commit_delta(output, rows.schema, ["ds=1"], [write(output, "ds=1", rows, RUN_B)], RUN_B),
    ):
        with pytest.raises(InputError, match=r"seen \(missing there, timestamp_ntz here\)") as caught:
            attempt()
        assert "all partitions at once" in caught.value.remedy
    assert read(output, "ds") == {"1": [1], "2": [2]}


def test_another_partitioning_is_refused(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    with pytest.raises(InputError, match=r"partitioned by ds there, by nothing here"):
        prepare_delta(output, NUMBERS, [""])


def test_columns_in_another_order_are_the_same(output: Location):
    rows = rows_with_moment(1)
    commit_delta(output, rows.schema, ["ds=1"], [write(output, "ds=1", rows, RUN_A)], RUN_A)
    turned = rows_with_moment(2).select(["seen", "x"])
    commit_delta(output, turned.schema, ["ds=2"], [write(output, "ds=2", turned, RUN_B)], RUN_B)
    assert read(output, "ds") == {"1": [1], "2": [2]}


def test_a_table_altered_after_its_run_is_not_overwritten_with_its_own_files(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    opened(output).alter.add_columns([Field("more", PrimitiveType("string"))])
    with pytest.raises(JobError, match="another program changed the columns"):
        commit(output, {"ds=1": [1]}, RUN_A)


def test_a_delta_table_as_input_has_the_rows_of_its_newest_version_alone(output: Location):
    commit(output, {"ds=1": [1], "ds=2": [2]}, RUN_A)
    new = write(output, "ds=1", [3, 4], RUN_B)
    commit_delta(output, NUMBERS, ["ds=1"], [new], RUN_B)
    source = open_source(str(output))
    assert (source.partitions, source.num_rows) == (["ds=1", "ds=2"], 3)
    (output / new.path).delete()
    with pytest.raises(InputError, match=f"names {new.path}, which is not there"):
        open_source(str(output))


def test_a_table_with_deletion_vectors_is_refused(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors"],
    }
    (output / "_delta_log" / f"{1:020d}.json").write_bytes(json.dumps({"protocol": protocol}).encode())
    with pytest.raises(InputError, match="deletion vectors"):
        commit(output, {"ds=1": [2]}, RUN_B)
    with pytest.raises(InputError, match="deletion vectors"):
        open_source(str(output))


# Before a run, and around it


def test_a_run_that_dies_before_its_commit_can_be_repeated(output: Location):
    prepare_delta(output, NUMBERS, ["ds=1"])
    write(output, "ds=1", [1], RUN_A)
    assert active_files(output) == []
    prepare_delta(output, NUMBERS, ["ds=1"])
    assert commit(output, {"ds=1": [1]}, RUN_A) == 1
    assert read(output, "ds") == {"1": [1]}


def test_columns_may_change_while_the_table_is_empty(output: Location):
    prepare_delta(output, NUMBERS, ["ds=1"])
    rows = rows_with_moment(3)
    prepare_delta(output, rows.schema, ["ds=1/country=DE"])
    file = write(output, "ds=1/country=DE", rows, RUN_A)
    assert commit_delta(output, rows.schema, [file.partition], [file], RUN_A) == 1
    assert opened(output).metadata().partition_columns == ["ds", "country"]


def test_an_output_of_the_other_format_is_refused(output: Location):
    check_format(output, "delta")
    check_format(output, "parquet")
    write(output, "ds=1", [1], RUN_A)
    check_format(output, "parquet")
    with pytest.raises(InputError, match=r"plain Parquet files of an earlier run, such as ds=1/part-00000") as caught:
        prepare_delta(output, NUMBERS, ["ds=1"])
    assert "output.path" in caught.value.remedy
    assert not is_delta(output)


def test_a_plain_run_onto_a_delta_table_is_refused(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    check_format(output, "delta")
    with pytest.raises(InputError, match="holds a Delta table") as caught:
        check_format(output, "parquet")
    assert "output.path" in caught.value.remedy


def test_files_of_somebody_else_are_no_plain_table(output: Location):
    (output / "notes.parquet").write_bytes(b"")
    (output / "_models" / "current.json").write_bytes(b"")
    check_format(output, "delta")
    assert active_files(output) == []


def test_without_the_package_the_remedy_names_the_extra(output: Location, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "deltalake", None)
    check_format(output, "parquet")
    with pytest.raises(InputError, match="package deltalake") as caught:
        prepare_delta(output, NUMBERS, ["ds=1"])
    assert caught.value.remedy == "pip install 'ray-cfnet[delta]'"


def test_vacuum_leaves_what_the_job_keeps_beside_the_table(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    commit(output, {"ds=1": [2]}, RUN_B)
    for name in (f"_rejects/ds=1/part-00000-{RUN_B}.parquet", f"_runs/{RUN_B}/manifest.json", ".lock"):
        (output / name).write_bytes(b"")
    gone = opened(output).vacuum(0, dry_run=True, enforce_retention_duration=False, full=True)
    assert gone == [f"ds=1/part-00000-{RUN_A}.parquet"]


def test_a_reader_sees_the_old_or_the_new_rows_and_nothing_between(output: Location):
    partitions = [f"ds={number}" for number in range(5)]
    commit(output, {partition: [0] for partition in partitions}, RUN_A)
    seen: set[tuple[int, ...]] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(tuple(sorted(x for numbers in read(output, "ds").values() for x in numbers)))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(1, 13):
        # As many rows in every partition as the number of the commit, each with that number.
        commit(output, {partition: [number] * number for partition in partitions}, f"{number:016x}")
    done.set()
    reader.join()
    assert seen <= {(0,) * 5, *((number,) * (5 * number) for number in range(1, 13))}
    assert len(seen) > 1


def test_a_commit_that_another_writer_overtook_fails(output: Location):
    commit(output, {"ds=1": [1]}, RUN_A)
    stale = opened(output)
    commit(output, {"ds=1": [2]}, RUN_B)
    plan = plan_delta(output, NUMBERS, ["ds=1"])
    with pytest.raises(JobError, match="concurrent transaction"):
        delta._replace_partitions(
            output, stale, plan, [write(output, "ds=1", [3], RUN_C)], delta._active(stale), "overtaken"
        )
    assert read(output, "ds") == {"1": [2]}


# In a bucket


def test_a_delta_table_in_a_bucket(bucket: Location):
    output = bucket / "out #1 ü"
    prepare_delta(output, NUMBERS, ["ds=1"])
    assert is_delta(output)
    assert commit(output, {"ds=1": [1], "ds=New York": [2], "ds=50%25": [3]}, RUN_A) == 1
    assert commit(output, {"ds=New York": [20], "ds=1": []}, RUN_B) == 2
    assert commit(output, {"ds=New York": [20], "ds=1": []}, RUN_B) == 2
    assert read(output, "ds") == {"New York": [20], "50%": [3]}
    assert read(output, "ds", version=1) == {"1": [1], "New York": [2], "50%": [3]}
    assert active_files(output) == [f"ds=50%25/part-00000-{RUN_A}.parquet", f"ds=New York/part-00000-{RUN_B}.parquet"]
    with pytest.raises(InputError, match="holds a Delta table"):
        check_format(output, "parquet")


def test_in_a_bucket_no_commit_overwrites_another(bucket: Location):
    output = bucket / "out"
    commit(output, {"ds=1": [1]}, RUN_A)
    stale = opened(output)
    commit(output, {"ds=1": [2]}, RUN_B)
    plan = plan_delta(output, NUMBERS, ["ds=1"])
    with pytest.raises(JobError, match="concurrent transaction"):
        delta._replace_partitions(output, stale, plan, [], delta._active(stale), "overtaken")
    assert read(output, "ds") == {"1": [2]}


def test_credentials_are_neither_passed_on_nor_shown(bucket: Location):
    assert "not-to-be-seen" not in json.dumps(delta._storage_options(bucket))
    plan = plan_delta(bucket, NUMBERS, [""])
    with pytest.raises(JobError, match="no-such-bucket") as caught:
        delta._replace_table(Location.of("s3://no-such-bucket/out"), plan, [], "", None)
    assert "not-to-be-seen" not in str(caught.value)
