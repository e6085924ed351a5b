"""Schema drift, found in the footers: whether files have the columns that are needed, and one type for each of them."""

import difflib
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from ray_cfnet.errors import InputError
from ray_cfnet.tables.plan import Source
from ray_cfnet.tables.schema import value_type


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
    for kind, wider in ((one, other), (other, one)):
        if pa.types.is_null(kind):  # what some writers make of a column that has no value yet
            return value_type(wider)
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
