"""The command line. Heavy imports wait until a command needs them, so that --help answers at once."""

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Literal

import typer

from ray_cfnet.cli import operate, reading
from ray_cfnet.cli.options import (
    AsJson,
    BundlePath,
    ConfigFile,
    InputPath,
    OutputPath,
    Overrides,
    finish,
    load,
    print_json,
    progress_display,
    reserve_standard_output,
    unit_counter,
    write,
)
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.errors import RayCfnetError
from ray_cfnet.logs import is_json, log, log_as_json

app = typer.Typer(
    help="Predictions with counterfactual explanations for every row of a Parquet table.\n\n"
    "A first look: ray-cfnet demo. With your own table: write a YAML file (examples in conf/), check it with "
    "ray-cfnet config, then train, evaluate, promote and explain.\n\n"
    "Exit codes: 0 done, 1 the job failed, 2 the input or the configuration is wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
config_app = typer.Typer(
    help="Check a configuration, suggest one for a table, or print the JSON schema of all keys.", rich_markup_mode=None
)
app.add_typer(config_app, name="config")


@app.callback()
def options(
    log_format: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--log-format", envvar="RAY_CFNET_LOG", help="json: a JSON object a line on standard error, for log systems"
        ),
    ] = "text",
) -> None:
    """Options of all commands; they stand before the command's name."""
    if log_format == "json":
        log_as_json()


