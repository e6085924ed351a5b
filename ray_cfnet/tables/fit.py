"""From rows to a schema: statistics that merge, so that many workers can read one table once."""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_cfnet import config
from ray_cfnet.errors import InputError
from ray_cfnet.tables.codec import numbers_of
from ray_cfnet.tables.schema import (
    NARROW_TYPES,
    Categorical,
    Continuous,
    Feature,
    FloatArray,
    Grid,
    Label,
    TableSchema,
    Target,
    is_label_type,
    type_problem,
    value_type,
)

MAX_CATEGORIES = 1_000
MAX_CLASSES = 100
_MAX_DECIMALS = 6


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

    def merge(self, other: "TableStats") -> None:
        self.num_rows += other.num_rows
        for name, stats in other.columns.items():
            self.columns.setdefault(name, ColumnStats()).merge(stats)


def _number_stats(column: pa.ChunkedArray, declared: config.ContinuousFeature) -> ColumnStats:
    stats = ColumnStats()
    if column.null_count:
        stats.invalid["null"] = column.null_count
        column = column.drop_null()
    kept = value_type(column.type)
    values = numbers_of(column.combine_chunks()).astype(np.float64)
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
        stats.decimals = _decimals(values, kept)
    return stats


def typed_bounds(declared: config.ContinuousFeature, arrow_type: str) -> tuple[float | None, float | None]:
    """Bounds as the column holds them: 0.1 in a float32 column is its nearest float32."""
    lower, upper = declared.bounds or (None, None)
    narrow = NARROW_TYPES.get(arrow_type, float)
    return None if lower is None else float(narrow(lower)), None if upper is None else float(narrow(upper))


def _decimals(values: FloatArray, kept: pa.DataType) -> int:
    """The fewest decimals that write all values exactly; one more than looked for when none does."""
    if pa.types.is_integer(kept):
        return 0
    if pa.types.is_decimal(kept):
        return int(kept.scale)
    # A float32 is a decimal rounded once; a double may also come from a sum, such as 0.1 + 0.2.
    narrow = NARROW_TYPES.get(str(kept))
    tolerance = 2 * np.finfo(np.float64).eps if narrow is None else 0.51 * float(np.finfo(narrow).eps)
    for decimals in range(_MAX_DECIMALS + 1):
        if (np.abs(Grid(1, decimals).snap(values) - values) <= tolerance * np.abs(values)).all():
            return decimals
    return _MAX_DECIMALS + 1


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


def check_types(table: config.Table, columns: pa.Schema, where: str) -> None:
    """Raises one InputError for all columns whose type does not fit their kind."""
    faults = []
    for name, feature in table.features.items():
        problem = type_problem(columns.field(name).type, feature.kind)
        if problem:
            faults.append(f"column {name} is {columns.field(name).type}: {problem}")
    target = columns.field(table.target).type
    if table.target_probability:
        if not pa.types.is_floating(value_type(target)):
            faults.append(
                f"target {table.target} is {target}: table.target_probability needs a float or double column; "
                "cast it, or remove that setting if it holds classes"
            )
    elif pa.types.is_floating(value_type(target)):
        faults.append(
            f"target {table.target} is {target}: cast it to integer, boolean or string, "
            "or set table.target_probability if it holds probabilities of class 1"
        )
    elif not is_label_type(value_type(target)):
        faults.append(f"target {table.target} is {target}: cast it to integer, boolean or string")
    if faults:
        raise InputError(
            "\n  ".join([f"{where}: columns of the wrong type", *faults]), "cast the columns, or correct table.features"
        )


def fit_schema(table: config.Table, columns: pa.Schema, stats: TableStats, max_reject_fraction: float) -> TableSchema:
    """The schema of the training rows. Raises one InputError that lists every column at fault."""
    faults: list[str] = []
    features: list[Feature] = []
    for name, declared in table.features.items():
        kept = str(value_type(columns.field(name).type))
        seen = stats.columns.get(name, ColumnStats())
        _check_invalid(name, seen, stats.num_rows, max_reject_fraction, faults)
        if declared.kind == "continuous":
            fitted: Feature | None = _fit_continuous(name, kept, declared, seen, faults)
        else:
            fitted = _fit_categorical(name, kept, declared, seen, faults)
        if fitted is not None:
            features.append(fitted)
    seen = stats.columns.get(table.target, ColumnStats())
    named = f"{table.target} (probabilities, 0 to 1)" if table.target_probability else table.target
    _check_invalid(named, seen, stats.num_rows, max_reject_fraction, faults)
    classes = _probability_classes(seen) if table.target_probability else sorted(seen.counts)
    if len(classes) < 2:
        only = ", ".join(map(repr, classes)) or "no value"
        only += f": {seen.lower:g} to {seen.upper:g}, cut at 0.5" if table.target_probability and classes else ""
        faults.append(f"target {table.target}: a single class in the training split ({only}); it needs two or more")
    elif len(classes) > MAX_CLASSES:
        faults.append(f"target {table.target}: more than {MAX_CLASSES} classes; it looks like a number, not a class")
    if faults:
        raise InputError(
            "\n  ".join([f"{table.path}: cannot be trained on", *faults]),
            "correct the table or table.features in the configuration",
        )
    target_type = str(value_type(columns.field(table.target).type))
    return TableSchema(tuple(features), Target(table.target, target_type, tuple(classes)), tuple(table.keys))


