import posixpath
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_cfnet.errors import InputError
from ray_cfnet.tables import plan
from ray_cfnet.tables.drift import check_columns, common_columns, conform
from ray_cfnet.tables.plan import Source, SourceFile, Unit, open_source, read_unit
from ray_cfnet.tables.storage import FoundFile, Location
from tests.unit.strategies import row_group_layouts


def source_of(layout: list[tuple[str, list[int]]]) -> Source:
    """A table as its footers would describe it; no file is written."""
    paths = sorted(
        (posixpath.join(partition, f"part-{number}.parquet"), groups)
        for number, (partition, groups) in enumerate(layout)
    )
    files, first_row = [], 0
    for path, groups in paths:
        files.append(SourceFile(FoundFile(path, 1, 1), tuple(groups), pa.schema([("n", pa.int64())]), first_row))
        first_row += sum(groups)
    return Source(Location("/table"), tuple(files))


def write(path: Path, numbers: range, row_group_rows: int = 5, **columns: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"n": pa.array(numbers, pa.int64()), **columns})
    pq.write_table(table, path, row_group_size=row_group_rows)


def row_groups(units: list[Unit]) -> list[tuple[str, int]]:
    return [(piece.path, group) for unit in units for piece in unit.pieces for group in piece.row_groups]


def remedy_of(error: pytest.ExceptionInfo[InputError]) -> str:
    return error.value.remedy


@given(row_group_layouts, st.integers(1, 30))
def test_units_cover_every_row_exactly_once(layout: list[tuple[str, list[int]]], unit_rows: int):
    source = source_of(layout)
    units = source.units(unit_rows)
    covered = [
        row
        for unit in units
        for piece in unit.pieces
        for row in range(piece.first_row, piece.first_row + piece.num_rows)
    ]
    assert sorted(covered) == list(range(sum(sum(groups) for _, groups in layout)))


@given(row_group_layouts, st.integers(1, 30))
def test_units_cover_every_row_group_with_rows_exactly_once(layout: list[tuple[str, list[int]]], unit_rows: int):
    source = source_of(layout)
    with_rows = {
        (file.found.path, group): rows
        for file in source.files
        for group, rows in enumerate(file.row_group_rows)
        if rows
    }
    covered = row_groups(source.units(unit_rows))
    assert sorted(group for group in covered if group in with_rows) == sorted(with_rows)


@given(row_group_layouts, st.integers(1, 30))
def test_a_piece_holds_the_rows_that_its_row_groups_hold(layout: list[tuple[str, list[int]]], unit_rows: int):
    source = source_of(layout)
    files = {file.found.path: file for file in source.files}
    for unit in source.units(unit_rows):
        for piece in unit.pieces:
            file = files[piece.path]
            assert piece.num_rows == sum(file.row_group_rows[group] for group in piece.row_groups)
            assert piece.first_row == file.first_row + sum(file.row_group_rows[: piece.row_groups[0]])
            assert list(piece.row_groups) == sorted(set(piece.row_groups))


@given(row_group_layouts, st.integers(1, 30))
def test_a_unit_never_crosses_partitions(layout: list[tuple[str, list[int]]], unit_rows: int):
    for unit in source_of(layout).units(unit_rows):
        assert {posixpath.dirname(piece.path) for piece in unit.pieces} == {unit.partition}


@given(row_group_layouts, st.integers(1, 30))
def test_a_unit_exceeds_the_rows_asked_for_only_by_a_single_row_group(
    layout: list[tuple[str, list[int]]], unit_rows: int
):
    source = source_of(layout)
    for unit in source.units(unit_rows):
        assert unit.num_rows <= unit_rows or max(unit_sizes(source, unit)) == unit.num_rows


def unit_sizes(source: Source, unit: Unit) -> list[int]:
    rows = {file.found.path: file.row_group_rows for file in source.files}
    return [rows[piece.path][group] for piece in unit.pieces for group in piece.row_groups]


@given(row_group_layouts, st.integers(1, 30))
def test_no_unit_is_empty_and_units_are_numbered_in_order(layout: list[tuple[str, list[int]]], unit_rows: int):
    units = source_of(layout).units(unit_rows)
    assert [unit.number for unit in units] == list(range(len(units)))
    assert all(piece.num_rows for unit in units for piece in unit.pieces)


