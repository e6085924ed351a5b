"""A first configuration for a table, from its footers and some of its rows: proposals, each with a reason."""

import difflib
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import yaml

from ray_cfnet.errors import InputError
from ray_cfnet.tables.codec import numbers_of
from ray_cfnet.tables.drift import common_columns, conform
from ray_cfnet.tables.plan import Source, open_source, read_unit
from ray_cfnet.tables.schema import FloatArray, Grid, is_label_type, type_problem, value_type
from ray_cfnet.tables.stats import MAX_DECIMALS, decimals_of

MAX_ROWS = 200_000
_FEWEST_PARTS, _MOST_PARTS = 16, 256
"""Row groups that are looked into, spread over the table: one sorted by date is not judged by its first day."""
_MOST_CATEGORIES = 100
_FEW_INTEGERS = 5
_MOST_CLASSES = 20
_ENOUGH_FOR_A_STEP = 10
_NEARLY_ALL = 0.995

_TARGETS = (
    *("target", "label", "class", "y", "outcome", "decision", "default", "approved", "churn", "result", "diagnosis"),
    *("final_result", "cover_type", "income"),
)
_ID_WORDS = {"id", "uuid", "guid", "key"}
_FIXED_WORDS = {
    *("gender", "sex", "race", "ethnic", "ethnicity", "nationality", "religion", "disability", "ancestry", "caste"),
    *("dob", "yob"),
}
_GROWING_WORDS = {"age", "tenure", "seniority"}
_OFTEN_FIXED_WORDS = {"marital", "marriage", "country", "region"}
_LADDER_WORDS = {"education", "degree", "grade"}
_PERCENT_WORDS = {"percent", "percentage", "pct"}

Confirm = Callable[[str], bool | None]
"""Asked about each feature that looks as if a person cannot change it; whether it is so, None if nobody can say."""


def suggest_config(path: str, target: str | None, keys: list[str], confirm: Confirm) -> str:
    """A complete configuration as YAML. Raises InputError when the table gives no target or no feature."""
    source = open_source(path)
    rows = _some_rows(source)
    for name in [*([target] if target else []), *keys]:
        _check_column(name, rows, path)
    columns = {name: _Column.of(name, rows.column(name)) for name in rows.column_names}
    target_column = columns[target] if target else _likely_target(columns, keys, path)
    keys = keys or [c.name for c in columns.values() if c.is_key and c is not target_column]
    others = [c for c in columns.values() if c is not target_column and c.name not in keys]
    features = [_feature_line(column, confirm) for column in others]
    if not any(line.lstrip()[0] != "#" for line in features):
        raise InputError(f"{path}: no column can be a feature", "see ray-cfnet config schema for what columns can be")
    unusable = 1 - np.prod([1 - c.null_share for c in (*others, target_column) if c.problem is None])
    seen = f"{rows.num_rows:,} of {source.num_rows:,} rows"
    lines = [
        f"# Suggested from {seen}. Read every line: what a person can change is for a person to say.",
        "table:",
        f"  path: {_scalar(path)}",
        *_target_lines(target_column, guessed=target is None),
        *([f"  keys: [{', '.join(map(_scalar, keys))}]"] if keys else []),
        "  features:",
        *features,
        *_training_lines(float(unusable)),
        *_explain_lines(target_column),
        f"output: {{path: {_scalar('out/' + _table_name(path))}}}",
    ]
    return "\n".join(lines) + "\n"


def _table_name(path: str) -> str:
    return re.sub(r"\.[a-z]+$", "", path.rstrip("/").rpartition("/")[2]) or "table"


