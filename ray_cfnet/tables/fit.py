"""From statistics of the rows, and what was declared, to a schema."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from ray_cfnet import config
from ray_cfnet.errors import InputError
from ray_cfnet.tables.schema import (
    Categorical,
    Continuous,
    Feature,
    Grid,
    Label,
    TableSchema,
    Target,
    is_label_type,
    permitted_changes,
    type_problem,
    value_type,
)
from ray_cfnet.tables.stats import MAX_CATEGORIES, MAX_DECIMALS, ColumnStats, typed_bounds
from ray_cfnet.tables.stats import TableStats as TableStats

MAX_CLASSES = 100


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
    target = Target(table.target, target_type, tuple(classes))
    return TableSchema(tuple(features), target, tuple(table.keys), tuple(table.relations))


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
    grid = Grid(1, seen.decimals) if whole_steps or seen.decimals <= MAX_DECIMALS else None
    wanted = None if declared.step is None else Grid.of_step(declared.step)
    if declared.decimals is not None:
        wanted = Grid(1, declared.decimals)
    if wanted is not None:
        if whole_steps and wanted.decimals > seen.decimals:
            faults.append(f"column {name}: step {wanted.step:g} is finer than a column of type {kept} can hold")
            return None
        grid = wanted
    max_change, max_change_percent = declared.room
    fitted = Continuous(
        name,
        kept,
        seen.lower,
        seen.upper,
        grid,
        declared.direction,
        typed_bounds(declared, kept),
        declared.immutable,
        max_change=max_change,
        max_change_percent=max_change_percent,
        tolerance=declared.tolerance or 0.0,
    )
    if declared.allowed is not None:
        values = np.unique(np.array(declared.allowed))
        lowest, highest = fitted.type_range
        between = whole_steps and grid is not None and grid.snap(values) != values
        unfit = values[(values < lowest) | (values > highest) | between]
        if len(unfit):
            faults.append(f"column {name}: a column of type {kept} cannot hold the allowed {unfit[0]:g}")
            return None
        fitted = replace(fitted, allowed=tuple(np.unique(fitted.typed(values)).tolist()))
    elif max_change is not None and grid is not None and max_change < grid.step:
        faults.append(
            f"column {name}: max_change {max_change:g} is less than its step {grid.step:g}: it could never change"
        )
        return None
    if not np.isfinite(fitted.span):
        faults.append(f"column {name}: its range {seen.lower:g} to {seen.upper:g} is too wide for a number; rescale it")
        return None
    if grid is not None and fitted.grid_range(seen.lower, seen.upper) is None:
        faults.append(
            f"column {name}: no multiple of its step {grid.step:g} lies in its range {seen.lower:g} to "
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
    forbidden = [(start, end) for start, ends in declared.forbidden_transitions.items() for end in ends]
    for key, labels in (
        ("allowed", declared.allowed or []),
        ("forbidden_transitions", [x for pair in forbidden for x in pair]),
    ):
        # Types must agree too: in Python True == 1.
        unknown = [repr(label) for label in labels if (type(label), label) not in {(type(c), c) for c in categories}]
        if unknown:
            known = ", ".join(map(repr, categories[:10]))
            faults.append(f"column {name}: {key} names {unknown[0]}, which is not one of its categories: {known}")
            return None
    fitted = Categorical(
        name,
        kept,
        tuple(categories),
        declared.order is not None,
        declared.direction,
        declared.immutable,
        allowed=None if declared.allowed is None else tuple(declared.allowed),
        forbidden=tuple(forbidden),
    )
    if not fitted.immutable and not (permitted_changes(fitted) & ~np.eye(len(categories), dtype=bool)).any():
        faults.append(f"column {name}: its rules leave no change at all; declare immutable: true instead")
        return None
    return fitted


def _holds(arrow_type: str, labels: list[Label]) -> bool:
    try:
        held = pa.array(labels, type=pa.type_for_alias(arrow_type)).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return [(type(label), label) for label in held] == [(type(label), label) for label in labels]
