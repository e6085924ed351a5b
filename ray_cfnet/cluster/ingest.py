"""Reading a table for training: one pass that fits the schema, and encoded rows of a split."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import ray.data
from ray.data._internal.execution.execution_callback import ExecutionCallback

from ray_cfnet import config
from ray_cfnet.cluster.units import map_units, quiet_ray_data
from ray_cfnet.errors import InputError
from ray_cfnet.explain.columns import output_schema
from ray_cfnet.tables.codec import CodeArray, Encoded, codes_of, encode, probabilities_of
from ray_cfnet.tables.drift import check_columns
from ray_cfnet.tables.fit import TableStats, check_types, fit_schema
from ray_cfnet.tables.plan import Source, Unit, read_unit
from ray_cfnet.tables.schema import FloatArray, TableSchema, value_type
from ray_cfnet.tables.split import SplitName, expected_rows, has_rows, rows_in_split
from ray_cfnet.tables.storage import Location

READ_ROWS = 131_072
SPARE_CPU = 1 / 16
"""What an encoding task asks for, and what a worker leaves of its CPU: they share it. Ray counts CPUs in steps of
0.0001 and workers by dividing floats; of 1/16 both are exact."""
BLOCKS_AHEAD = 4
"""Encoded units that a streaming worker lets Ray hold for it: one is read, the others are on their way."""
LEAST_AHEAD = 2**28
"""Bytes; with less Ray, which expects 128 MiB of every task, starts one only when nothing else is left."""
UNITS_PER_WORKER = 8
"""Units of a streaming worker, at least, so that shares are about equal."""


class Pausing(ExecutionCallback):
    """A rest after every turn of Ray Data's scheduling loop, which runs as a thread of the worker that reads.

    With no task under way and no room for another one Ray 2.60 turns without waiting for anything, and every operation
    of a training step has to win the interpreter back from that thread: large streams ran at a quarter of their speed.
    """

    SECONDS = 0.02

    def on_execution_step(self, executor: object) -> None:  # noqa: ARG002
        time.sleep(self.SECONDS)


@dataclass(frozen=True)
class SplitReader:
    """Reads the rows of one split out of any unit; `name` None reads all rows."""

    root: Location
    table: config.Table
    split: config.Split
    table_rows: int
    name: SplitName | None

    @classmethod
    def of(cls, source: Source, table: config.Table, split: config.Split, name: SplitName | None) -> "SplitReader":
        return cls(source.root, table, split, source.num_rows, name)

    def read(self, unit: Unit, columns: list[str]) -> Iterator[tuple[str, pa.Table]]:
        """(file, rows) batch by batch."""
        categorical = [name for name, feature in self.table.features.items() if feature.kind == "categorical"]
        for piece, first_row, batch in read_unit(self.root, unit, columns, categorical, READ_ROWS):
            rows = pa.Table.from_batches([batch])
            if self.name is not None:
                mask = rows_in_split(self.name, self.split, first_row, batch.num_rows, self.table_rows)
                if not mask.any():
                    continue
                rows = rows if mask.all() else rows.filter(pa.array(mask))
            yield piece.path, rows


@dataclass(frozen=True)
class FitUnit:
    """The statistics of a unit's training rows."""

    reader: SplitReader

    def __call__(self, unit: Unit) -> TableStats:
        table = self.reader.table
        stats = TableStats()
        for file, rows in self.reader.read(unit, [*table.features, table.target]):
            stats.add(rows, table, str(self.reader.root / file))
        return stats