def _some_rows(source: Source) -> pa.Table:
    """At most MAX_ROWS rows, from row groups all over the table."""
    columns = common_columns(source)
    units = source.units(1)  # a row group each
    parts = min(max(MAX_ROWS * len(units) // source.num_rows, _FEWEST_PARTS), _MOST_PARTS)
    picked = [units[i] for i in np.unique(np.linspace(0, len(units) - 1, parts).astype(int))]
    most = MAX_ROWS // len(picked)
    batches = []
    for unit in picked:
        for _, _, batch in islice(read_unit(source.root, unit, columns.names, [], most), 1):
            batches.append(conform(batch, columns, []))
    return pa.Table.from_batches(batches)


def _check_column(name: str, rows: pa.Table, path: str) -> None:
    if name not in rows.column_names:
        near = difflib.get_close_matches(name, rows.column_names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(rows.column_names)}"
        raise InputError(f"{path}: no column {name}", hint)


@dataclass
class _Column:
    """What the rows say about one column. `problem`: why it cannot be a feature."""

    name: str
    arrow_type: pa.DataType
    num_rows: int
    null_share: float
    labels: list = field(default_factory=list)
    """Its different values, in order, unless they are too many for categories."""
    num_distinct: int = 0
    numbers: FloatArray = field(default_factory=lambda: np.empty(0))
    problem: str | None = None

    @classmethod
    def of(cls, name: str, column: pa.ChunkedArray) -> "_Column":
        kept = value_type(column.type)
        null_share = column.null_count / len(column)
        found = cls(name, kept, len(column), null_share)
        known = column.drop_null()
        if pa.types.is_dictionary(known.type):
            known = known.cast(kept)
        problems = [type_problem(kept, kind) for kind in ("continuous", "categorical")]
        if all(problems):
            found.problem = problems[1]
            return found
        found.num_distinct = pc.count_distinct(known).as_py()
        if problems[0] is None:
            numbers = numbers_of(known.combine_chunks()).astype(np.float64)
            found.numbers = numbers[np.isfinite(numbers)]
            found.num_distinct = len(np.unique(found.numbers))
            found.null_share = 1 - len(found.numbers) / len(column)
        if problems[1] is None and found.num_distinct <= _MOST_CATEGORIES:
            found.labels = sorted(pc.unique(known).to_pylist())
        if found.num_distinct < 2:
            found.problem = "constant" if found.num_distinct else "no row has a value"
        elif problems[0] is not None and not found.labels:
            found.problem = f"{found.num_distinct:,} different values; group them if it should count"
        return found

    @property
    def words(self) -> set[str]:
        """`maritalStatus`, `MARITAL_STATUS` and `marital status` are the same two words."""
        parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+", self.name)
        return {part.lower() for part in parts}

    @property
    def is_categorical(self) -> bool:
        few = pa.types.is_integer(self.arrow_type) and len(self.labels) <= _FEW_INTEGERS
        return bool(self.labels) and (few or not pa.types.is_integer(self.arrow_type))

    @property
    def is_key(self) -> bool:
        unique = self.num_distinct == self.num_rows > 1 and is_label_type(self.arrow_type)
        is_text = not pa.types.is_integer(self.arrow_type)
        return unique and (bool(self.words & _ID_WORDS) or (is_text and self.num_rows > _MOST_CATEGORIES))

    @property
    def is_classes(self) -> bool:
        return 2 <= len(self.labels) <= _MOST_CLASSES

    @property
    def is_probability(self) -> bool:
        floats = pa.types.is_floating(self.arrow_type) and len(self.numbers) > 0
        return bool(floats and self.numbers.min() >= 0 and self.numbers.max() <= 1)


def _likely_target(columns: dict[str, _Column], keys: list[str], path: str) -> _Column:
    usable = [c for c in columns.values() if c.name not in keys and c.is_classes]
    named = [c for name in _TARGETS for c in usable if c.name.lower() == name]
    last = [c for c in usable[-1:] if c.name == list(columns)[-1]]
    if not named and not last:
        raise InputError(f"{path}: no column looks like the one to predict", "pass --target NAME")
    return (named or last)[0]


def _target_lines(column: _Column, guessed: bool) -> list[str]:
    shown = ", ".join(map(str, column.labels[:5])) + (", ..." if len(column.labels) > 5 else "")
    comment = f"classes: {shown}" if column.labels else "probabilities of class 1"
    lines = [f"  target: {_scalar(column.name)}  # {_one_line(comment)}{'; a guess: check' if guessed else ''}"]
    if not column.labels and column.is_probability:
        lines.append("  target_probability: true")
    return lines


def _explain_lines(column: _Column) -> list[str]:
    if len(column.labels) <= 2:
        return ["explain: {desired: opposite}  # or the class that every row should reach"]
    wanted = column.labels[-1]
    return [f"explain: {{desired: {_scalar(wanted)}}}  # of more than two classes, the one to reach: choose it"]


def _training_lines(null_share: float) -> list[str]:
    if not null_share:
        return []
    allowed = min(0.99, math.ceil(null_share * 110) / 100)
    return [f"training: {{max_reject_fraction: {allowed:g}}}  # rows with nulls are left out"]


def _feature_line(column: _Column, confirm: Confirm) -> str:
    """A line of YAML, or a comment that says why the column is left out."""
    if column.problem:
        return f"    # {_one_line(column.name)} is left out: {column.problem}"
    rules: dict[str, str] = {"kind": "categorical" if column.is_categorical else "continuous"}
    reasons: list[str] = []
    if column.is_categorical:
        reasons.append(f"{len(column.labels)} values")
    else:
        reasons += _number_rules(column, rules)
    reasons += _change_rules(column, rules, confirm)
    if column.null_share:
        reasons.append(f"{column.null_share:.1%} null: such rows are rejected")
    written = ", ".join(f"{key}: {value}" for key, value in rules.items())
    return f"    {_scalar(column.name)}: {{{written}}}" + (f"  # {'; '.join(reasons)}" if reasons else "")


def _number_rules(column: _Column, rules: dict[str, str]) -> list[str]:
    reasons = []
    lower, upper = column.numbers.min(), column.numbers.max()
    decimals = decimals_of(column.numbers, column.arrow_type)
    step = _usual_step(column.numbers, decimals) if decimals <= MAX_DECIMALS else Grid(1, 0)
    if step.multiple > 1 and column.num_distinct >= _ENOUGH_FOR_A_STEP:
        rules["step"] = f"{step.step:.12g}"
        reasons.append(f"the values are multiples of {step.step:.12g}")
    elif decimals <= MAX_DECIMALS and not pa.types.is_integer(column.arrow_type):
        rules["decimals"] = str(decimals)
        reasons.append("decimals as in the data")
    if column.words & _PERCENT_WORDS and lower >= 0 and 1 < upper <= 100:
        rules["bounds"] = "[0, 100]"
        reasons.append("a percentage")
    elif lower >= 0:
        rules["bounds"] = "[0, null]"
        reasons.append(f"never negative, {lower:g} to {upper:g}")
    return reasons


def _usual_step(numbers: FloatArray, decimals: int) -> Grid:
    """The largest round step that nearly all values keep: one odd value should not decide for thousands."""
    positions = np.rint(numbers[numbers != 0] * 10.0**decimals)
    best = 1
    for multiple in sorted(base * 10**zeros for base in (1, 2, 5, 25) for zeros in range(7)):
        if (np.fmod(positions, multiple) == 0).mean() >= _NEARLY_ALL:
            best = multiple
    return Grid(best, decimals)


def _change_rules(column: _Column, rules: dict[str, str], confirm: Confirm) -> list[str]:
    words = column.words
    grows = bool(words & _GROWING_WORDS)
    born = any("birth" in word for word in words)
    if born or words & _FIXED_WORDS or (grows and column.is_categorical):
        if confirm(column.name) is False:
            return []
        rules["immutable"] = "true"
        return ["a person cannot change this: check"]
    if grows:
        if confirm(column.name):
            rules["immutable"] = "true"
            return ["a person cannot change this: check"]
        rules["direction"] = "increase"
        return ["only grows: check, or immutable: true"]
    if words & _OFTEN_FIXED_WORDS:
        return ["often held fixed: consider immutable: true"]
    if words & _LADDER_WORDS and column.is_categorical:
        return ["if it only rises: add order: [low, ..., high] and direction: increase"]
    return []


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _scalar(value: object) -> str:
    """A value as YAML reads it back: plain where that is safe, quoted otherwise."""
    text = str(value)
    if isinstance(value, str) and (not re.fullmatch(r"[\w./-][\w ./-]*(?<! )", text) or yaml.safe_load(text) != text):
        return json.dumps(text, ensure_ascii=False)
    return json.dumps(value) if isinstance(value, bool) else text
