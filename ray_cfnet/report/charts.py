"""Charts as SVG that stands in the page: Vega-Lite, drawn here by vl-convert, which needs no network and no browser.

Colours are names of the page's CSS variables, so one drawing serves light, dark and paper. Every mark carries a
description in words, for screen readers and for the page's tooltips. Data fields have fixed names: a column's
name is never part of a specification, only a value in it, which Vega escapes.
"""

import json
from typing import Any

from ray_cfnet.errors import InputError

Rows = list[dict[str, Any]]

_WIDTH = 420
_SMALL_WIDTH = 270
_ROW = 26
_CONFIG = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 13,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titlePadding": 10,  # the browser's letters may be wider than those measured here
        "labelLimit": 150,
    },
    "legend": {
        "labelColor": "var(--muted)",
        "labelFontSize": 13,
        "title": None,
        "orient": "top",
        "symbolType": "square",
    },
    "text": {"color": "var(--ink)", "fontSize": 13},
}
_DESCRIPTION = {"field": "said", "type": "nominal"}


def histogram(rows: Rows, x_title: str) -> str:
    """Columns over `start` to `end`, as high as `share`; each row has what to say about it in `said`."""
    return _svg(
        rows,
        {
            "height": 190,
            "mark": {"type": "bar", "color": "var(--accent)", "binSpacing": 1},
            "encoding": {
                "x": {
                    "field": "start",
                    "type": "quantitative",
                    "bin": {"binned": True},
                    "title": x_title,
                    "axis": {"grid": False, "tickCount": 5, "labelFlush": False, "labelOverlap": "greedy"},
                },
                "x2": {"field": "end"},
                "y": _share_axis("ways"),
                "description": _DESCRIPTION,
            },
        },
    )


def columns(rows: Rows, x_title: str) -> str:
    """A column for each whole number `name`, as high as `share`; numbers in between without a row keep their place."""
    names = [row["name"] for row in rows]
    encoding = {
        "x": {
            "field": "name",
            "type": "ordinal",
            "scale": {"domain": list(range(min(names), max(names) + 1))},
            "title": x_title,
            "axis": {"labelAngle": 0},
        },
        "y": _share_axis("ways"),
        "description": _DESCRIPTION,
    }
    bar = {"type": "bar", "color": "var(--accent)"}
    return _svg(rows, {"height": 190, "mark": bar, "encoding": encoding})


def bars(rows: Rows, number_format: str, reference: float | None = None, width: int = _WIDTH) -> str:
    """A bar for each `name`, as long as `value` and labelled with it; `reference`: a line across all of them."""
    y = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"ticks": False, "domain": False}}
    x = {"field": "value", "type": "quantitative", "axis": None, "scale": {"zero": True, "nice": False}}
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "bar", "color": "var(--accent)", "height": {"band": 0.72}},
            "encoding": {"y": y, "x": x, "description": _DESCRIPTION},
        },
        {
            "mark": {"type": "text", "align": "left", "dx": 5, "aria": False},
            "encoding": {"y": y, "x": x, "text": {"field": "value", "type": "quantitative", "format": number_format}},
        },
    ]
    if reference is not None:
        rule = {"type": "rule", "color": "var(--warn)", "strokeDash": [4, 3], "size": 1.5}
        layers.insert(
            0,
            {
                "mark": {**rule, "aria": False},
                "encoding": {"x": {"datum": reference, "type": "quantitative", "axis": None}},
            },
        )
    return _svg(rows, {"height": _ROW * max(len({row["name"] for row in rows}), 1), "layer": layers}, width)


def paired_bars(rows: Rows) -> str:
    """Two bars for each `name`, told apart by `group`: now and before."""
    encoding = {
        "y": {"field": "name", "type": "nominal", "sort": None, "title": None},
        "yOffset": {"field": "group", "sort": ["this run", "before"]},
        "x": {"field": "value", "type": "quantitative", "title": None, "axis": {"format": ".0%", "tickCount": 5}},
        "color": {
            "field": "group",
            "type": "nominal",
            "scale": {"domain": ["this run", "before"], "range": ["var(--accent)", "var(--faint)"]},
        },
        "description": _DESCRIPTION,
    }
    height = _ROW * 1.2 * len({row["name"] for row in rows})
    return _svg(rows, {"height": height, "mark": {"type": "bar"}, "encoding": encoding})