def fit(source: Source, whole: config.Config) -> TableSchema:
    """Checks the columns and fits the schema on the training split in one distributed pass."""
    table = whole.table
    check_columns(source, dict.fromkeys([*table.features, table.target, *table.keys]))
    check_types(table, source.schema, str(source.root / source.files[0].found.path))
    trained = [*table.features, table.target]
    check_columns(source, {name: str(value_type(source.schema.field(name).type)) for name in trained})
    for name in ("train", "validation", "test"):
        if not has_rows(name, whole.split, source.num_rows):
            raise InputError(
                f"{table.path}: no row in the {name} split ({source.num_rows} rows in all)",
                f"give more rows, or a larger split.{name}",
            )
    stats = TableStats()
    reader = SplitReader.of(source, table, whole.split, "train")
    for part in map_units(source.units(whole.explain.unit_rows), FitUnit(reader), whole.cluster, in_tasks=True):
        stats.merge(part)
    schema = fit_schema(table, source.schema, stats, whole.training.max_reject_fraction)
    # Names that explain could not write must not cost a training run.
    output_schema(schema, source.schema, whole.explain.num_options, source.partition_columns)
    return schema


@dataclass
class LabelledRows:
    """Encoded rows that can be used, with their class indices (-1: no label) and how many could not.

    `probabilities` of class 1 are there for a target that holds them; `labels` are then their classes.
    """

    encoded: Encoded
    labels: CodeArray
    rejected: int
    probabilities: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: npt.NDArray[np.int64]) -> "LabelledRows":
        probabilities = None if self.probabilities is None else self.probabilities[index]
        return LabelledRows(self.encoded.take(index), self.labels[index], 0, probabilities)

    @property
    def targets(self) -> CodeArray | FloatArray:
        """What the predictor learns: probabilities where there are any, else class indices."""
        return self.labels if self.probabilities is None else self.probabilities


def labelled_rows(rows: pa.Table, schema: TableSchema) -> LabelledRows:
    """Encodes rows, leaving out those that must be rejected."""
    encoded, rejects = encode(rows, schema)
    good = rejects.good
    labels, probabilities = np.full(len(rows), -1, dtype=np.int64), None
    if schema.target.name in rows.column_names:
        column = rows.column(schema.target.name).combine_chunks()
        if schema.target.is_probability:
            labels, probabilities = probabilities_of(column)
            probabilities = probabilities[good]
        else:
            labels = codes_of(column, schema.target.classes)
    return LabelledRows(encoded.take(good), labels[good], int((~good).sum()), probabilities)


def concatenated(parts: list[LabelledRows], schema: TableSchema) -> LabelledRows:
    """One set of rows from many, also from none."""
    values = np.concatenate([np.empty((0, len(schema.continuous))), *(part.encoded.values for part in parts)])
    no_codes = np.empty((0, len(schema.categorical)), dtype=np.int64)
    codes = np.concatenate([no_codes, *(part.encoded.codes for part in parts)])
    labels = np.concatenate([np.empty(0, dtype=np.int64), *(part.labels for part in parts)])
    known = [part.probabilities for part in parts if part.probabilities is not None]
    whole = schema.target.is_probability and len(known) == len(parts)
    probabilities = np.concatenate([np.empty(0), *known]) if whole else None
    return LabelledRows(Encoded(values, codes), labels, sum(part.rejected for part in parts), probabilities)


@dataclass(frozen=True)
class EncodeUnit:
    """A unit's usable, labelled rows of a split as Arrow columns of plain numbers, for Ray Data."""

    reader: SplitReader
    schema: TableSchema
    units: list[Unit]

    def __call__(self, batch: dict[str, np.ndarray]) -> pa.Table:
        columns = [*self.schema.feature_names, self.schema.target.name]
        unit = self.units[int(batch["item"][0])]
        rows = concatenated(
            [labelled_rows(rows, self.schema) for _, rows in self.reader.read(unit, columns)], self.schema
        )
        known = rows.labels >= 0
        values, codes = rows.encoded.values[known], rows.encoded.codes[known]
        numbers = {f"value_{i}": np.ascontiguousarray(values[:, i]) for i in range(values.shape[1])}
        numbers |= {f"code_{i}": codes[:, i].astype(np.int32) for i in range(codes.shape[1])}
        if rows.probabilities is not None:
            numbers["probability"] = rows.probabilities[known]
        return pa.table({**numbers, "label": rows.labels[known]})


