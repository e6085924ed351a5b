"""What the commands share: their options, how a configuration is loaded, how progress and results are shown."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.logs import LoggedProgress, is_json

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="the YAML file", metavar="FILE")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", help="override one key, e.g. --set training.epochs=30; repeatable", metavar="KEY=VALUE"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]
BundlePath = Annotated[
    str | None,
    typer.Option(
        "--bundle",
        "-b",
        help="the directory that train printed, or a model store for its promoted bundle; default: OUTPUT/_models",
        metavar="PATH",
    ),
]
InputPath = Annotated[str | None, typer.Option("--input", "-i", help="instead of table.path", metavar="PATH")]
OutputPath = Annotated[str | None, typer.Option("--output", "-o", help="instead of output.path", metavar="PATH")]

_machine_output: Any = sys.stdout


def load(file: Path, overrides: list[str] | None, input_path: str | None = None, output: str | None = None) -> Config:
    """The configuration with the command line's changes. Raises ConfigError."""
    paths = [("table.path", input_path), ("output.path", output)]
    # As JSON: a path such as 2026 or "a: b" must stay a string when read as YAML.
    given = [f"{key}={json.dumps(value)}" for key, value in paths if value is not None]
    if input_path is not None:
        given.append("table.sample=null")  # a table named by hand is never made up
    return load_config(file, [*(overrides or []), *given])


def progress_display() -> Any:
    """For a person, or for a log system."""
    if is_json():
        return LoggedProgress()
    from ray_cfnet.cli.progress import ProgressDisplay

    return ProgressDisplay(Console(stderr=True, markup=False))


def unit_counter(progress: Any) -> Callable[[Any, int, bool], None]:
    """Shows finished units as rows, and says when a run goes on where another stopped."""
    counts = {"units": 0, "fresh": 0, "rows": 0, "rejected": 0}
    progress.expect_units()

    def on_unit(record: Any, total: int, fresh: bool) -> None:
        if fresh and counts["units"] and not counts["fresh"]:
            progress.say(f"going on: {counts['units']} of {total} units were done by an earlier attempt")
        counts["fresh"] += fresh
        counts["units"] += 1
        counts["rows"] += record.rows_in
        counts["rejected"] += record.rows_rejected
        if fresh:
            progress.unit(counts["units"], total, counts["rows"], counts["rejected"])

    return on_unit


def finish(result: dict[str, Any], as_json: bool, show: Callable[[Console, dict[str, Any]], None]) -> None:
    """Prints a result, for a machine or for a person."""
    if as_json:
        print_json(result)
    else:
        show(Console(markup=False), result)


def print_json(result: dict[str, Any]) -> None:
    write(json.dumps(result, allow_nan=False) + "\n")


def write(text: str) -> None:
    """To standard output, whatever became of file descriptor 1."""
    _machine_output.write(text)
    _machine_output.flush()


def reserve_standard_output() -> None:
    """With --json, whatever a library or a child process prints goes to standard error instead."""
    global _machine_output
    _machine_output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
