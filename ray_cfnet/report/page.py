"""The page: a run's figures and charts in one HTML file that needs nothing else."""

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from ray_cfnet.cluster.manifest import find_run, list_runs
from ray_cfnet.errors import InputError
from ray_cfnet.explain.columns import options_in
from ray_cfnet.report import drift, figures
from ray_cfnet.report.drawings import drawn_charts, slowest
from ray_cfnet.report.rows import RunRows, open_rows
from ray_cfnet.report.wording import counted, day, number, percent, seconds, value
from ray_cfnet.tables.storage import Location

REPORTS = "_reports"


def write_report(
    output: str,
    run_id: str | None = None,
    to: str | None = None,
    segments: list[str] | None = None,
    num_samples: int = 20,
) -> str:
    """Writes the report of a run, the last finished one by default, and returns where it stands.

    `run_id` may be the first characters of one; `to` is a file, OUTPUT/_reports/<run_id>.html by default; `segments`
    are columns to compare groups by, chosen from the categorical features by default. Raises InputError when there
    is no such run or column.
    """
    place = Location.of(output)
    runs = list_runs(place)
    run = find_run(place, run_id) if run_id else ([one for one in runs if "finished_at" in one] or runs)[-1]
    if "finished_at" not in run:
        raise InputError(
            f"{place}: run {run['run_id']} is not finished", "explain with the same settings goes on with it"
        )
    with open_rows(place, run) as rows:
        unknown = [name for name in segments or () if rows.columns and name not in rows.columns]
        if unknown:
            raise InputError(
                f"{place}: no column {', '.join(unknown)} to compare by", f"one of {', '.join(rows.columns)}"
            )
        page = render(run, drift.compare(runs, run), _asked(rows, segments or [], num_samples))
    target = Location.of(to) if to else place / REPORTS / f"{run['run_id']}.html"
    target.write_bytes(page.encode())
    return str(target)


def _asked(rows: RunRows, segments: list[str], num_samples: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"missing": rows.files_missing, "rejects": figures.reject_figures(rows), "has_rows": False}
    if not rows.columns:
        return asked
    return asked | {
        "has_rows": True,
        "num_features": len(rows.features),
        "num_options": len(options_in(list(rows.columns))),
        "ways": figures.distance_figures(rows),
        "features": figures.feature_figures(rows),
        "segments": figures.segment_figures(rows, segments),
        "quality": figures.quality_figures(rows),
        "samples": figures.sample_figures(rows, num_samples),
    }


def render(run: dict[str, Any], compared: dict[str, Any], asked: dict[str, Any]) -> str:
    """The page of a manifest, its comparison and its figures."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"num": number, "pct": percent, "secs": seconds, "value": value, "day": day, "of": counted}
    script, style = _file("page.js"), _file("page.css")
    template = environment.from_string(_file("page.html"))
    return template.render(
        run=run,
        drift=compared,
        asked=asked,
        charts=drawn_charts(run, compared, asked),
        slowest=slowest(run),
        script=Markup(script),  # noqa: S704 - our own file
        style=Markup(style),  # noqa: S704
        # Only our script may run: a value that slipped through the escaping still could not.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _file(name: str) -> str:
    return (files("ray_cfnet.report") / name).read_text(encoding="utf-8")
