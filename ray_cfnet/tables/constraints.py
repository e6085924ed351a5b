"""What a person can change: exact, in raw units, on the values that are written.

A rule is about one row x and a candidate x': the projection moves x' to the nearest values the rules
allow, and x itself is always allowed. Rules between features come after those of each feature (relations.py).

Changes are measured as they are written: from 0.7 to 0.8 is 0.1, although the doubles differ by a little more. So
max_change and tolerance give way by the rounding of the column's type, and by nothing else.
"""

from functools import lru_cache

import numpy as np

from ray_cfnet.tables.codec import CodeArray, Encoded, Mask, fitting
from ray_cfnet.tables.reach import nearest_in, reach, rounding
from ray_cfnet.tables.relations import keep_relations
from ray_cfnet.tables.schema import Categorical, Continuous, FloatArray, TableSchema, permitted_changes


def project(
    rows: Encoded,
    candidates: Encoded,
    schema: TableSchema,
    out: Encoded | None = None,
    frozen: Mask | None = None,
) -> Encoded:
    """The feasible candidates: each feature moved no further than its rules ask. Idempotent.

    They are written to `out` if it is given. Features marked in `frozen` (N, F: numbers first, then categories), which
    candidates have as in the rows, stay so.
    """
    projected = Encoded.like(candidates) if out is None else out
    for column, number in enumerate(schema.continuous):
        projected.values[:, column] = project_number(rows.values[:, column], candidates.values[:, column], number)
    for column, category in enumerate(schema.categorical):
        projected.codes[:, column] = _project_category(rows.codes[:, column], candidates.codes[:, column], category)
    if schema.rules:
        keep_relations(rows, projected, schema, frozen)
    return projected


def project_number(x: FloatArray, candidate: FloatArray, feature: Continuous) -> FloatArray:
    """The values nearest to the candidates that the feature's own rules allow."""
    if feature.immutable:
        return x
    if feature.allowed is not None or feature.is_limited:
        return _project_limited(x, candidate, feature)
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


def _project_limited(x: FloatArray, candidate: FloatArray, feature: Continuous) -> FloatArray:
    """The same where each row has a range of its own, or values are listed."""
    allowed = nearest_in(candidate, feature, *reach(x, feature))
    stays = np.isnan(allowed) | (np.abs(candidate - x) <= np.abs(candidate - allowed))
    if feature.tolerance:
        stays |= np.abs(allowed - x) < feature.tolerance - rounding(x, feature.tolerance, feature)
    return np.where(stays, x, allowed)


def _project_category(x: CodeArray, candidate: CodeArray, feature: Categorical) -> CodeArray:
    if feature.immutable:
        return x
    if feature.allowed is not None or feature.forbidden:
        return _projected_codes(feature)[x, candidate]
    if feature.direction == "increase":
        return np.maximum(x, candidate)
    if feature.direction == "decrease":
        return np.minimum(x, candidate)
    return candidate


@lru_cache
def _projected_codes(feature: Categorical) -> CodeArray:
    """(K, K): what code j becomes in a row with code i.

    What is not permitted stays i; with an order it becomes the permitted code between the two that is nearest to j.
    """
    permitted = permitted_changes(feature)
    row, candidate = np.indices(permitted.shape)
    if not feature.ordered:
        return np.where(permitted, candidate, row)
    size = len(permitted)
    up = np.maximum.accumulate(np.where(permitted & (candidate >= row), candidate, -1), axis=1)
    down = np.where(permitted & (candidate <= row), candidate, size)
    down = np.minimum.accumulate(down[:, ::-1], axis=1)[:, ::-1]
    return np.where(candidate >= row, up, down)


def violations(rows: Encoded, candidates: Encoded, schema: TableSchema) -> Mask:
    """Rows whose candidate breaks a declared rule: an audit that shares no code with `project`."""
    broken = np.zeros(len(rows), dtype=bool)
    moved_by_name: dict[str, Mask] = {}
    for column, number in enumerate(schema.continuous):
        x, candidate = rows.values[:, column], candidates.values[:, column]
        moved = moved_by_name[number.name] = candidate != x
        if number.immutable:
            broken |= moved
        if number.direction != "any":
            broken |= (candidate < x) if number.direction == "increase" else (candidate > x)
        lower, upper = number.bounds
        if lower is not None:
            broken |= moved & (candidate < lower)
        if upper is not None:
            broken |= moved & (candidate > upper)
        if number.allowed is not None:
            broken |= moved & ~np.isin(candidate, number.allowed)
        elif number.grid is not None:
            broken |= moved & (number.typed(number.grid.snap(candidate)) != candidate)
        if number.is_limited:
            broken |= moved & _wrong_size(x, candidate, number)
    for column, category in enumerate(schema.categorical):
        x_code, code = rows.codes[:, column], candidates.codes[:, column]
        moved = moved_by_name[category.name] = code != x_code
        if category.immutable:
            broken |= moved
        if category.direction != "any":
            broken |= (code < x_code) if category.direction == "increase" else (code > x_code)
        if category.allowed is not None:
            for unwanted, label in enumerate(category.categories):
                if label not in category.allowed:
                    broken |= moved & (code == unwanted)
        for start, end in category.forbidden:
            broken |= (x_code == category.categories.index(start)) & (code == category.categories.index(end))
    numbers = {number.name: candidates.values[:, column] for column, number in enumerate(schema.continuous)}
    for rule in schema.rules:
        if rule.kind == "at_most":
            broken |= numbers[rule.first] > numbers[rule.second]
        else:
            broken |= moved_by_name[rule.first] & ~moved_by_name[rule.second]
    return broken


def _wrong_size(x: FloatArray, candidate: FloatArray, number: Continuous) -> Mask:
    change = np.abs(candidate - x)
    rounded = 4 * number.epsilon * (np.abs(x) + np.abs(candidate))
    wrong = change < number.tolerance - rounded
    if number.max_change is not None:
        wrong |= change > number.max_change + rounded
    if number.max_change_percent is not None:
        wrong |= change > number.max_change_percent / 100 * np.abs(x) + rounded
    return wrong