def test_small_files_share_a_unit():
    [unit] = source_of([("ds=1", [3]), ("ds=1", [4]), ("ds=1", [2])]).units(10)
    assert unit.num_rows == 9
    assert len(unit.pieces) == 3


def test_large_files_are_cut_between_row_groups():
    units = source_of([("", [10, 10, 10, 10])]).units(20)
    assert [unit.pieces[0].row_groups for unit in units] == [(0, 1), (2, 3)]
    assert [unit.pieces[0].first_row for unit in units] == [0, 20]


def test_a_table_is_opened_with_its_files_in_path_order(tmp_path: Path):
    write(tmp_path / "ds=2" / "b.parquet", range(12, 20))
    write(tmp_path / "ds=1" / "a.parquet", range(12))
    write(tmp_path / "ds=1" / "_hidden.parquet", range(99))
    (tmp_path / "ds=1" / "notes.txt").write_text("not data")
    source = open_source(str(tmp_path))
    assert [file.found.path for file in source.files] == ["ds=1/a.parquet", "ds=2/b.parquet"]
    assert [file.row_group_rows for file in source.files] == [(5, 5, 2), (5, 3)]
    assert [file.first_row for file in source.files] == [0, 12]
    assert source.partitions == ["ds=1", "ds=2"]
    assert source.num_rows == 20


def test_of_partitions_that_are_not_wanted_nothing_is_read_and_rows_are_numbered_without_them(tmp_path: Path):
    for day in ("1", "2", "3"):
        write(tmp_path / f"ds={day}" / "a.parquet", range(4))
    (tmp_path / "ds=2" / "b.parquet").write_bytes(b"half a file")
    source = open_source(str(tmp_path), wanted=lambda partition: partition != "ds=2")
    assert [(file.found.path, file.first_row) for file in source.files] == [
        ("ds=1/a.parquet", 0),
        ("ds=3/a.parquet", 4),
    ]
    assert (source.num_rows, source.unreadable) == (8, ())
    with pytest.raises(InputError, match="not a readable Parquet file"):
        open_source(str(tmp_path), wanted=lambda partition: partition == "ds=2")
    with pytest.raises(InputError, match="none of its partitions was asked for"):
        open_source(str(tmp_path), wanted=lambda _: False)


def test_a_single_file_is_a_table(tmp_path: Path):
    write(tmp_path / "loans.parquet", range(7))
    source = open_source(str(tmp_path / "loans.parquet"))
    assert [file.found.path for file in source.files] == ["loans.parquet"]
    assert source.partitions == [""]
    assert source.num_rows == 7


@pytest.mark.parametrize("batch_rows", [1, 4, 100])
@pytest.mark.parametrize("unit_rows", [1, 7, 1000])
def test_reading_all_units_gives_all_rows_in_order_with_their_numbers(tmp_path: Path, batch_rows: int, unit_rows: int):
    write(tmp_path / "ds=1" / "a.parquet", range(12))
    write(tmp_path / "ds=1" / "b.parquet", range(12, 15), 2)
    write(tmp_path / "ds=2" / "a.parquet", range(15, 40), 9)
    source = open_source(str(tmp_path))
    seen = []
    for unit in source.units(unit_rows):
        for piece, first_row, batch in read_unit(source.root, unit, ["n"], [], batch_rows):
            assert batch.column("n").to_pylist() == list(range(first_row, first_row + batch.num_rows))
            assert piece in unit.pieces
            seen += batch.column("n").to_pylist()
    assert seen == list(range(40))


def test_of_wide_rows_fewer_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "_BATCH_BYTES", 1_000)
    texts = [f"{number}".zfill(100) for number in range(60)]
    write(tmp_path / "a.parquet", range(60), 60, text=texts, lists=[[text] for text in texts])
    source = open_source(str(tmp_path))
    [unit] = source.units(100)

    def sizes(columns: list[str] | None) -> list[int]:
        return [batch.num_rows for _, _, batch in read_unit(source.root, unit, columns, [], 50)]

    assert sizes(["n"]) == [50, 10]
    assert max(sizes(["n", "text"])) < 10
    assert max(sizes(["n", "lists"])) < 10
    assert max(sizes(None)) < 5
    assert sum(sizes(None)) == 60


