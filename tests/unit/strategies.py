"""Random schemas, rows and candidates, and plain-Python readings of the rules to compare the code with."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from ray_cfnet.config import Split
from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema, Target

# The first call into Arrow is slow, and a busy machine is no fault of the code.
settings.register_profile("unit", deadline=None)
settings.load_profile("unit")

INT_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOAT_TYPES = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}
GRIDS = [Grid(1, 0), Grid(5, 0), Grid(100, 0), Grid(1, 1), Grid(1, 2), Grid(5, 2), Grid(25, 2), Grid(1, 4)]
TARGET = Target("decision", "string", ("no", "yes"))

LARGEST_EXACT = 2**53 - 1


def schema_of(*features: Continuous | Categorical) -> TableSchema:
    return TableSchema(tuple(features), TARGET)


def number(arrow_type: pa.DataType, lower: float, upper: float, grid: Grid | None = None, **rules) -> Continuous:
    return Continuous("x", str(arrow_type), lower, upper, grid, **rules)


def int_limits(arrow_type: pa.DataType) -> tuple[int, int]:
    signed = pa.types.is_signed_integer(arrow_type)
    bits = arrow_type.bit_width
    lowest, highest = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return max(lowest, -LARGEST_EXACT), min(highest, LARGEST_EXACT)


def as_type(value: float, arrow_type: pa.DataType) -> float:
    return float(FLOAT_TYPES[arrow_type](value)) if arrow_type in FLOAT_TYPES else value


def grid_value(position: int, grid: Grid, arrow_type: pa.DataType) -> float:
    """The value at a grid position as a column of this type holds it, by exact arithmetic."""
    return as_type(float(Fraction(position * grid.multiple, 10**grid.decimals)), arrow_type)


def lies_on_grid(value: float, grid: Grid, arrow_type: pa.DataType) -> bool:
    nearest = round(Fraction(value) * 10**grid.decimals / grid.multiple)
    return any(grid_value(position, grid, arrow_type) == value for position in (nearest - 1, nearest, nearest + 1))


def rule_broken(x: float, candidate: float, feature: Continuous, arrow_type: pa.DataType) -> str | None:
    """The first rule of a number that a candidate breaks."""
    if candidate == x:
        return None
    lower, upper = feature.bounds
    if feature.immutable:
        return "immutable"
    if (feature.direction == "increase" and candidate < x) or (feature.direction == "decrease" and candidate > x):
        return "direction"
    if (lower is not None and candidate < lower) or (upper is not None and candidate > upper):
        return "bounds"
    if feature.grid is not None and not lies_on_grid(candidate, feature.grid, arrow_type):
        return "grid"
    return None


def category_rule_broken(x: int, candidate: int, feature: Categorical) -> str | None:
    if feature.immutable and candidate != x:
        return "immutable"
    if (feature.direction == "increase" and candidate < x) or (feature.direction == "decrease" and candidate > x):
        return "direction"
    return None


@dataclass(frozen=True)
class Column:
    """A feature with values that every rule for rows accepts."""

    feature: Continuous | Categorical
    arrow_type: pa.DataType
    values: list


@st.composite
def int_columns(draw, name: str, num_rows: int) -> Column:
    arrow_type = draw(st.sampled_from(INT_TYPES))
    lowest, highest = int_limits(arrow_type)
    lower = draw(st.integers(lowest, highest - 1))
    upper = draw(st.integers(lower + 1, highest))
    reach = 900_000 * (upper - lower)
    valid = st.integers(max(lowest, lower - reach), min(highest, upper + reach))
    values = draw(st.lists(valid, min_size=num_rows, max_size=num_rows))
    feature = Continuous(name, str(arrow_type), float(lower), float(upper), Grid(1, 0))
    return Column(feature, arrow_type, values)


@st.composite
def float_columns(draw, name: str, num_rows: int) -> Column:
    arrow_type = draw(st.sampled_from(list(FLOAT_TYPES)))
    largest = {16: 60_000.0, 32: 2.0**100, 64: 2.0**500}[arrow_type.bit_width]
    valid = st.floats(-largest, largest, width=arrow_type.bit_width)
    values = draw(st.lists(valid, min_size=num_rows, max_size=num_rows))
    feature = Continuous(name, str(arrow_type), -largest, largest, None)
    return Column(feature, arrow_type, values)


@st.composite
def decimal_columns(draw, name: str, num_rows: int) -> Column:
    precision = draw(st.integers(1, 15))
    scale = draw(st.integers(0, precision))
    largest = 10**precision - 1
    valid = st.integers(-largest, largest).map(lambda unscaled: Decimal(unscaled).scaleb(-scale))
    values = draw(st.lists(valid, min_size=num_rows, max_size=num_rows))
    upper = float(Decimal(largest).scaleb(-scale))
    arrow_type = pa.decimal128(precision, scale)
    feature = Continuous(name, str(arrow_type), -upper, upper, Grid(1, scale) if scale <= 6 else None)
    return Column(feature, arrow_type, values)


@st.composite
def category_columns(draw, name: str, num_rows: int) -> Column:
    arrow_type = draw(st.sampled_from([pa.string(), pa.large_string(), pa.bool_(), *INT_TYPES]))
    if pa.types.is_boolean(arrow_type):
        labels = st.booleans()
    elif pa.types.is_integer(arrow_type):
        bits = arrow_type.bit_width
        signed = pa.types.is_signed_integer(arrow_type)
        labels = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)
    else:
        labels = st.text(max_size=5)
    categories = draw(st.lists(labels, min_size=2, max_size=6, unique=True))
    ordered = draw(st.booleans())
    values = draw(st.lists(st.sampled_from(categories), min_size=num_rows, max_size=num_rows))
    feature = Categorical(name, str(arrow_type), tuple(categories if ordered else sorted(categories)), ordered)
    return Column(feature, arrow_type, values)


@st.composite
def arrow_columns(draw, column: Column) -> pa.Array | pa.ChunkedArray:
    """The values as Arrow holds them: plain or dictionary-encoded, in one piece or in chunks."""
    array = pa.array(column.values, type=column.arrow_type)
    encodable = not pa.types.is_decimal(column.arrow_type) and column.arrow_type != pa.float16()
    if encodable and draw(st.booleans()):
        array = array.dictionary_encode()
    if not draw(st.booleans()):
        return array
    cuts = sorted(draw(st.lists(st.integers(0, len(array)), max_size=3)))
    edges = [0, *cuts, len(array)]
    chunks = [array.slice(start, stop - start) for start, stop in pairwise(edges)]
    if pa.types.is_dictionary(array.type):
        chunks = [chunk.dictionary_decode().dictionary_encode() for chunk in chunks]
    return pa.chunked_array(chunks, type=array.type)


@dataclass(frozen=True)
class Rows:
    """A table all of whose rows are valid, with its schema."""

    schema: TableSchema
    table: pa.Table
    columns: list[Column]

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {field.name: field.type for field in self.table.schema}


@st.composite
def valid_rows(draw) -> Rows:
    num_rows = draw(st.integers(0, 8))
    count = draw(st.integers(1, 4))
    kinds = [int_columns, float_columns, decimal_columns, category_columns, category_columns]
    columns = [draw(draw(st.sampled_from(kinds))(f"f{i}", num_rows)) for i in range(count)]
    arrays = {column.feature.name: draw(arrow_columns(column)) for column in columns}
    return Rows(schema_of(*(column.feature for column in columns)), pa.table(arrays), columns)


@st.composite
def grid_features(draw, arrow_type: pa.DataType, furthest: int, most_positions: int) -> tuple[Continuous, int, int]:
    """A number on a grid whose training range runs between two of its positions."""
    whole_only = pa.types.is_integer(arrow_type)
    grid = draw(st.sampled_from([grid for grid in GRIDS if not (whole_only and grid.decimals)]))
    first = draw(st.integers(-furthest, furthest - 1))
    last = draw(st.integers(first + 1, min(furthest, first + most_positions)))
    lower, upper = grid_value(first, grid, arrow_type), grid_value(last, grid, arrow_type)
    return number(arrow_type, lower, upper, grid), first, last


@dataclass(frozen=True)
class Change:
    """A row of one number, a candidate for it, and the rules between them."""

    feature: Continuous
    arrow_type: pa.DataType
    x: float
    candidate: float

    @property
    def schema(self) -> TableSchema:
        return schema_of(self.feature)

    @property
    def step(self) -> float:
        return self.feature.grid.multiple / 10**self.feature.grid.decimals if self.feature.grid else 0.0

    def broken(self, value: float) -> str | None:
        return rule_broken(self.x, value, self.feature, self.arrow_type)


def one_number(value: float) -> Encoded:
    return Encoded(np.array([[value]]), np.empty((1, 0), dtype=np.int64))


@st.composite
def changes(draw, off_grid_candidates: bool = True) -> Change:
    """Numbers within 2,000 grid positions (2,000 units without a grid) of zero."""
    arrow_type = draw(st.sampled_from([pa.int64(), pa.float64(), pa.float32()]))
    whole_only = pa.types.is_integer(arrow_type)
    grids = [grid for grid in GRIDS if not grid.decimals] if whole_only else [*GRIDS, None]
    grid = draw(st.sampled_from(grids))
    fine = Grid(1, 0) if whole_only else Grid(1, 6 if grid is None else grid.decimals + 1)
    reach = round(2_000 * 10**fine.decimals * (grid.multiple / 10**grid.decimals if grid else 1))

    def off_grid(lowest: int, highest: int) -> st.SearchStrategy[float]:
        return st.integers(lowest, highest).map(lambda position: grid_value(position, fine, arrow_type))

    lower_position = draw(st.integers(-reach, reach))
    upper_position = draw(st.integers(lower_position, reach))
    bounds = (
        draw(st.sampled_from([None, grid_value(lower_position, fine, arrow_type)])),
        draw(st.sampled_from([None, grid_value(upper_position, fine, arrow_type)])),
    )
    x = draw(off_grid(lower_position, upper_position))
    on_grid = off_grid(-reach, reach)
    if grid is not None:
        on_grid = st.integers(-2_000, 2_000).map(lambda position: grid_value(position, grid, arrow_type))
    candidate = draw(st.one_of(st.just(x), on_grid, *([off_grid(-reach, reach)] if off_grid_candidates else [])))
    feature = number(
        arrow_type,
        -1.0,
        1.0,
        grid,
        direction=draw(st.sampled_from(["any", "increase", "decrease"])),
        bounds=bounds,
        immutable=draw(st.integers(0, 9)) == 0,
    )
    return Change(feature, arrow_type, x, candidate)


fitted_rows = st.fixed_dictionaries(
    {
        "count": st.integers(-1000, 1000),
        "price": st.integers(0, 10**6).map(lambda cents: cents / 100),
        "narrow": st.integers(0, 9999).map(lambda tenths: float(np.float32(tenths / 10))),
        "free": st.floats(-1e9, 1e9),
        "town": st.sampled_from(["aa", "b", "ccc", "d"]),
        "decision": st.booleans(),
    }
)

splits = st.builds(
    lambda method, train, validation, seed: Split(
        method=method, train=train / 100, validation=validation / 100, test=(100 - train - validation) / 100, seed=seed
    ),
    st.sampled_from(["sequential", "random"]),
    st.integers(1, 60),
    st.integers(1, 39),
    st.integers(0, 2**31 - 1),
)

row_group_layouts = st.lists(
    st.tuples(st.sampled_from(["", "ds=1", "ds=2", "ds=2/town=a"]), st.lists(st.integers(0, 12), max_size=6)),
    min_size=1,
    max_size=8,
)
"""(partition, rows of each row group) of each file of a table."""