def _probability_classes(seen: ColumnStats) -> list[Label]:
    """The classes that probabilities of class 1 round to; 0.5 is class 0."""
    return [label for label, found in ((0, seen.lower <= 0.5), (1, seen.upper > 0.5)) if found]


def _check_invalid(name: str, seen: ColumnStats, num_rows: int, allowed: float, faults: list[str]) -> None:
    total = sum(seen.invalid.values())
    if total > allowed * num_rows:
        reasons = ", ".join(f"{count} x {reason}" for reason, count in seen.invalid.items() if count)
        faults.append(
            f"{seen.invalid_file}: column {name} has {reasons} in {num_rows} training rows; fill them in, or set "
            f"training.max_reject_fraction to at least {total / num_rows:.3g} to leave such rows out"
        )


def _fit_continuous(
    name: str, kept: str, declared: config.ContinuousFeature, seen: ColumnStats, faults: list[str]
) -> Continuous | None:
    if seen.lower > seen.upper:
        faults.append(f"column {name}: no usable value in the training split")
        return None
    if seen.lower == seen.upper:
        faults.append(f"column {name}: constant, always {seen.lower:g} in the training split; remove it from features")
        return None
    whole_steps = not kept.startswith(("float", "double", "halffloat"))
    grid = Grid(1, seen.decimals) if whole_steps or seen.decimals <= _MAX_DECIMALS else None
    if declared.step is not None:
        if whole_steps and Grid.of_step(declared.step).decimals > seen.decimals:
            faults.append(f"column {name}: step {declared.step:g} is finer than a column of type {kept} can hold")
            return None
        grid = Grid.of_step(declared.step)
    fitted = Continuous(
        name,
        kept,
        seen.lower,
        seen.upper,
        grid,
        declared.direction,
        typed_bounds(declared, kept),
        declared.immutable,
    )
    if not np.isfinite(fitted.span):
        faults.append(f"column {name}: its range {seen.lower:g} to {seen.upper:g} is too wide for a number; rescale it")
        return None
    if grid is not None and fitted.grid_range(seen.lower, seen.upper) is None:
        faults.append(
            f"column {name}: no multiple of its step {declared.step:g} lies in its range {seen.lower:g} to "
            f"{seen.upper:g}; choose a smaller step"
        )
        return None
    return fitted


def _fit_categorical(
    name: str, kept: str, declared: config.CategoricalFeature, seen: ColumnStats, faults: list[str]
) -> Categorical | None:
    if len(seen.counts) > MAX_CATEGORIES:
        faults.append(
            f"column {name}: more than {MAX_CATEGORIES} categories; if it is an identifier list it under keys, "
            "if a number declare kind: continuous, else group its values"
        )
        return None
    if len(seen.counts) < 2:
        only = ", ".join(map(repr, seen.counts)) or "no value"
        faults.append(f"column {name}: constant ({only}) in the training split; remove it from features")
        return None
    categories = sorted(seen.counts)
    if declared.order is not None:
        if not _holds(kept, declared.order):
            faults.append(
                f"column {name}: its order has values that a column of type {kept} cannot hold; "
                'quote strings such as "1" or "no", and leave numbers unquoted'
            )
            return None
        unknown = [repr(label) for label in categories if label not in declared.order]
        if unknown:
            faults.append(f"column {name}: values not in its order: {', '.join(unknown[:10])}; add them to order")
            return None
        categories = list(declared.order)
    return Categorical(
        name, kept, tuple(categories), declared.order is not None, declared.direction, declared.immutable
    )


def _holds(arrow_type: str, labels: list[Label]) -> bool:
    try:
        held = pa.array(labels, type=pa.type_for_alias(arrow_type)).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return [(type(label), label) for label in held] == [(type(label), label) for label in labels]