@dataclass(frozen=True)
class EncodedTable:
    """The encoded rows of a table's splits as Ray Data delivers them, in the table's order."""

    source: Source
    whole: config.Config
    schema: TableSchema

    def dataset(self, name: SplitName) -> ray.data.Dataset:
        """A split, encoded by the whole cluster; nothing is read before rows are asked for."""
        return self._encoded(name, self.source.units(self.whole.explain.unit_rows), _num_cpus())

    def streamed(self, name: SplitName, rank: int, num_workers: int) -> ray.data.Dataset:
        """One worker's part of a split: the same rows in the same order whenever it is read."""
        units = self.share(name, rank, num_workers)
        dataset = self._encoded(name, units, max(1, _num_cpus() // num_workers - 1))
        # Without a limit Ray encodes ahead until its store is full, and a worker maps all that it has ever read there.
        largest = max((unit.num_rows for unit in units), default=0) * self._row_bytes
        options = dataset.context.execution_options
        options.resource_limits = options.resource_limits.copy(
            object_store_memory=max(BLOCKS_AHEAD * largest, LEAST_AHEAD)
        )
        dataset.context.custom_execution_callback_classes = [Pausing]
        return dataset

    def has_usable_row(self, name: SplitName) -> bool:
        """Looks unit by unit: a stream that is left early ends its tasks with a signal, which Ray tells as an error."""
        return any(self._encoded(name, [unit], 1).count() for unit in self.share(name, 0, 1))

    @property
    def _row_bytes(self) -> int:
        """Of an encoded row in Ray's object store."""
        return 8 * len(self.schema.continuous) + 4 * len(self.schema.categorical) + 16

    def share(self, name: SplitName, rank: int, num_workers: int) -> list[Unit]:
        """Neighbouring units with about an equal part of a split's rows; every unit that has any is somebody's."""
        most = math.ceil(self._num_rows(name, 0, self.source.num_rows) / (UNITS_PER_WORKER * num_workers))
        units = self.source.units(min(self.whole.explain.unit_rows, most))
        rows = [sum(self._num_rows(name, piece.first_row, piece.num_rows) for piece in unit.pieces) for unit in units]
        middles = [before + num_rows / 2 for before, num_rows in zip(accumulate(rows, initial=0), rows, strict=False)]
        owners = [min(int(middle * num_workers / sum(rows)), num_workers - 1) for middle in middles]
        return [unit for unit, owner, num_rows in zip(units, owners, rows, strict=True) if owner == rank and num_rows]

    def _num_rows(self, name: SplitName, first_row: int, num_rows: int) -> int:
        return expected_rows(name, self.whole.split, first_row, num_rows, self.source.num_rows)

    def _encoded(self, name: SplitName, units: list[Unit], at_once: int) -> ray.data.Dataset:
        quiet_ray_data()
        reader = SplitReader.of(self.source, self.whole.table, self.whole.split, name)
        numbers = ray.data.from_items(list(range(len(units))), override_num_blocks=max(1, len(units)))
        # Hardly any CPU is asked for, so that rows can be encoded where workers have taken all there are.
        dataset = numbers.map_batches(
            EncodeUnit(reader, self.schema, units),
            batch_size=1,
            num_cpus=SPARE_CPU,
            compute=ray.data.TaskPoolStrategy(size=max(1, min(at_once, len(units)))),
        )
        dataset.context.execution_options.preserve_order = True  # the same rows for the same worker, run after run
        return dataset


def _num_cpus() -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def from_arrow(table: pa.Table, schema: TableSchema) -> LabelledRows:
    """The rows that `EncodeUnit` wrote."""
    values = np.empty((len(schema.continuous), len(table))).T
    codes = np.empty((len(schema.categorical), len(table)), dtype=np.int64).T
    for column in range(values.shape[1]):
        values[:, column] = table.column(f"value_{column}").to_numpy()
    for column in range(codes.shape[1]):
        codes[:, column] = table.column(f"code_{column}").to_numpy()
    probabilities = table.column("probability").to_numpy() if schema.target.is_probability else None
    return LabelledRows(Encoded(values, codes), table.column("label").to_numpy(), 0, probabilities)
