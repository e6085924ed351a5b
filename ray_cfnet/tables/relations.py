"""Rules between features: what one of them asks of another is repaired after each has been projected on its own.

Repairs of one rule can break another, so they are repeated; rows that never come to rest go back to what they were,
with all features that rules tie together. A row itself keeps every rule (others are rejects), so that always helps.
"""

import numpy as np
import numpy.typing as npt

from ray_cfnet.config.ruletext import Relation
from ray_cfnet.tables.codec import Encoded, Mask
from ray_cfnet.tables.reach import within_limit
from ray_cfnet.tables.schema import TableSchema

_PASSES = 4


def linked_groups(schema: TableSchema) -> list[list[int]]:
    """Features that rules tie together, directly or through others: their changes go back together or not at all.

    A feature is given by its position in encoded rows: numbers first, then categories.
    """
    groups: list[set[int]] = []
    for rule in schema.rules:
        pair = {schema.position(rule.first), schema.position(rule.second)}
        tied = [group for group in groups if group & pair]
        groups = [group for group in groups if not group & pair] + [pair.union(*tied)]
    return sorted(sorted(group) for group in groups)


def keep_relations(rows: Encoded, projected: Encoded, schema: TableSchema, frozen: Mask | None = None) -> None:
    """Changes candidates, each projected on its own, until they keep the rules between features.

    `frozen` (N, F) marks what must not move: it is as in the rows already.
    """
    for _ in range(_PASSES):
        repaired = [_repaired(rows, projected, schema, rule, frozen) for rule in schema.rules]
        if not any(repaired):
            return
    for group in linked_groups(schema):
        own = [rule for rule in schema.rules if schema.position(rule.first) in group]
        unsettled = np.logical_or.reduce([broken(rows, projected, schema, rule) for rule in own])
        for position in group:
            _take_back(rows, projected, position, unsettled)


def _take_back(rows: Encoded, projected: Encoded, position: int, some: Mask) -> None:
    np.copyto(projected.column(position), rows.column(position), where=some)


def broken(rows: Encoded, projected: Encoded, schema: TableSchema, rule: Relation) -> Mask:
    """(N,) the candidates that break a rule."""
    first, second = schema.position(rule.first), schema.position(rule.second)
    if rule.kind == "at_most":
        return projected.column(first) > projected.column(second)
    changed, other = (projected.column(position) != rows.column(position) for position in (first, second))
    return changed & ~other


def _repaired(rows: Encoded, projected: Encoded, schema: TableSchema, rule: Relation, frozen: Mask | None) -> bool:
    """Repairs one rule where it is broken; whether there was anything to do."""
    wrong = broken(rows, projected, schema, rule)
    if not wrong.any():
        return False
    if rule.kind == "needs":
        _take_back(rows, projected, schema.position(rule.first), wrong)
    else:
        _bring_into_order(rows, projected, schema, rule, np.flatnonzero(wrong), frozen)
    return True


def _bring_into_order(
    rows: Encoded,
    projected: Encoded,
    schema: TableSchema,
    rule: Relation,
    some: npt.NDArray[np.intp],
    frozen: Mask | None,
) -> None:
    """Of these rows, the first feature goes down or the second one up: what is the smaller part of its range."""
    first, second = schema.position(rule.first), schema.position(rule.second)
    low, high = schema.continuous[first], schema.continuous[second]
    now_low, now_high = projected.values[some, first], projected.values[some, second]
    down = within_limit(rows.values[some, first], now_high, low, below=True)
    up = within_limit(rows.values[some, second], now_low, high, below=False)
    cost_down = np.nan_to_num((now_low - down) / low.span, nan=np.inf)
    cost_up = np.nan_to_num((up - now_high) / high.span, nan=np.inf)
    if frozen is not None:
        cost_down[frozen[some, first]] = cost_up[frozen[some, second]] = np.inf
    lowered = np.isfinite(cost_down) & (cost_down <= cost_up)
    raised = np.isfinite(cost_up) & ~lowered
    stuck = ~lowered & ~raised
    projected.values[some[lowered], first] = down[lowered]
    projected.values[some[raised], second] = up[raised]
    for position in (first, second):
        projected.values[some[stuck], position] = rows.values[some[stuck], position]
