"""The plan of a job: which row groups of which files make a unit of work. Read from footers alone."""

import difflib
import os
import posixpath
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_cfnet.errors import InputError
from ray_cfnet.tables.schema import value_type
from ray_cfnet.tables.storage import FoundFile, Location

_FOOTER_THREADS = 16
_FOOTER_ATTEMPTS = 3
_BUFFER_BYTES = 8 * 1024**2
_AHEAD_BYTES = 64 * 1024**2
_ENDINGS = (".parquet", ".pq", ".parq", "")  # some engines write files without an ending


@dataclass(frozen=True)
class SourceFile:
    """A Parquet file of the table, as its footer describes it."""

    found: FoundFile
    row_group_rows: tuple[int, ...]
    schema: pa.Schema
    first_row: int
    """Number of the file's first row in the whole table, files in the order of their paths."""

    @property
    def num_rows(self) -> int:
        return sum(self.row_group_rows)

    @property
    def partition(self) -> str:
        """The directory below the table's root, such as `ds=2026-11-15`; empty for a flat table."""
        return posixpath.dirname(self.found.path)


@dataclass(frozen=True)
class UnreadableFile:
    """A file whose footer cannot be read: cut short, or still being written."""

    found: FoundFile
    error: InputError

    @property
    def partition(self) -> str:
        return posixpath.dirname(self.found.path)


@dataclass(frozen=True)
class Piece:
    """Neighbouring row groups of one file."""

    path: str
    row_groups: tuple[int, ...]
    first_row: int
    num_rows: int


@dataclass(frozen=True)
class Unit:
    """What an actor takes at once: pieces of one partition, about as many rows as asked for."""

    number: int
    partition: str
    pieces: tuple[Piece, ...]

    @property
    def num_rows(self) -> int:
        return sum(piece.num_rows for piece in self.pieces)


