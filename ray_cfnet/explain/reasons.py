"""An explained row in words."""

from collections.abc import Iterator
from typing import Any

from ray_cfnet.tables.schema import Continuous, TableSchema

_CHANGES_SAID = 4


def sentence(row: dict[str, Any], schema: TableSchema, desired: Any) -> str:
    """One explained row (a dict of the output's columns) as a sentence a person can act on."""
    target = schema.target.name
    who = ", ".join(f"{key} {row[key]}" for key in schema.keys if key in row) or "This row"
    opening = f"{who}: predicted {target} is {row['pred_label']} ({row['pred_proba']:.0%})."
    if row["row_status"] == "already_desired":
        return f"{opening} That is the desired class already."
    if row["row_status"] == "no_feasible_cf":
        return f"{opening} No change within the rules was found that leads to {desired}."
    changes = sorted(_changes(row, schema), reverse=True)
    said = [words for _, words in changes[:_CHANGES_SAID]]
    if len(changes) > _CHANGES_SAID:
        said.append(f"{len(changes) - _CHANGES_SAID} smaller changes")
    return f"{opening} To get {desired} ({row['fcf_proba']:.0%}): {_listed(said)}."


def _changes(row: dict[str, Any], schema: TableSchema) -> Iterator[tuple[float, str]]:
    """(share of the feature's range, words) of each change; another category counts as the whole range."""
    for feature in schema.features:
        old, new = row[feature.name], row[f"fcf_{feature.name}"]
        if old == new:
            continue
        size, verb = 1.0, "change"
        if isinstance(feature, Continuous):
            size, verb = abs(float(new) - float(old)) / feature.span, "raise" if new > old else "lower"
        yield size, f"{verb} {feature.name} from {_value(old)} to {_value(new)}"


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
