"""What the rows of a table hold: statistics that merge, so that many workers can read one table once."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_cfnet import config
from ray_cfnet.tables.codec import Mask, numbers_of
from ray_cfnet.tables.schema import NARROW_TYPES, FloatArray, Grid, Label, value_type

MAX_CATEGORIES = 1_000
MAX_DECIMALS = 6


@dataclass
class ColumnStats:
    """What one column holds. `lower > upper` and no counts: nothing usable was seen yet."""

    lower: float = np.inf
    upper: float = -np.inf
    decimals: int = 0
    counts: dict[Label, int] = field(default_factory=dict)
    invalid: dict[str, int] = field(default_factory=dict)
    """Rows that cannot be used, by reason."""
    invalid_file: str = ""

    def merge(self, other: "ColumnStats") -> None:
        self.lower = min(self.lower, other.lower)
        self.upper = max(self.upper, other.upper)
        self.decimals = max(self.decimals, other.decimals)
        for label, count in other.counts.items():
            # One more than allowed is enough to know that there are too many.
            if label in self.counts or len(self.counts) <= MAX_CATEGORIES:
                self.counts[label] = self.counts.get(label, 0) + count
        for reason, count in other.invalid.items():
            self.invalid[reason] = self.invalid.get(reason, 0) + count
        self.invalid_file = min(filter(None, [self.invalid_file, other.invalid_file]), default="")


@dataclass
class TableStats:
    """A column's statistics by its name, over `num_rows` rows."""

    num_rows: int = 0
    columns: dict[str, ColumnStats] = field(default_factory=dict)

    def add(self, batch: pa.Table, table: config.Table, file: str) -> None:
        """Takes in the rows of one batch; `file` is named when a row cannot be used."""
        self.num_rows += batch.num_rows
        for name in [*table.features, table.target]:
            column = batch.column(name)
            declared = table.features.get(name)
            if isinstance(declared, config.ContinuousFeature):
                stats = _number_stats(column, declared)
            elif declared is None and table.target_probability:
                stats = _number_stats(column, config.ContinuousFeature(kind="continuous", bounds=(0, 1)))
            else:
                stats = _label_stats(column)
            if stats.invalid:
                stats.invalid_file = file
            self.columns.setdefault(name, ColumnStats()).merge(stats)
        self._count_broken_rules(batch, table, file)

    def _count_broken_rules(self, batch: pa.Table, table: config.Table, file: str) -> None:
        broken: dict[str, Mask] = {}
        for rule in table.relations:
            if rule.kind == "at_most":
                first, second = (batch.column(name) for name in (rule.first, rule.second))
                known = pc.and_(first.is_valid(), second.is_valid()).to_numpy()
                numbers = _numbers(first)
                above = known & np.isfinite(numbers) & (numbers > _numbers(second))
                broken[rule.first] = broken.get(rule.first, False) | above
        for name, rows in broken.items():
            if rows.any():
                self.columns[name].merge(ColumnStats(invalid={"breaks_rule": int(rows.sum())}, invalid_file=file))

    def merge(self, other: "TableStats") -> None:
        self.num_rows += other.num_rows
        for name, stats in other.columns.items():
            self.columns.setdefault(name, ColumnStats()).merge(stats)


def _numbers(column: pa.ChunkedArray) -> FloatArray:
    return numbers_of(column.combine_chunks()).astype(np.float64)


def _number_stats(column: pa.ChunkedArray, declared: config.ContinuousFeature) -> ColumnStats:
    stats = ColumnStats()
    if column.null_count:
        stats.invalid["null"] = column.null_count
        column = column.drop_null()
    kept = value_type(column.type)
    values = _numbers(column)
    lower, upper = typed_bounds(declared, str(kept))
    with np.errstate(invalid="ignore"):
        bad = {
            "nan": np.isnan(values),
            "infinite": np.isinf(values),
            "out_of_domain": np.isfinite(values)
            & ((values < (-np.inf if lower is None else lower)) | (values > (np.inf if upper is None else upper))),
        }
    usable = np.ones(len(values), dtype=bool)
    for reason, mask in bad.items():
        if mask.any():
            stats.invalid[reason] = int(mask.sum())
            usable &= ~mask
    values = values[usable]
    if len(values):
        stats.lower, stats.upper = float(values.min()), float(values.max())
        stats.decimals = decimals_of(values, kept)
    return stats


def typed_bounds(declared: config.ContinuousFeature, arrow_type: str) -> tuple[float | None, float | None]:
    """Bounds as the column holds them: 0.1 in a float32 column is its nearest float32."""
    lower, upper = declared.bounds or (None, None)
    narrow = NARROW_TYPES.get(arrow_type, float)
    return None if lower is None else float(narrow(lower)), None if upper is None else float(narrow(upper))


def decimals_of(values: FloatArray, kept: pa.DataType) -> int:
    """The fewest decimals that write all values exactly; one more than looked for when none does."""
    if pa.types.is_integer(kept):
        return 0
    if pa.types.is_decimal(kept):
        return int(kept.scale)
    # A float32 is a decimal rounded once; a double may also come from a sum, such as 0.1 + 0.2.
    narrow = NARROW_TYPES.get(str(kept))
    tolerance = 2 * np.finfo(np.float64).eps if narrow is None else 0.51 * float(np.finfo(narrow).eps)
    for decimals in range(MAX_DECIMALS + 1):
        if (np.abs(Grid(1, decimals).snap(values) - values) <= tolerance * np.abs(values)).all():
            return decimals
    return MAX_DECIMALS + 1


def _label_stats(column: pa.ChunkedArray) -> ColumnStats:
    stats = ColumnStats()
    if column.null_count:
        stats.invalid["null"] = column.null_count
        column = column.drop_null()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    counted = pc.value_counts(column)
    labels, counts = counted.field(0)[: MAX_CATEGORIES + 1], counted.field(1)[: MAX_CATEGORIES + 1]
    stats.counts = dict(zip(labels.to_pylist(), counts.to_pylist(), strict=True))
    return stats
