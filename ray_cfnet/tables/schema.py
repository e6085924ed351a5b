"""The fitted schema: what each column is, what it ranges over, and how its values may look.

It is plain data, saved as JSON in the bundle. Nothing here reads rows; fit.py does that.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ray_cfnet.config import Label
from ray_cfnet.config.ruletext import Relation

Direction = Literal["any", "increase", "decrease"]
FloatArray = npt.NDArray[np.float64]

SCHEMA_VERSION = 1
LARGEST_EXACT_INTEGER = 2.0**53 - 1


@dataclass(frozen=True)
class Grid:
    """The values a number may take: integer multiples of `multiple / 10**decimals`.

    Kept as two integers so that a grid value is one correctly rounded division, the same double that
    a decimal literal reads as.
    """

    multiple: int
    decimals: int

    @classmethod
    def of_step(cls, step: float) -> "Grid":
        """The grid of a step as it is written: 0.05 means 5/100, not its nearest double."""
        exponent = Decimal(repr(step)).normalize().as_tuple().exponent
        decimals = max(0, -int(exponent))
        return cls(int(Decimal(repr(step)).scaleb(decimals)), decimals)

    @property
    def step(self) -> float:
        return self.multiple / 10**self.decimals

    def index(self, values: FloatArray) -> FloatArray:
        """Each value's position on the grid, a whole number for values that lie on it."""
        return values * (10.0**self.decimals / self.multiple)

    def value(self, index: FloatArray) -> FloatArray:
        return index * self.multiple / 10.0**self.decimals

    def snap(self, values: FloatArray) -> FloatArray:
        """The nearest grid values."""
        return self.value(np.rint(self.index(values)))


NARROW_TYPES: dict[str, type[np.floating]] = {"float": np.float32, "halffloat": np.float16}


@dataclass(frozen=True)
class Continuous:
    """A number column: its type, its range in the training split, and the rules declared for it."""

    name: str
    arrow_type: str
    lower: float
    upper: float
    grid: Grid | None
    direction: Direction = "any"
    bounds: tuple[float | None, float | None] = (None, None)
    immutable: bool = False
    kind: Literal["continuous"] = "continuous"
    max_change: float | None = None
    """In the column's unit."""
    max_change_percent: float | None = None
    """Of the row's own value."""
    allowed: tuple[float, ...] | None = None
    """What a change may lead to, from low to high; instead of the grid."""
    tolerance: float = 0.0
    """A smaller change is none."""

    @property
    def span(self) -> float:
        return self.upper - self.lower

    @property
    def epsilon(self) -> float:
        """How far the column's type rounds a value at most, as a share of it."""
        return float(np.finfo(NARROW_TYPES.get(self.arrow_type, np.float64)).eps)

    @property
    def type_range(self) -> tuple[float, float]:
        """The lowest and highest number that the column can hold and a double can tell from its neighbours."""
        if self.arrow_type.startswith(("int", "uint")):
            limits = np.iinfo(self.arrow_type)
            return max(float(limits.min), -LARGEST_EXACT_INTEGER), min(float(limits.max), LARGEST_EXACT_INTEGER)
        if self.arrow_type.startswith("decimal"):
            precision, scale = map(int, self.arrow_type.partition("(")[2].rstrip(")").split(","))
            largest = (10.0**precision - 1) / 10.0**scale
        else:
            narrow = NARROW_TYPES.get(self.arrow_type)
            largest = np.inf if narrow is None else float(np.finfo(narrow).max)
        return -largest, largest

    @property
    def is_limited(self) -> bool:
        """Whether a change may be too large or too small for a row."""
        return self.max_change is not None or self.max_change_percent is not None or self.tolerance > 0

    def typed(self, values: FloatArray) -> FloatArray:
        """The doubles that come back after the values were written to the column."""
        narrow = NARROW_TYPES.get(self.arrow_type)
        return values if narrow is None else values.astype(narrow).astype(np.float64)

    def as_written(self, value: float) -> float:
        """The shortest decimal that the column holds as this value: 0.7, not the double that its float32 is."""
        narrow = NARROW_TYPES.get(self.arrow_type)
        return value if narrow is None else float(str(narrow(value)))

    def held_by(self, arrow_type: pa.DataType) -> "Continuous":
        """The same feature in a column of a wider type, which does not round as the trained one did."""
        kept = str(value_type(arrow_type))
        narrow, wide = NARROW_TYPES.get(self.arrow_type, np.float64), NARROW_TYPES.get(kept, np.float64)
        if narrow is wide or not np.can_cast(narrow, wide):
            return self

        def held(value: float) -> float:
            return float(wide(self.as_written(value)))

        lower, upper = (None if end is None else held(end) for end in self.bounds)
        return replace(
            self,
            arrow_type=kept,
            lower=held(self.lower),
            upper=held(self.upper),
            bounds=(lower, upper),
            allowed=None if self.allowed is None else tuple(map(held, self.allowed)),
        )

    def grid_range(self, lowest: float, highest: float) -> tuple[float, float] | None:
        """First and last grid position whose written value lies in a range; None if there is none."""
        grid = self.grid or Grid(1, 0)
        ends = np.rint(grid.index(np.array([lowest, highest])))
        written = self.typed(grid.value(ends))
        first, last = ends[0] + (written[0] < lowest), ends[1] - (written[1] > highest)
        return (float(first), float(last)) if first <= last else None


