"""Which charts a report has, from its figures."""

from typing import Any

from markupsafe import Markup

from ray_cfnet.report import charts
from ray_cfnet.report.wording import counted, day, figure, number, seconds

_SLOWEST = 10
_MOST_CHANGED = 12


def slowest(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The partitions that took most work."""
    parts = [
        {
            "name": name or "(whole table)",
            "seconds": part["seconds_in_actors"],
            "num_rows": part["rows_in"],
            "state": part["state"],
            "rows_per_s": part["rows_in"] / part["seconds_in_actors"] if part["seconds_in_actors"] else None,
        }
        for name, part in run["partitions"].items()
    ]
    return sorted(parts, key=lambda part: -part["seconds"])[:_SLOWEST]


def drawn_charts(run: dict[str, Any], compared: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """All charts of the page, by name. SVG by Vega, which escapes every value."""
    drawn: dict[str, Any] = {"history": {check["name"]: _history(check, compared) for check in compared["checks"]}}
    mix = compared["checks"][-1]["features"]
    if mix:
        drawn["mix"] = charts.paired_bars(
            [
                {
                    "name": one["name"],
                    "group": group,
                    "value": one[key],
                    "said": f"{one['name']}, {group}: {one[key]:.1%}",
                }
                for one in mix
                for group, key in (("this run", "now"), ("before", "before"))
            ]
        )
    if len(run["partitions"]) > 1:
        drawn["slowest"] = charts.bars(
            [
                {
                    "name": part["name"],
                    "value": part["seconds"],
                    "said": f"{part['name']}: {seconds(part['seconds'])} for {number(part['num_rows'])} rows",
                }
                for part in slowest(run)
            ],
            ",.1f",
        )
    if asked["has_rows"]:
        drawn |= _drawn_of_rows(asked)
    return _as_markup(drawn)


def _drawn_of_rows(asked: dict[str, Any]) -> dict[str, Any]:
    drawn: dict[str, Any] = {}
    ways = asked["ways"]
    if ways["ways"]:
        drawn["changes"] = charts.columns(
            [
                {
                    "name": one["changes"],
                    "share": one["num_rows"] / ways["ways"],
                    "said": f"{counted(one['changes'], 'change')}: {number(one['num_rows'])} rows",
                }
                for one in ways["changes"]
            ],
            "features changed",
        )
        drawn["distances"] = charts.histogram(
            [
                {
                    "start": one["start"],
                    "end": one["start"] + ways["width"],
                    "share": one["num_rows"] / ways["ways"],
                    "said": f"distance {one['start']:.3g}"
                    + (f" to {one['end']:.3g}" if one["end"] else " and more")
                    + f": {number(one['num_rows'])} rows",
                }
                for one in ways["distances"]
            ],
            "distance (the last bar: and more)" if ways["distances"][-1]["end"] is None else "distance",
        )
    if asked["features"]:
        drawn["features"] = charts.bars(
            [
                {"name": one["name"], "value": one["share"], "said": f"{one['name']}: {one['share']:.1%} of the ways"}
                for one in asked["features"][:_MOST_CHANGED]
            ],
            ".0%",
        )
    drawn["segments"] = [_segment(segment, ways["mean_distance"]) for segment in asked["segments"]]
    if asked["quality"]:
        drawn["calibration"] = charts.calibration(
            [
                {
                    "said_share": one["said"],
                    "was": one["was"],
                    "said": f"said {one['said']:.0%}, right {one['was']:.1%} of {number(one['num_rows'])} rows",
                }
                for one in asked["quality"]["calibration"]
            ]
        )
    return drawn


def _segment(segment: dict[str, Any], mean: float | None) -> str | None:
    told = sorted((group for group in segment["groups"] if group["ways"]), key=lambda group: -group["mean_distance"])
    if not told:
        return None
    rows = [
        {
            "name": group["name"],
            "value": group["mean_distance"],
            "said": f"{group['name']}: mean distance {group['mean_distance']:.3g} over {number(group['ways'])} ways",
        }
        for group in told
    ]
    return charts.bars(rows, ".3", mean)


def _history(check: dict[str, Any], compared: dict[str, Any]) -> str | None:
    if check["name"] == "mix":
        return None
    rows = [
        {
            "number": position,
            "value": one[check["name"]],
            "is_now": position == len(compared["history"]) - 1,
            "said": f"{day(one['finished_at'])}: {figure(check['name'], one[check['name']])}",
        }
        for position, one in enumerate(compared["history"])
        if one[check["name"]] is not None
    ]
    if len(rows) < 2:
        return None
    is_share, usual = check["name"] != "distance", None
    if check["limit"] is not None:
        usual = (max(0.0, check["before"] - check["limit"]), check["before"] + check["limit"])
        usual = (usual[0], min(1.0, usual[1])) if is_share else usual
    return charts.history(rows, ".1%" if is_share else "~g", usual)


def _as_markup(drawn: Any) -> Any:
    if isinstance(drawn, dict):
        return {name: _as_markup(one) for name, one in drawn.items()}
    if isinstance(drawn, list):
        return [_as_markup(one) for one in drawn]
    return None if drawn is None else Markup(drawn)  # noqa: S704 - SVG by Vega
