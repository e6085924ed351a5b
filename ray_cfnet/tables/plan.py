"""The plan of a job: which row groups of which files make a unit of work. Read from footers alone."""

import difflib
import os
import posixpath
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq

from ray_cfnet.errors import InputError
from ray_cfnet.tables.delta import input_files
from ray_cfnet.tables.storage import FoundFile, Location

_FOOTER_THREADS = 16
_FOOTER_ATTEMPTS = 3
_BUFFER_BYTES = 8 * 1024**2
_AHEAD_BYTES = 64 * 1024**2
_BATCH_BYTES = 64 * 1024**2
"""Of a batch at most, as far as the footer can tell: long texts and lists pass through some tables."""
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
    def partition_columns(self) -> list[str]:
        """Columns that readers find in the paths alone, such as `ds`."""
        parts = {part.partition("=") for partition in self.partitions for part in partition.split("/")}
        return sorted({name for name, equals, _ in parts if equals})

    @property
    def all_files(self) -> list["SourceFile | UnreadableFile"]:
        """Readable or not: a table is as new as these are."""
        return [*self.files, *self.unreadable]

    @property
    def schema(self) -> pa.Schema:
        """The columns of the first file; drift.py makes sure that the others agree."""
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
        found = [file for file in input_files(root, root.files()) if _may_hold_rows(file)]
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
            columns = parquet.schema_arrow.remove_metadata()
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: names that are no UTF-8
        if isinstance(error, OSError) and attempts > 1:  # the storage may have stumbled
            return _footer(file, attempts - 1)
        reason = str(error).splitlines()[0]
        return InputError(f"{file}: not a readable Parquet file ({reason})", "write the file again, or remove it")
    twice = [name for name, count in Counter(columns.names).items() if count > 1]
    if twice:  # nobody could say which one is meant
        return InputError(f"{file}: has more than one column called {', '.join(twice)}", "rename them in that file")
    return rows, columns


def read_unit(
    root: Location, unit: Unit, columns: list[str] | None, dictionaries: list[str], batch_rows: int
) -> Generator[tuple[Piece, int, pa.RecordBatch], None, None]:
    """The unit's rows as (piece, number of the batch's first row in the table, batch).

    `dictionaries` names string columns with few distinct values: as dictionaries they are faster to read
    and cost one look-up per distinct value. Batches have `batch_rows` rows at most, fewer where rows are wide.
    Raises InputError that names a file which cannot be read.
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
                at_once = min(batch_rows, _rows_that_fit(parquet.metadata, piece, columns))
                for batch in parquet.iter_batches(
                    at_once, row_groups=list(piece.row_groups), columns=columns, use_threads=False
                ):
                    yield piece, first_row, batch
                    first_row += batch.num_rows
        except (pa.ArrowException, OSError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{file}: cannot be read ({reason})", "write the file again, or remove it") from None


def _rows_that_fit(footer: pq.FileMetaData, piece: Piece, columns: list[str] | None) -> int:
    size = 0
    for group in map(footer.row_group, piece.row_groups):
        for column in map(group.column, range(group.num_columns)):
            name = column.path_in_schema  # of a list or struct: tags.list.element
            if columns is None or name in columns or name.split(".")[0] in columns:
                size += column.total_uncompressed_size
    return max(1, _BATCH_BYTES * piece.num_rows // max(size, 1))


def read_ahead(root: Location, unit: Unit) -> None:
    """Asks the kernel to fetch a unit's local files; a hint, nothing more."""
    for path in sorted({piece.path for piece in unit.pieces}) if root.is_local else ():
        with suppress(OSError):
            descriptor = os.open((root / path).path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)
