"""Arrow rows <-> numbers a network can eat, one column at a time, never one row at a time.

Continuous columns stay float64 in their own units, so that a value which does not change comes back to
the last bit; `to_unit` scales a copy for the network. Categories are codes into the schema's vocabulary.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ray_cfnet.tables.schema import LARGEST_EXACT_INTEGER, Continuous, FloatArray, TableSchema, value_type

CodeArray = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

REJECT_REASONS = ("null", "nan", "infinite", "unseen_category", "out_of_domain", "breaks_rule")

_FAR_IN_UNITS = 1e6
"""A value a million training ranges away is not a row the model can speak about (and overflows float32)."""


@dataclass
class Encoded:
    """Rows as numbers: `values` (N, C) float64 in raw units, `codes` (N, K); both column-major."""

    values: FloatArray
    codes: CodeArray

    @classmethod
    def like(cls, other: "Encoded") -> "Encoded":
        """Room for as many rows of the same columns."""
        return cls(np.empty(other.values.shape[::-1]).T, np.empty(other.codes.shape[::-1], dtype=np.int64).T)

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, index: Mask | CodeArray | slice) -> "Encoded":
        """Chosen rows: a slice gives a view, everything else a copy that is column-major again."""
        if isinstance(index, slice):
            return Encoded(self.values[index], self.codes[index])
        if index.dtype == bool and len(index) != len(self):
            raise IndexError(f"a mask of {len(index)} for {len(self)} rows")
        places = np.flatnonzero(index) if index.dtype == bool else index.astype(np.int64, copy=False)
        return Encoded(_chosen(self.values, places), _chosen(self.codes, places))

    def put(self, places: Mask | CodeArray, others: "Encoded") -> None:
        """Overwrites chosen rows, a column at a time: it is contiguous."""
        for mine, theirs in ((self.values, others.values), (self.codes, others.codes)):
            for column in range(mine.shape[1]):
                mine[:, column][places] = theirs[:, column]

    def column(self, position: int) -> npt.NDArray:
        """A view of one feature: numbers come first, then categories."""
        count = self.values.shape[1]
        return self.values[:, position] if position < count else self.codes[:, position - count]


def _chosen(columns: npt.NDArray, places: CodeArray) -> npt.NDArray:
    """Rows of a matrix, a column at a time: of a view that is not contiguous numpy would copy all of it first."""
    chosen = np.empty((columns.shape[1], len(places)), dtype=columns.dtype)
    for column, into in zip(columns.T, chosen, strict=True):
        into[:] = column.take(places)
    return chosen.T


@dataclass
class Rejects:
    """Which rows cannot be scored: indices into REJECT_REASONS and the features, -1 for good rows."""

    reason: npt.NDArray[np.int8]
    feature: npt.NDArray[np.int32]

    @property
    def good(self) -> Mask:
        return self.reason < 0

    def mark(self, bad: Mask, reason: str, feature: int) -> None:
        """Keeps the first fault of a row."""
        bad = bad & (self.reason < 0)
        self.reason[bad] = REJECT_REASONS.index(reason)
        self.feature[bad] = feature

    def counts(self) -> dict[str, int]:
        numbers = np.bincount(self.reason[self.reason >= 0], minlength=len(REJECT_REASONS))
        return {reason: int(n) for reason, n in zip(REJECT_REASONS, numbers, strict=True) if n}


def encode(table: pa.Table | pa.RecordBatch, schema: TableSchema) -> tuple[Encoded, Rejects]:
    """All rows as numbers, and which of them must be rejected; values of rejected rows mean nothing."""
    num_rows = table.num_rows
    encoded = Encoded(
        np.empty((len(schema.continuous), num_rows)).T,
        np.empty((len(schema.categorical), num_rows), dtype=np.int64).T,
    )
    rejects = Rejects(np.full(num_rows, -1, np.int8), np.full(num_rows, -1, np.int32))
    next_value = next_code = 0
    for position, feature in enumerate(schema.features):
        column = _flat(table.column(feature.name))
        if column.null_count:
            rejects.mark(_numpy(column.is_null()), "null", position)
        if isinstance(feature, Continuous):
            encoded.values[:, next_value] = numbers_of(column)
            _mark_bad_numbers(encoded.values[:, next_value], column.type, feature, rejects, position)
            next_value += 1
        else:
            codes = codes_of(column, feature.categories)
            if len(codes) and codes.min() < 0:
                rejects.mark(codes < 0, "unseen_category", position)
            encoded.codes[:, next_code] = codes
            next_code += 1
    for rule in schema.rules:
        if rule.kind == "at_most":
            first, second = (encoded.values[:, schema.position(name)] for name in (rule.first, rule.second))
            rejects.mark(first > second, "breaks_rule", schema.feature_names.index(rule.first))
    return encoded, rejects


def _flat(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type) and column.dictionary.null_count:
        column = column.dictionary_decode()  # a null may also hide among the dictionary's entries
    return column


def _numpy(array: pa.Array) -> npt.NDArray:
    return array.to_numpy(zero_copy_only=False)


def numbers_of(column: pa.Array) -> npt.NDArray:
    """A number column as numpy; where it is null, any number."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):
        # Arrow's cast to double is not correctly rounded (0.3 becomes 0.30000000000000004); one division is.
        # Up to 15 digits fit the lower half of the 128-bit integers.
        halves = np.frombuffer(column.buffers()[1], dtype="<i8").reshape(-1, 2)
        return halves[column.offset : column.offset + len(column), 0] / 10.0**column.type.scale
    return _numpy(column.fill_null(0) if column.null_count else column)