def test_reading_gives_the_columns_asked_for_and_dictionaries_where_asked(tmp_path: Path):
    write(tmp_path / "a.parquet", range(3), town=["a", "b", "a"], other=[1, 2, 3])
    source = open_source(str(tmp_path))
    [unit] = source.units(100)
    [(_, _, batch)] = read_unit(source.root, unit, ["n", "town"], ["town"], 100)
    assert batch.schema.names == ["n", "town"]
    assert pa.types.is_dictionary(batch.schema.field("town").type)
    assert batch.column("town").to_pylist() == ["a", "b", "a"]


def test_a_file_that_vanishes_before_it_is_read_is_named(tmp_path: Path):
    write(tmp_path / "a.parquet", range(3))
    source = open_source(str(tmp_path))
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read"):
        list(read_unit(source.root, source.units(10)[0], None, [], 10))


def test_a_file_damaged_after_planning_is_named(tmp_path: Path):
    write(tmp_path / "a.parquet", range(1000), 1000)
    source = open_source(str(tmp_path))
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:200] = b"\xff" * 196
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.parquet: cannot be read"):
        list(read_unit(source.root, source.units(10**6)[0], None, [], 100))


def test_a_missing_path_is_named(tmp_path: Path):
    with pytest.raises(InputError, match="nowhere: no such file or directory") as error:
        open_source(str(tmp_path / "nowhere"))
    assert "table.path" in remedy_of(error)


def test_a_directory_without_parquet_files_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("not data")
    with pytest.raises(InputError, match="no Parquet files in it"):
        open_source(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"PAR1 cut short"])
def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes):
    write(tmp_path / "a.parquet", range(3))
    (tmp_path / "b.parquet").write_bytes(content)
    with pytest.raises(InputError, match=r"b\.parquet: not a readable Parquet file") as error:
        open_source(str(tmp_path))
    assert remedy_of(error)


def test_an_unreadable_file_beside_the_partitions_is_named_and_not_a_partition(tmp_path: Path):
    write(tmp_path / "ds=1" / "a.parquet", range(3))
    (tmp_path / "upload").write_bytes(b"half a file")
    with pytest.raises(InputError, match=r"upload: not a readable Parquet file") as error:
        open_source(str(tmp_path), in_parts=True)
    assert remedy_of(error)
    (tmp_path / "upload").rename(tmp_path / "ds=1" / "upload")
    source = open_source(str(tmp_path), in_parts=True)
    assert (source.partitions, [file.found.path for file in source.unreadable]) == (["ds=1"], ["ds=1/upload"])


@pytest.mark.parametrize("in_parts", [False, True])
def test_empty_files_without_an_ending_mark_directories_and_are_no_part_of_the_table(tmp_path: Path, in_parts: bool):
    write(tmp_path / "ds=2026-11-15" / "a.parquet", range(3))
    for marker in ("ds=2026-11-15_$folder$", "ds=2026-11-15/nothing"):
        (tmp_path / marker).touch()
    source = open_source(str(tmp_path), in_parts)
    assert [file.found.path for file in source.all_files] == ["ds=2026-11-15/a.parquet"]


def test_a_file_whose_column_names_are_damaged_is_named(tmp_path: Path):
    pq.write_table(pa.table({"income": [1]}), tmp_path / "a.parquet", store_schema=False)
    content = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(content.replace(b"income", b"\xffncome"))
    with pytest.raises(InputError, match=r"a\.parquet: not a readable Parquet file \('utf-8' codec"):
        open_source(str(tmp_path))


def test_a_file_with_two_columns_of_one_name_cannot_be_read_and_is_named(tmp_path: Path):
    write(tmp_path / "ds=1" / "a.parquet", range(3))
    write(tmp_path / "ds=2" / "a.parquet", range(3))
    pq.write_table(pa.table([[1], [2]], names=["n", "n"]), tmp_path / "ds=2" / "b.parquet")
    with pytest.raises(InputError, match=r"ds=2/b\.parquet: has more than one column called n"):
        open_source(str(tmp_path))
    [bad] = open_source(str(tmp_path), in_parts=True).unreadable
    assert bad.partition == "ds=2"