@dataclass(frozen=True)
class Source:
    """A table on storage: its files in a fixed order."""

    root: Location
    files: tuple[SourceFile, ...]
    is_file: bool = False
    """One file was named; what else lies in its directory is not part of the table."""
    unreadable: tuple[UnreadableFile, ...] = ()
    """Files that belong to the table and that nobody can read: their partitions are not whole."""

    @property
    def num_rows(self) -> int:
        return sum(file.num_rows for file in self.files)

    @property
    def partitions(self) -> list[str]:
        return sorted({file.partition for file in self.all_files})

    @property
    def all_files(self) -> list["SourceFile | UnreadableFile"]:
        """Readable or not: a table is as new as these are."""
        return [*self.files, *self.unreadable]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the first file; `check_columns` makes sure that the others agree."""
        return self.files[0].schema

    def read_as(self, columns: pa.Schema) -> "Source":
        """The table with these columns, which every file can be read as."""
        return replace(self, files=tuple(replace(file, schema=columns) for file in self.files))

    def units(self, unit_rows: int) -> list[Unit]:
        """Small files of a partition share a unit, large ones are cut between row groups."""
        units: list[Unit] = []
        files: dict[str, list[SourceFile]] = {partition: [] for partition in self.partitions}
        for file in self.files:
            files[file.partition].append(file)
        for partition in self.partitions:
            pieces: list[Piece] = []
            rows = 0
            for piece in _pieces(files[partition], unit_rows):
                if pieces and rows + piece.num_rows > unit_rows:
                    units.append(Unit(len(units), partition, tuple(pieces)))
                    pieces, rows = [], 0
                pieces.append(piece)
                rows += piece.num_rows
            if pieces:
                units.append(Unit(len(units), partition, tuple(pieces)))
        return units

    def within(self, partition: str) -> "Source":
        """The files of one partition. Raises InputError, naming the nearest, when there is none."""
        if not partition.strip("/"):
            raise InputError("--partition is empty", "name one, such as ds=2026-11-15, or leave the option out")
        inside = partition.strip("/") + "/"
        files = tuple(file for file in self.files if (file.partition + "/").startswith(inside))
        unreadable = tuple(file for file in self.unreadable if (file.partition + "/").startswith(inside))
        if unreadable and not files:
            raise unreadable[0].error
        if not files:
            known = [name for name in self.partitions if name]
            near = difflib.get_close_matches(partition, known, n=1, cutoff=0.3) or known[-1:]
            hint = f"did you mean --partition {near[0]}?" if near else "the table has no partitions; leave it out"
            raise InputError(f"{self.root}: no partition {partition}", hint)
        return Source(self.root, files, self.is_file, unreadable)


def _pieces(files: list[SourceFile], unit_rows: int) -> Iterator[Piece]:
    for file in files:
        groups: list[int] = []
        rows, first_row = 0, file.first_row
        for group, group_rows in enumerate(file.row_group_rows):
            if group_rows == 0:
                continue
            if groups and rows + group_rows > unit_rows:
                yield Piece(file.found.path, tuple(groups), first_row, rows)
                groups, first_row, rows = [], first_row + rows, 0
            groups.append(group)
            rows += group_rows
        if rows:
            yield Piece(file.found.path, tuple(groups), first_row, rows)


def open_source(path: str, in_parts: bool = False, wanted: Callable[[str], bool] | None = None) -> Source:
    """Lists a table's files and reads their footers. Raises InputError that names the file at fault.

    `in_parts` is for those who do one partition without another: files whose footer cannot be read are then kept as
    `unreadable`, unless there is nothing else, or they lie beside the partitions and so in none. `wanted` chooses
    partitions: the others are not looked at, and the table is as if it did not have them.
    """
    root = Location.of(path)
    if not root.exists():
        raise InputError(f"{root}: no such file or directory", "check table.path, or pass --input PATH")
    is_file = not root.is_dir()
    if not is_file:
        found = [file for file in root.files() if _may_hold_rows(file)]
        if not found:
            raise InputError(f"{root}: no Parquet files in it", "put .parquet files there, or change table.path")
        found = [file for file in found if wanted is None or wanted(posixpath.dirname(file.path))]
        if not found:
            raise InputError(f"{root}: none of its partitions was asked for", "ask for more of them")
    else:
        info = root.info()
        found = [FoundFile(root.name, info.size, info.mtime_ns or 0)]
        root = root.parent
    with ThreadPoolExecutor(_FOOTER_THREADS) as threads:
        footers = list(threads.map(lambda file: _footer(root / file.path), found))
    files, unreadable, first_row = [], [], 0
    for file, footer in zip(found, footers, strict=True):
        if isinstance(footer, InputError):
            unreadable.append(UnreadableFile(file, footer))
            continue
        rows, schema = footer
        files.append(SourceFile(file, rows, schema, first_row))
        first_row += sum(rows)
    has_partitions = any(file.partition for file in files)
    for bad in unreadable:
        if not (in_parts and first_row) or (has_partitions and not bad.partition):
            raise bad.error
    if first_row == 0:
        raise InputError(f"{path}: the table has zero rows", "check the job that writes it, or change table.path")
    return Source(root, tuple(files), is_file, tuple(unreadable))


def _may_hold_rows(file: FoundFile) -> bool:
    ending = posixpath.splitext(file.path)[1]
    # Some tools leave an empty file for each directory, such as ds=2026-11-15_$folder$.
    return ending in _ENDINGS and (ending != "" or file.size > 0)


def _footer(file: Location, attempts: int = _FOOTER_ATTEMPTS) -> tuple[tuple[int, ...], pa.Schema] | InputError:
    """Rows of each row group, and the columns as their writer saw them (time zones, dictionaries, ...)."""
    try:
        with pq.ParquetFile(file.path, filesystem=file.fs) as parquet:
            footer = parquet.metadata
            rows = tuple(footer.row_group(group).num_rows for group in range(footer.num_row_groups))
            return rows, parquet.schema_arrow.remove_metadata()
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are no UTF-8
        if isinstance(error, OSError) and attempts > 1:  # the storage may have stumbled
            return _footer(file, attempts - 1)
        reason = str(error).splitlines()[0]
        return InputError(f"{file}: not a readable Parquet file ({reason})", "write the file again, or remove it")


def read_unit(
    root: Location, unit: Unit, columns: list[str] | None, dictionaries: list[str], batch_rows: int
) -> Generator[tuple[Piece, int, pa.RecordBatch], None, None]:
    """The unit's rows as (piece, number of the batch's first row in the table, batch).

    `dictionaries` names string columns with few distinct values: as dictionaries they are faster to read
    and cost one look-up per distinct value. Raises InputError that names a file which cannot be read.
    """
    for piece in unit.pieces:
        file = root / piece.path
        first_row = piece.first_row
        try:
            with file.fs.open_input_file(file.path) as stream:
                # Both, or the whole row group is held in memory while it is read.
                parquet = pq.ParquetFile(
                    stream, read_dictionary=dictionaries, buffer_size=_BUFFER_BYTES, pre_buffer=False
                )
                for batch in parquet.iter_batches(
                    batch_rows, row_groups=list(piece.row_groups), columns=columns, use_threads=False
                ):
                    yield piece, first_row, batch
                    first_row += batch.num_rows
        except (pa.ArrowException, OSError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{file}: cannot be read ({reason})", "write the file again, or remove it") from None


def read_ahead(root: Location, unit: Unit) -> None:
    """Asks the kernel to fetch a unit's local files; a hint, nothing more."""
    for path in sorted({piece.path for piece in unit.pieces}) if root.is_local else ():
        with suppress(OSError):
            descriptor = os.open((root / path).path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)