def _mark_bad_numbers(
    values: FloatArray, arrow_type: pa.DataType, feature: Continuous, rejects: Rejects, position: int
) -> None:
    middle, far = (feature.lower + feature.upper) / 2, _FAR_IN_UNITS * feature.span
    lower, upper = feature.bounds
    lowest = max(middle - far, -np.inf if lower is None else lower)
    highest = min(middle + far, np.inf if upper is None else upper)
    if pa.types.is_integer(value_type(arrow_type)):
        lowest, highest = max(lowest, -LARGEST_EXACT_INTEGER), min(highest, LARGEST_EXACT_INTEGER)
    # Both ends are finite, and NaN is in no range: nearly always this is the only look at the values.
    if len(values) == 0 or (lowest <= values.min() and values.max() <= highest):
        return
    rejects.mark(np.isnan(values), "nan", position)
    rejects.mark(np.isinf(values), "infinite", position)
    with np.errstate(invalid="ignore"):
        rejects.mark((values < lowest) | (values > highest), "out_of_domain", position)


def codes_of(column: pa.Array, labels: tuple) -> CodeArray:
    """Each value's position among the labels, -1 for null and for values not among them."""
    if pa.types.is_dictionary(column.type):
        known = _labels_as(labels, column.type.value_type)
        code_of_entry = _numpy(pc.index_in(column.dictionary, known, skip_nulls=True).fill_null(-1)).astype(np.int64)
        # One entry more, reached by index -1: nulls.
        code_of_entry = np.append(code_of_entry, -1)
        indices = column.indices.fill_null(-1) if column.indices.null_count else column.indices
        return code_of_entry[_numpy(indices)]
    known = _labels_as(labels, column.type)
    codes = pc.index_in(column, known, skip_nulls=True)
    return _numpy(codes.fill_null(-1) if codes.null_count else codes).astype(np.int64)


def _labels_as(labels: tuple, column_type: pa.DataType) -> pa.Array:
    """Labels as values of a column; null for those beyond its type, which is narrower than the trained one."""
    if pa.types.is_integer(column_type):
        holds = np.iinfo(column_type.to_pandas_dtype())
        labels = tuple(label if holds.min <= label <= holds.max else None for label in labels)
    return pa.array(labels, type=column_type)


def probabilities_of(column: pa.Array) -> tuple[CodeArray, FloatArray]:
    """A target of probabilities as (class 0 or 1, probability of class 1); class -1 where it is not in [0, 1]."""
    probabilities = numbers_of(column).astype(np.float64)
    usable = (probabilities >= 0) & (probabilities <= 1) & ~_numpy(column.is_null())
    return np.where(usable, probabilities > 0.5, -1).astype(np.int64), probabilities