@pytest.mark.parametrize(
    ("error", "attempts"),
    [(pa.ArrowNotImplementedError("no such type"), 1), (pa.ArrowInvalid("no magic bytes"), 1), (OSError("reset"), 3)],
    ids=["not implemented", "invalid", "storage"],
)
def test_a_footer_is_read_again_only_where_the_storage_may_have_stumbled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int
):
    write(tmp_path / "a.parquet", range(3))
    tried = []

    def fails(path: str, **_: object) -> None:
        tried.append(path)
        raise error

    monkeypatch.setattr(pq, "ParquetFile", fails)
    with pytest.raises(InputError, match=rf"a\.parquet: not .* \({error}\)"):
        open_source(str(tmp_path))
    assert len(tried) == attempts


def test_a_footer_that_can_be_read_the_second_time_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path / "a.parquet", range(3))
    real, failing = pq.ParquetFile, iter([True])

    def fails_once(*args: object, **kwargs: object) -> pq.ParquetFile:
        if next(failing, False):
            raise OSError("reset")
        return real(*args, **kwargs)

    monkeypatch.setattr(pq, "ParquetFile", fails_once)
    assert open_source(str(tmp_path)).num_rows == 3


def test_a_table_with_zero_rows_is_refused(tmp_path: Path):
    write(tmp_path / "a.parquet", range(0))
    with pytest.raises(InputError, match="the table has zero rows"):
        open_source(str(tmp_path))


def test_an_empty_file_beside_a_full_one_is_no_work(tmp_path: Path):
    write(tmp_path / "a.parquet", range(0))
    write(tmp_path / "b.parquet", range(4))
    [unit] = open_source(str(tmp_path)).units(10)
    assert [piece.path for piece in unit.pieces] == ["b.parquet"]


def test_a_missing_column_comes_with_the_nearest_name(tmp_path: Path):
    write(tmp_path / "a.parquet", range(3), income=[1, 2, 3])
    with pytest.raises(InputError, match=r"a\.parquet: column incme is missing; did you mean income\?"):
        check_columns(open_source(str(tmp_path)), {"incme": None})


def test_a_missing_column_without_a_near_name_comes_with_all_names(tmp_path: Path):
    write(tmp_path / "a.parquet", range(3), income=[1, 2, 3])
    with pytest.raises(InputError, match="column zzz is missing; the file has n, income"):
        check_columns(open_source(str(tmp_path)), {"zzz": None})


def test_all_columns_at_fault_in_all_files_come_in_one_error(tmp_path: Path):
    write(tmp_path / "a.parquet", range(3), income=[1, 2, 3])
    write(tmp_path / "b.parquet", range(3), incom=["x", "y", "z"], n2=[1, 2, 3])
    with pytest.raises(InputError) as error:
        check_columns(open_source(str(tmp_path)), {"income": "int64", "n2": None, "n": "string"})
    for fault in ("a.parquet: column n2 is missing", "b.parquet: column income is missing", "column n is int64"):
        assert fault in str(error.value)


@pytest.mark.parametrize(
    ("actual", "wanted", "fits"),
    [
        (pa.int64(), "int64", True),
        (pa.int64(), "int32", True),
        (pa.int32(), "int64", False),
        (pa.float32(), "double", False),
        (pa.large_string(), "string", True),
        (pa.dictionary(pa.int32(), pa.string()), "string", True),
        (pa.decimal128(9, 2), "decimal128(9, 2)", True),
        (pa.decimal128(9, 3), "decimal128(9, 2)", False),
        (pa.string(), "int64", False),
        (pa.float64(), "int64", False),
        (pa.int64(), "bool", False),
        (pa.float64(), "halffloat", True),
    ],
    ids=str,
)
def test_a_column_must_hold_what_the_schema_expects(actual: pa.DataType, wanted: str, fits: bool):
    file = SourceFile(FoundFile("a.parquet", 1, 1), (3,), pa.schema([("x", actual)]), 0)
    source = Source(Location("/table"), (file,))
    if fits:
        check_columns(source, {"x": wanted})
    else:
        with pytest.raises(InputError, match="column x is"):
            check_columns(source, {"x": wanted})