def check_columns(source: Source, needed: Mapping[str, str | None], narrower: bool = False) -> None:
    """Compares every footer with what is needed: column name -> value type it must have (None: any).

    `narrower` lets types pass whose values the needed one can hold. Raises one InputError with all differences, the
    nearest name for a missing column.
    """
    faults: list[str] = []
    for file in source.files:
        names = file.schema.names
        for name, wanted in needed.items():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
                hint = f"; did you mean {near[0]}?" if near else f"; the file has {', '.join(names)}"
                faults.append(f"{file.found.path}: column {name} is missing{hint}")
            elif wanted is not None and not _fits(file.schema.field(name).type, wanted, narrower):
                faults.append(f"{file.found.path}: column {name} is {file.schema.field(name).type}, expected {wanted}")
    if faults:
        shown = faults[:10] + ([f"... and {len(faults) - 10} more"] if len(faults) > 10 else [])
        raise InputError(
            "\n  ".join([f"{source.root}: the columns do not fit", *shown]),
            "correct table.features in the configuration, or the job that writes the table",
        )


def common_columns(source: Source) -> pa.Schema:
    """The first file's columns, each with the widest type that a file has for it.

    Raises InputError when a file has other columns, or a type that none of the two can take in: no column and no
    value may get lost.
    """
    columns = {field.name: field for field in source.schema}
    for file in source.files:
        here = {field.name: field.type for field in file.schema}
        wider = {name: _wider(field.type, here[name]) for name, field in columns.items() if name in here}
        faults = [name for name in [*columns, *here] if wider.get(name) is None]
        if faults:
            shown = ", ".join(
                f"{name} ({columns[name].type if name in columns else 'missing'} / {here.get(name, 'missing')})"
                for name in list(dict.fromkeys(faults))[:5]
            )
            raise InputError(
                f"{source.root / file.found.path}: other columns than in {source.files[0].found.path}: {shown}",
                "write the files with one schema, or explain them with --partition one by one",
            )
        columns = {name: field.with_type(wider[name]) for name, field in columns.items()}
    return pa.schema(list(columns.values()))


def conform(batch: pa.RecordBatch, columns: pa.Schema, dictionaries: list[str]) -> pa.RecordBatch:
    """A file's rows with the table's types, but for the columns that were asked for as dictionaries."""
    arrays = []
    for array, field in zip(batch.columns, columns, strict=True):
        wanted = field.type
        if field.name in dictionaries and pa.types.is_dictionary(array.type):
            wanted = pa.dictionary(array.type.index_type, value_type(field.type))
        arrays.append(array if array.type == wanted else array.cast(wanted))
    return pa.RecordBatch.from_arrays(arrays, names=columns.names)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Which of two types holds whatever the other can; None if neither does."""
    if one == other:
        return one
    if value_type(one) == value_type(other):  # a dictionary of strings is strings
        return value_type(one)
    if _reads_as(one, str(value_type(other))):
        return value_type(one)
    return value_type(other) if _reads_as(other, str(value_type(one))) else None


def _fits(actual: pa.DataType, wanted: str, narrower: bool) -> bool:
    if _reads_as(actual, wanted):
        return True
    return narrower and "(" not in wanted and _reads_as(pa.type_for_alias(wanted), str(value_type(actual)))


def _reads_as(actual: pa.DataType, wanted: str) -> bool:
    """Whether a column can hold whatever a column of the wanted type can: equal, or wider in its family."""
    kept = value_type(actual)
    if str(kept) == wanted:
        return True
    if "(" in wanted:  # a parametric type, such as a decimal: only itself
        return False
    try:
        wanted_type = pa.type_for_alias(wanted)
    except ValueError:  # a list, a struct, ...: only itself
        return False
    if pa.types.is_string(kept) or pa.types.is_large_string(kept):
        return bool(pa.types.is_string(wanted_type) or pa.types.is_large_string(wanted_type))
    families = (pa.types.is_integer, pa.types.is_floating)
    if any(is_family(kept) and is_family(wanted_type) for is_family in families):
        return bool(np.can_cast(wanted_type.to_pandas_dtype(), kept.to_pandas_dtype()))
    return False