@app.command()
def train(
    config: ConfigFile,
    output: OutputPath = None,
    input_path: InputPath = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a CounterNet with Ray Train and save the best epoch as a bundle.

    The schema is fitted on the training split, the best epoch is chosen on the validation split, the printed
    metrics are of the test split. The bundle goes to OUTPUT/_models/<model id>.

    Example: ray-cfnet train --config conf/loans.yaml --output out/loans --set training.epochs=30
    """
    loaded = load(config, overrides, input_path, output)
    from ray_cfnet.cli.display import show_trained
    from ray_cfnet.commands import run_train

    progress = progress_display()
    progress.say(f"training on {loaded.table.path}")
    try:
        result = run_train(loaded, lambda metrics: progress.epoch(metrics, loaded.training.epochs))
    finally:
        progress.close()
    finish(result, as_json, show_trained)


@app.command()
def explain(
    config: ConfigFile,
    bundle: BundlePath = None,
    input_path: InputPath = None,
    output: OutputPath = None,
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help="only this one, e.g. ds=2026-11-15", metavar="KEY=VALUE")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Write prediction, counterfactual and feasible counterfactual for every row.

    The output has the partitions of the input. Rows that cannot be scored (null, NaN, unknown category) go to
    OUTPUT/_rejects with the reason; they never stop the job. docs/columns.md describes every column.

    Example: ray-cfnet explain --config conf/loans.yaml --bundle out/loans/_models/ID --partition ds=2026-11-15
    """
    loaded = load(config, overrides, input_path, output)
    from ray_cfnet.cli.display import show_explained
    from ray_cfnet.commands import run_explain

    progress = progress_display()
    progress.say(f"explaining {loaded.table.path}{'/' + partition if partition else ''}")
    try:
        result = run_explain(loaded, bundle, partition, unit_counter(progress))
    finally:
        progress.close()
    finish(result, as_json, show_explained)


@app.command()
def evaluate(
    config: ConfigFile,
    bundle: BundlePath = None,
    input_path: InputPath = None,
    split: Annotated[
        Literal["train", "validation", "test", "all"], typer.Option("--split", help="which rows to measure on")
    ] = "test",
    against: Annotated[
        Literal["paper"] | None, typer.Option("--against", help="show the paper's figures for table.name beside ours")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure a bundle: its accuracy and stability, its counterfactuals, and two trivial answers beside them.

    All figures are computed on the values that explain would write, rounded and typed. docs/columns.md says
    what each of them means.

    Example: ray-cfnet evaluate --config conf/loans.yaml --bundle out/loans/_models/ID --split test
    """
    loaded = load(config, overrides, input_path)
    from ray_cfnet.cli.display import show_evaluated
    from ray_cfnet.commands import run_evaluate

    progress_display().say(f"evaluating on the {split} split of {loaded.table.path}")
    result = run_evaluate(loaded, bundle, None if split == "all" else split, against)
    finish(result, as_json, show_evaluated)


@app.command()
def promote(
    config: ConfigFile,
    bundle: Annotated[
        str | None, typer.Option("--bundle", "-b", help="the directory that train printed", metavar="PATH")
    ] = None,
    store: Annotated[
        str | None, typer.Option("--store", help="the model store; default: OUTPUT/_models", metavar="PATH")
    ] = None,
    force: Annotated[
        str | None, typer.Option("--force", help="promote although a condition fails; recorded", metavar="REASON")
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="go back to the bundle that was in use before")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Take a bundle into use: explain --bundle STORE follows it from then on.

    Only if its test metrics keep the limits under promotion: in the configuration, and are not worse than those of
    the bundle in use by more than promotion.tolerance. Else every failed condition is listed and the exit code
    is 1. A bundle outside of the store is copied into it. Every decision is recorded in STORE/_promotions.

    Example: ray-cfnet promote --config conf/loans.yaml --bundle out/loans/_models/ID

    And back: ray-cfnet promote --config conf/loans.yaml --rollback
    """
    if (bundle is None) != rollback:
        raise typer.BadParameter("pass either --bundle PATH or --rollback")
    if force is not None and (rollback or not force.strip()):
        raise typer.BadParameter("--force needs a reason in words, and a --bundle")
    loaded = load(config, overrides)
    from ray_cfnet.cli.display import show_promoted
    from ray_cfnet.commands import run_promote

    result = run_promote(loaded, bundle, store, force)
    finish(result, as_json, show_promoted)
    if result["decision"] == "refused":
        raise typer.Exit(1)


@app.command()
def models(
    store: Annotated[str, typer.Argument(help="the model store, e.g. OUTPUT/_models", metavar="STORE")],
    as_json: AsJson = False,
) -> None:
    """List the bundles of a model store with their test metrics, and which one is in use.

    Example: ray-cfnet models out/loans/_models
    """
    from ray_cfnet.cli.display import show_models
    from ray_cfnet.commands import run_models

    finish(run_models(store), as_json, show_models)


@app.command()
def demo(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="another table than the synthetic loans", metavar="FILE")
    ] = None,
    output: OutputPath = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Everything at once on a table that ray-cfnet makes itself: train, explain, evaluate, one row in words.

    Example: ray-cfnet demo --set table.sample.rows=200000
    """
    from ray_cfnet.cli.display import show_demo
    from ray_cfnet.commands import run_demo, shipped_conf

    loaded = load(config or shipped_conf("loans.yaml"), overrides, None, output)
    progress = progress_display()
    progress.say(f"demo on {loaded.table.path}: train, explain, evaluate (about two minutes)")
    try:
        result = run_demo(
            loaded, lambda metrics: progress.epoch(metrics, loaded.training.epochs), unit_counter(progress)
        )
    finally:
        progress.close()
    finish(result, as_json, show_demo)


@config_app.callback(invoke_without_command=True)
def config_default(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="the YAML file to check", metavar="FILE")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check a configuration (ray-cfnet config --config FILE), or print the JSON schema of all its keys."""
    if context.invoked_subcommand is None:
        if config is None:
            write(context.get_help() + "\n")
            raise typer.Exit(2)
        check(config, overrides, as_json)


@config_app.command()
def check(config: ConfigFile, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a file without starting anything; every fault is listed at once.

    Example: ray-cfnet config check --config conf/loans.yaml --set training.epochs=30
    """
    loaded = load_config(config, overrides)
    if as_json:
        print_json({"valid": True, "config": loaded.model_dump(mode="json")})
        return
    kinds = [feature.kind for feature in loaded.table.features.values()]
    write(
        f"{config}: valid. {kinds.count('continuous')} continuous and {kinds.count('categorical')} categorical "
        f"features, target {loaded.table.target}\n"
    )


@config_app.command()
def schema(as_json: AsJson = False) -> None:
    """Print the JSON schema of the configuration, for editors and checks elsewhere.

    Example: ray-cfnet config schema > ray-cfnet.schema.json
    """
    text = json.dumps(Config.model_json_schema(), indent=None if as_json else 2)
    write(text + "\n")


@config_app.command()
def suggest(
    table: Annotated[str, typer.Argument(help="a Parquet file or directory, local or s3://", metavar="TABLE")],
    target: Annotated[str | None, typer.Option("--target", help="the column to predict", metavar="NAME")] = None,
    keys: Annotated[
        list[str] | None, typer.Option("--keys", help="a column that identifies a row; repeatable", metavar="NAME")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="ask nothing: what looks immutable is")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a first configuration for a table, each proposal with its reason; look at every line before using it.

    It reads the footers and at most 200,000 rows. On a terminal it asks about features that a person probably
    cannot change.

    Example: ray-cfnet config suggest data/loans > loans.yaml
    """
    from ray_cfnet.tables.suggest import suggest_config

    asks = not (yes or as_json) and sys.stdin.isatty() and sys.stderr.isatty()

    def confirm(name: str) -> bool | None:
        question = f"Is {name} something that a person cannot change?"
        return typer.confirm(question, default=True, err=True) if asks else (True if yes else None)

    text = suggest_config(table, target, keys or [], confirm)
    if as_json:
        print_json({"yaml": text})
    else:
        write(text)


# After the commands of this file: help lists them in this order.
for command in (reading.runs, reading.show, reading.report, reading.sql, operate.nightly):
    app.command()(command)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(operate.submit)


def main(arguments: list[str] | None = None) -> None:
    """Runs a command line and exits with its code; wrong options exit with 2 by typer's own hand."""
    arguments = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in arguments
    if as_json:
        reserve_standard_output()
    try:
        app(arguments)
    except Exception as error:
        # The last door: whatever it is, a machine gets its JSON object and a person one line, not a trace.
        if os.environ.get("RAY_CFNET_DEBUG"):
            traceback.print_exc()
        ours = isinstance(error, RayCfnetError)
        message = str(error) if ours else f"{type(error).__name__}: {error} (RAY_CFNET_DEBUG=1 shows where)"
        if is_json():
            log.error(message, extra={"event": "failed", "kind": type(error).__name__})
        else:
            print(f"error: {message}", file=sys.stderr)
        if as_json:
            print_json({"error": {"kind": type(error).__name__, "message": message}})
        sys.exit(error.exit_code if isinstance(error, RayCfnetError) else 1)
