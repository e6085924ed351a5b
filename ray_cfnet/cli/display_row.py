"""One explained row, for a person who talks to another about it."""

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

_WIDE_ENOUGH = 80


def show_row(console: Console, row: dict[str, Any]) -> None:
    """What was predicted, the sentence, and feature by feature what is and what would have to be."""
    key = ", ".join(f"{name} {value}" for name, value in row["key"].items())
    _say(console, f"{key}  ({row['partition'] or 'whole table'})")
    if row["rejected"]:
        _say(console, f"not explained: {row['reject_reason']} in {row['reject_column']}")
    else:
        target = f"{row['target']} " if row["target"] else ""
        _say(console, f"predicted: {target}{row['pred_label']} ({row['pred_proba']:.0%})")
        if row.get("explanation"):
            _say(console, row["explanation"])
    console.print()
    if console.width >= _WIDE_ENOUGH:
        console.print(_side_by_side(row))
    else:
        _one_below_the_other(console, row)
    console.print()
    for line in _closing(row):
        _say(console, line)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False)


def _side_by_side(row: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    explained = not row["rejected"]
    table.add_column("")
    table.add_column("feature", overflow="fold")
    for name in ("now", *(("change to", "generated cf") if explained else ())):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("rule", overflow="fold")
    for feature in row["features"]:
        changed = feature.get("changed", feature["feature"] == row.get("reject_column"))
        now, *to = (_value(feature[name], feature["kind"]) for name in ("now", *(("fcf", "cf") if explained else ())))
        if to and not changed:
            to[0] = ""
        cells = [feature["feature"], now, *to, feature["rule"] or ""]
        table.add_row("*" if changed else "", *map(escape, cells), style="bold" if changed else None)
    return table


def _one_below_the_other(console: Console, row: dict[str, Any]) -> None:
    for feature in row["features"]:
        changed = feature.get("changed", feature["feature"] == row.get("reject_column"))
        to = f" -> {_value(feature['fcf'], feature['kind'])}" if feature.get("changed") else ""
        _say(console, f"{'*' if changed else ' '} {feature['feature']}: {_value(feature['now'], feature['kind'])}{to}")
        if changed and feature["rule"]:
            _say(console, f"    rule: {feature['rule']}")


def _closing(row: dict[str, Any]) -> list[str]:
    lines = [f"no rules shown: {row['rules_problem']}"] if row["rules_problem"] else []
    if row["rules"]:
        lines.append(f"between features: {'; '.join(row['rules'])}")
    if not row["rejected"]:
        lines += _other_ways(row)
        if row["cf_proba"] is not None:  # of rows that were not selected nothing but the prediction is known
            way = "" if row["fcf_proba"] is None else f"{row['fcf_proba']:.0%} after the changes, "
            lines.append(f"probability of the desired class: {way}{row['cf_proba']:.0%} at the generated cf")
        lines.append(f"row_status {row['row_status']}, model {row['model_id']}, run {row['run_id']}")
    if row["also_in"]:
        lines.append(f"also in {', '.join(row['also_in'])} (--partition shows it)")
    return lines


def _other_ways(row: dict[str, Any]) -> list[str]:
    features = {feature["feature"]: feature for feature in row["features"]}
    lines = []
    for way in row["options"]:
        changes = []
        for name, to in way["changes"].items():
            kind = features[name]["kind"]
            changes.append(f"{name} {_value(features[name]['now'], kind)} -> {_value(to, kind)}")
        lines.append(f"or: {', '.join(changes)} ({way['proba']:.0%} then)")
    return lines


def _value(value: Any, kind: str | None) -> str:
    """Thousands are set apart in numbers, not in codes: 94103 may be a place."""
    if value is None:
        return "-"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if is_number and kind != "categorical" else str(value)
