"""What a person can change: exact, in raw units, on the values that are written.

A rule is about one row x and a candidate x': the projection moves x' to the nearest values the rules
allow, and x itself is always allowed.
"""

import numpy as np

from ray_cfnet.tables.codec import CodeArray, Encoded, Mask, fitting
from ray_cfnet.tables.schema import Categorical, Continuous, FloatArray, TableSchema


def project(rows: Encoded, candidates: Encoded, schema: TableSchema, out: Encoded | None = None) -> Encoded:
    """The feasible candidates: each feature moved no further than its rules ask. Idempotent.

    They are written to `out` if it is given.
    """
    projected = Encoded.like(candidates) if out is None else out
    for column, number in enumerate(schema.continuous):
        projected.values[:, column] = project_number(rows.values[:, column], candidates.values[:, column], number)
    for column, category in enumerate(schema.categorical):
        projected.codes[:, column] = _project_category(rows.codes[:, column], candidates.codes[:, column], category)
    return projected


def project_number(x: FloatArray, candidate: FloatArray, feature: Continuous) -> FloatArray:
    if feature.immutable:
        return x
    lowest = -np.inf if feature.bounds[0] is None else feature.bounds[0]
    highest = np.inf if feature.bounds[1] is None else feature.bounds[1]
    allowed = fitting(candidate, feature, lowest, highest)
    if allowed is None:
        return x
    # x may lie off the grid; where it is as near as the grid value, nothing has to change.
    allowed = np.where(np.abs(candidate - x) <= np.abs(candidate - allowed), x, allowed)
    if feature.direction == "increase":
        return np.maximum(x, allowed)
    if feature.direction == "decrease":
        return np.minimum(x, allowed)
    return allowed


def _project_category(x: CodeArray, candidate: CodeArray, feature: Categorical) -> CodeArray:
    if feature.immutable:
        return x
    if feature.direction == "increase":
        return np.maximum(x, candidate)
    if feature.direction == "decrease":
        return np.minimum(x, candidate)
    return candidate


def violations(rows: Encoded, candidates: Encoded, schema: TableSchema) -> Mask:
    """Rows whose candidate breaks a declared rule: an audit that shares no code with `project`."""
    broken = np.zeros(len(rows), dtype=bool)
    for column, number in enumerate(schema.continuous):
        x, candidate = rows.values[:, column], candidates.values[:, column]
        moved = candidate != x
        if number.immutable:
            broken |= moved
        if number.direction != "any":
            broken |= (candidate < x) if number.direction == "increase" else (candidate > x)
        lower, upper = number.bounds
        if lower is not None:
            broken |= moved & (candidate < lower)
        if upper is not None:
            broken |= moved & (candidate > upper)
        if number.grid is not None:
            broken |= moved & (number.typed(number.grid.snap(candidate)) != candidate)
    for column, category in enumerate(schema.categorical):
        x_code, code = rows.codes[:, column], candidates.codes[:, column]
        if category.immutable:
            broken |= code != x_code
        if category.direction != "any":
            broken |= (code < x_code) if category.direction == "increase" else (code > x_code)
    return broken


def rule_text(feature: Continuous | Categorical) -> str:
    """The rules of a feature in a few words: `only up, 0.., step 100`; empty where all is allowed."""
    if feature.immutable:
        return "immutable"
    said = [{"any": "", "increase": "only up", "decrease": "only down"}[feature.direction]]
    if isinstance(feature, Continuous):
        lower, upper = ("" if end is None else f"{end:,.12g}" for end in feature.bounds)
        said.append(f"{lower}..{upper}" if lower or upper else "")
        grid = feature.grid
        said.append(f"step {grid.multiple / 10**grid.decimals:,.12g}" if grid else "")
    elif feature.ordered:
        said.append(" < ".join(map(str, feature.categories)))
    return ", ".join(filter(None, said))