def to_unit(values: FloatArray, schema: TableSchema) -> npt.NDArray[np.float32]:
    """(N, C) float32, column-major, for the network: the training range becomes [0, 1]."""
    unit = np.empty(values.shape[::-1], dtype=np.float32).T
    for column, feature in enumerate(schema.continuous):
        unit[:, column] = (values[:, column] - feature.lower) / feature.span
    return unit


def from_unit(unit: npt.NDArray[np.float32], schema: TableSchema, out: FloatArray | None = None) -> FloatArray:
    """(N, C) raw values that the columns could hold: on the grid, inside the training range, of the type.

    They are written to `out` if it is given.
    """
    values = np.empty(unit.shape[::-1]).T if out is None else out
    for column, feature in enumerate(schema.continuous):
        raw = unit[:, column].astype(np.float64)
        raw *= feature.span
        raw += feature.lower
        fitted = fitting(raw, feature, feature.lower, feature.upper)
        if fitted is None:  # fit_schema refuses such columns
            raise ValueError(f"{feature.name}: none of its steps lies in its range")
        values[:, column] = fitted
    return values


def fitting(raw: FloatArray, feature: Continuous, lowest: float, highest: float) -> FloatArray | None:
    """The nearest values in [lowest, highest] on the feature's grid and of its type; None if there are none."""
    if feature.grid is None:
        return feature.typed(np.clip(raw, lowest, highest))
    positions = feature.grid_range(lowest, highest)
    if positions is None:
        return None
    return feature.typed(feature.grid.value(np.clip(np.rint(feature.grid.index(raw)), *positions)))


def bitmap(valid: Mask) -> pa.Buffer | None:
    """Which values are not null, as Arrow keeps it; None: all. Columns can share it."""
    return None if valid.all() else _bits(valid)


def _bits(flags: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(flags, bitorder="little"))


def flag_column(flags: Mask, valid: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(flags), [valid, _bits(flags)])


def number_column(values: npt.NDArray, valid: pa.Buffer | None) -> pa.Array:
    """The numbers themselves as an Arrow column, without a copy."""
    kept = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(kept.dtype), len(kept), [valid, pa.py_buffer(kept)])


def decode(
    encoded: Encoded, schema: TableSchema, types: dict[str, pa.DataType], valid: pa.Buffer | None = None
) -> dict[str, pa.Array]:
    """A column per feature, by name, of the given types (strings leave as dictionary arrays)."""
    columns: dict[str, pa.Array] = {}
    next_value = next_code = 0
    for feature in schema.features:
        kept = value_type(types[feature.name])
        if isinstance(feature, Continuous):
            columns[feature.name] = _typed_column(encoded.values[:, next_value], kept, valid)
            next_value += 1
        else:
            columns[feature.name] = label_column(encoded.codes[:, next_code], feature.categories, kept, valid)
            next_code += 1
    return columns


def _typed_column(values: FloatArray, arrow_type: pa.DataType, valid: pa.Buffer | None) -> pa.Array:
    if pa.types.is_decimal(arrow_type):
        lower_half = np.rint(values * 10.0**arrow_type.scale).astype("<i8")
        halves = np.ascontiguousarray(np.stack([lower_half, lower_half >> 63], axis=1))  # two's complement
        return pa.Array.from_buffers(arrow_type, len(values), [valid, pa.py_buffer(halves)])
    if pa.types.is_integer(arrow_type):
        values = np.rint(values)
    return number_column(values.astype(arrow_type.to_pandas_dtype(), copy=False), valid)


def label_column(
    codes: npt.NDArray[np.integer], labels: tuple, arrow_type: pa.DataType, valid: pa.Buffer | None = None
) -> pa.Array:
    """Codes as an Arrow column: a dictionary array for strings, plain values otherwise."""
    entries = pa.array(labels, type=arrow_type)
    indices = number_column(codes.astype(np.int32), valid)
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return pa.DictionaryArray.from_arrays(indices, entries, safe=False)
    return entries.take(indices)