def test_files_with_other_columns_than_the_first_are_refused(tmp_path: Path):
    write(tmp_path / "a.parquet", range(3), income=[1, 2, 3])
    write(tmp_path / "b.parquet", range(3), income=[1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"b\.parquet: other columns than in a\.parquet: income \(int64 / double\)"):
        common_columns(open_source(str(tmp_path)))


def test_files_with_the_same_columns_in_another_order_are_read_in_the_order_of_the_first(tmp_path: Path):
    write(tmp_path / "a.parquet", range(3), income=[10, 20, 30], debt=[1, 2, 3])
    pq.write_table(pq.read_table(tmp_path / "a.parquet").select(["debt", "n", "income"]), tmp_path / "b.parquet")
    source = open_source(str(tmp_path))
    columns = common_columns(source)
    [unit] = source.units(100)
    first, second = (
        conform(batch, columns, []) for _, _, batch in read_unit(source.root, unit, columns.names, [], 100)
    )
    assert first.equals(second)
    assert first.column("debt").to_pylist() == [1, 2, 3]


def test_a_partition_keeps_the_row_numbers_of_the_whole_table():
    source = source_of([("ds=1", [5]), ("ds=2", [3, 4])]).within("ds=2")
    assert [(file.partition, file.first_row) for file in source.files] == [("ds=2", 5)]


def test_a_partition_includes_the_partitions_below_it():
    source = source_of([("ds=1", [5]), ("ds=2", [3]), ("ds=2/town=a", [4]), ("ds=22", [9])]).within("ds=2/")
    assert source.partitions == ["ds=2", "ds=2/town=a"]


def test_partition_columns_are_those_in_the_paths():
    source = source_of([("ds=1/town=a=b", [5]), ("ds=2/old", [3]), ("", [4])])
    assert source.partition_columns == ["ds", "town"]


def test_an_unknown_partition_comes_with_the_nearest_name():
    source = source_of([("ds=2026-11-14", [5]), ("ds=2026-11-15", [5])])
    with pytest.raises(InputError, match="no partition ds=2025-11-15") as error:
        source.within("ds=2025-11-15")
    assert remedy_of(error) == "did you mean --partition ds=2026-11-15?"


def test_an_unknown_partition_unlike_any_other_does_not_deny_that_there_are_partitions():
    with pytest.raises(InputError) as error:
        source_of([("ds=2026-11-14", [5])]).within("zzz")
    assert "no partitions" not in remedy_of(error)


def test_a_flat_table_says_that_it_has_no_partitions():
    with pytest.raises(InputError) as error:
        source_of([("", [5])]).within("ds=1")
    assert "the table has no partitions" in remedy_of(error)


def test_files_whose_strings_are_stored_in_different_ways_become_one_table(tmp_path: Path):
    towns = pa.array(["Rom", "Ulm", "Rom"])
    write(tmp_path / "a.parquet", range(3), town=towns, note=towns)
    write(tmp_path / "b.parquet", range(3), town=towns.dictionary_encode(), note=towns.dictionary_encode())
    write(tmp_path / "c.parquet", range(3), town=towns.cast(pa.large_string()), note=towns.cast(pa.large_string()))
    source = open_source(str(tmp_path))
    columns = common_columns(source)
    assert [str(field.type) for field in columns] == ["int64", "string", "string"]
    types = set()
    for unit in source.units(100):
        for _, _, batch in read_unit(source.root, unit, columns.names, ["town"], 100):
            table = conform(batch, columns, ["town"])
            types.add(tuple(str(field.type) for field in table.schema)[1:])
            assert table.column("note").to_pylist() == table.column("town").to_pylist() == towns.to_pylist()
    assert types == {("dictionary<values=string, indices=int32, ordered=0>", "string")}


def test_a_column_without_a_single_value_in_some_file_takes_the_type_it_has_in_others(tmp_path: Path):
    tags = pa.array([["x"], None, []], pa.list_(pa.string()))
    full = {"town": pa.array(["Rom", None, "Ulm"]).dictionary_encode(), "tags": tags, "never": pa.nulls(3)}
    write(tmp_path / "a.parquet", range(3), **dict.fromkeys(full, pa.nulls(3)))
    write(tmp_path / "b.parquet", range(3), **full)
    source = open_source(str(tmp_path))
    columns = common_columns(source)
    assert [columns.field(name).type for name in full] == [pa.string(), tags.type, pa.null()]
    [unit] = source.units(100)
    empty, given = (conform(batch, columns, []) for _, _, batch in read_unit(source.root, unit, columns.names, [], 9))
    assert empty.schema.equals(given.schema)
    assert empty.column("town").to_pylist() == [None] * 3
    assert given.column("town").to_pylist() == ["Rom", None, "Ulm"]
    assert given.column("tags").to_pylist() == tags.to_pylist()