@dataclass(frozen=True)
class Categorical:
    """A column with a fixed set of values; `ordered` ones run from low to high."""

    name: str
    arrow_type: str
    categories: tuple[Label, ...]
    ordered: bool = False
    direction: Direction = "any"
    immutable: bool = False
    kind: Literal["categorical"] = "categorical"
    allowed: tuple[Label, ...] | None = None
    """What a change may lead to."""
    forbidden: tuple[tuple[Label, Label], ...] = ()
    """(from, to) of changes that may not be."""

    @property
    def is_restricted(self) -> bool:
        """Whether a change may lead to some categories only."""
        return self.direction != "any" or self.allowed is not None or bool(self.forbidden)


@lru_cache
def permitted_changes(feature: Categorical) -> npt.NDArray[np.bool_]:
    """(K, K): whether a row with code i may get code j. Staying is always permitted."""
    size = len(feature.categories)
    row, candidate = np.arange(size)[:, None], np.arange(size)[None, :]
    permitted = np.full((size, size), not feature.immutable)
    if feature.direction != "any":
        permitted &= (candidate > row) if feature.direction == "increase" else (candidate < row)
    if feature.allowed is not None:
        permitted &= np.isin(candidate, [feature.categories.index(label) for label in feature.allowed])
    for start, end in feature.forbidden:
        permitted[feature.categories.index(start), feature.categories.index(end)] = False
    return permitted | (row == candidate)


Feature = Continuous | Categorical


@dataclass(frozen=True)
class Target:
    """The predicted column and its classes, in the order of the model's outputs."""

    name: str
    arrow_type: str
    classes: tuple[Label, ...]

    @property
    def is_probability(self) -> bool:
        """Whether the column holds the probability of class 1: the only meaning a float target can have."""
        return self.arrow_type in ("double", *NARROW_TYPES)


@dataclass(frozen=True)
class TableSchema:
    """Everything that turns this table's rows into tensors and back."""

    features: tuple[Feature, ...]
    target: Target
    keys: tuple[str, ...] = field(default=())
    rules: tuple[Relation, ...] = ()
    """Between features."""

    @property
    def continuous(self) -> list[Continuous]:
        return [f for f in self.features if isinstance(f, Continuous)]

    @property
    def categorical(self) -> list[Categorical]:
        return [f for f in self.features if isinstance(f, Categorical)]

    @property
    def feature_names(self) -> list[str]:
        return [f.name for f in self.features]

    def position(self, name: str) -> int:
        """A feature's place when numbers come first and categories after them, as in encoded rows."""
        names = [f.name for f in self.continuous] + [f.name for f in self.categorical]
        return names.index(name)

    def held_by(self, columns: pa.Schema) -> "TableSchema":
        """The same for rows whose numbers stand in columns of wider types than those of training."""
        features = (f.held_by(columns.field(f.name).type) if isinstance(f, Continuous) else f for f in self.features)
        return replace(self, features=tuple(features))

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        data = _without_unused(asdict(self))
        data["features"] = [_without_unused(feature) for feature in data["features"]]
        data["version"] = SCHEMA_VERSION
        return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "TableSchema":
        """Raises ValueError or KeyError when the text is not a schema of a version known here."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("a schema is a JSON object")
        if data["version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {data['version']} is not known here (known: {SCHEMA_VERSION})")
        target = data["target"]
        return cls(
            features=tuple(_feature(item) for item in data["features"]),
            target=Target(target["name"], target["arrow_type"], tuple(target["classes"])),
            keys=tuple(data["keys"]),
            rules=tuple(Relation(**rule) for rule in data.get("rules", ())),
        )


_UNUSED: dict[str, Any] = {
    "max_change": None,
    "max_change_percent": None,
    "allowed": None,
    "tolerance": 0.0,
    "forbidden": (),
    "rules": (),
}
"""Rules that came after the first schemas were saved: left out where not declared, so that fingerprints stay."""


def _without_unused(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in _UNUSED or value != _UNUSED[key]}


def _feature(item: dict[str, Any]) -> Feature:
    if item.get("allowed") is not None:
        item = {**item, "allowed": tuple(item["allowed"])}
    if item["kind"] == "categorical":
        forbidden = tuple((start, end) for start, end in item.get("forbidden", ()))
        return Categorical(**{**item, "categories": tuple(item["categories"]), "forbidden": forbidden})
    grid = Grid(**item["grid"]) if item["grid"] else None
    return Continuous(**{**item, "grid": grid, "bounds": tuple(item["bounds"])})


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """The type of the values themselves: a dictionary column counts as what it holds."""
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def type_problem(arrow_type: pa.DataType, kind: str) -> str | None:
    """Why a column of this type cannot be a feature of this kind; None when it can."""
    kept = value_type(arrow_type)
    if kind == "continuous":
        if pa.types.is_integer(kept) or pa.types.is_floating(kept):
            return None
        if pa.types.is_decimal128(kept):
            # A double holds 15 significant digits for sure; more would not survive the round trip.
            return None if kept.precision <= 15 else "a decimal with more than 15 digits; cast it to double"
        if pa.types.is_temporal(kept):
            return "a date or time; turn it into a number first, such as days since an event"
        return "not a number; declare kind: categorical, or cast the column to a number"
    if is_label_type(kept):
        return None
    if pa.types.is_floating(kept) or pa.types.is_decimal(kept):
        return "a fractional number; declare kind: continuous, or cast the column to integer or string"
    if pa.types.is_temporal(kept):
        return "a date or time; cast it to string, or leave it out"
    return "not a string, integer or boolean; cast it to string, or leave it out"


def is_label_type(kept: pa.DataType) -> bool:
    """Whether values of this type can be categories or classes."""
    return (
        pa.types.is_string(kept)
        or pa.types.is_large_string(kept)
        or pa.types.is_integer(kept)
        or pa.types.is_boolean(kept)
    )