def history(rows: Rows, number_format: str, usual: tuple[float, float] | None) -> str:
    """A line of `value` over the runs `number`, the last one marked, over a band of what is usual."""
    values = [row["value"] for row in rows]
    low, high = min([*values, *(usual or ())]), max([*values, *(usual or ())])
    margin = (high - low) * 0.1 or abs(high) * 0.05 or 0.01
    y = {
        "field": "value",
        "type": "quantitative",
        "title": None,
        "scale": {"domain": [low - margin, high + margin], "nice": False},
        "axis": {"format": number_format, "tickCount": 4},
    }
    x = {"field": "number", "type": "ordinal", "title": None, "axis": None}
    line = {"x": x, "y": y}
    band = {"type": "rect", "color": "var(--faint)", "opacity": 0.35, "aria": False}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "line", "color": "var(--accent)", "strokeWidth": 2, "aria": False}, "encoding": line},
        {
            "mark": {"type": "point", "filled": True, "opacity": 1},
            "encoding": {
                **line,
                "size": {"condition": {"test": "datum.is_now", "value": 110}, "value": 40},
                "color": {"condition": {"test": "datum.is_now", "value": "var(--warn)"}, "value": "var(--accent)"},
                "description": _DESCRIPTION,
            },
        },
    ]
    if usual is not None:
        layers.insert(
            0,
            {
                "mark": band,
                "encoding": {"y": {**y, "field": "from"}, "y2": {"field": "to"}},
                "data": {"values": [{"from": usual[0], "to": usual[1]}]},
            },
        )
    return _svg(rows, {"height": 110, "layer": layers}, _SMALL_WIDTH)


def calibration(rows: Rows) -> str:
    """What the model said (`said_share`) against what was true (`was`), over the line of perfect agreement."""
    axis = {"format": ".0%", "tickCount": 5}
    ends = [min([0.5, *(min(row["said_share"], row["was"]) for row in rows)]), 1.0]
    scale = {"domain": ends, "nice": False}
    x = {
        "field": "said_share",
        "type": "quantitative",
        "title": "the model's probability",
        "axis": axis,
        "scale": scale,
    }
    y = {"field": "was", "type": "quantitative", "title": "share that was right", "axis": axis, "scale": scale}
    diagonal = {"values": [{"said_share": end, "was": end} for end in ends]}
    layers = [
        {
            "data": diagonal,
            "mark": {"type": "line", "color": "var(--faint)", "strokeDash": [4, 3], "aria": False},
            "encoding": {"x": x, "y": y},
        },
        {"mark": {"type": "line", "color": "var(--accent)", "aria": False}, "encoding": {"x": x, "y": y}},
        {
            "mark": {"type": "point", "filled": True, "opacity": 1, "size": 60, "color": "var(--accent)"},
            "encoding": {"x": x, "y": y, "description": _DESCRIPTION},
        },
    ]
    return _svg(rows, {"height": 220, "layer": layers})


def _share_axis(of_what: str) -> dict[str, Any]:
    title = f"share of {of_what}"
    return {"field": "share", "type": "quantitative", "title": title, "axis": {"format": ".0%", "tickCount": 4}}


def _svg(rows: Rows, specification: dict[str, Any], width: int = _WIDTH) -> str:
    try:
        import vl_convert
    except ImportError:
        raise InputError("reports need the package vl-convert-python", "pip install 'ray-cfnet[report]'") from None
    whole = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "width": width,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "config": _CONFIG,
        **specification,
    }
    return str(vl_convert.vegalite_to_svg(json.dumps(whole, allow_nan=False)))
