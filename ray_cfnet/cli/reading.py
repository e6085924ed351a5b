"""Commands that read what explain wrote: its runs, one row, a page about a run, views for other engines."""

from typing import Annotated, Literal

import typer

from ray_cfnet.cli.options import AsJson, finish, print_json, write


def runs(
    output: Annotated[str, typer.Argument(help="output directory of explain", metavar="OUTPUT")],
    show: Annotated[
        str | None, typer.Option("--show", help="one run: its id, or the first characters of it", metavar="ID")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the explain runs of an output, or show one.

    docs/manifest.md describes what a run leaves behind.

    Example: ray-cfnet runs out/loans --show 3f
    """
    from ray_cfnet.cli.display import show_run, show_runs
    from ray_cfnet.commands import run_runs

    finish(run_runs(output, show), as_json, show_run if show else show_runs)


def show(
    output: Annotated[str, typer.Argument(help="output directory of explain", metavar="OUTPUT")],
    key: Annotated[
        list[str],
        typer.Option("--key", "-k", help="the row's key; name=value, repeated, where it has several", metavar="KEY"),
    ],
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", help="look only there, e.g. ds=2026-11-15", metavar="KEY=VALUE")
    ] = None,
    bundle: Annotated[
        str | None, typer.Option("--bundle", "-b", help="where the rules are, if the bundle has moved", metavar="PATH")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show one row to talk about: the prediction, the sentence, and what would have to change within which rules.

    Looks in all partitions, then among the rejected rows; of several rows with the key the last partition's is shown.

    Example: ray-cfnet show out/loans --key 38472
    """
    from ray_cfnet.cli.display_row import show_row
    from ray_cfnet.commands import run_show

    finish(run_show(output, key, partition, bundle), as_json, show_row)


def report(
    output: Annotated[str, typer.Argument(help="output directory of explain", metavar="OUTPUT")],
    run: Annotated[
        str | None, typer.Option("--run", help="its id, or the first characters of it; default: the last", metavar="ID")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", help="the file; default: OUTPUT/_reports/<run id>.html", metavar="FILE")
    ] = None,
    segment: Annotated[
        list[str] | None,
        typer.Option("--segment", help="compare groups by this column, e.g. gender; repeatable", metavar="COLUMN"),
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=0, help="rows shown as samples; 0 keeps single rows out of the page")
    ] = 20,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page about a run: what was done, how far the ways are, for whom, and what is unusual.

    The page needs no network and opens from a file. docs/report.md tells what stands in it.

    Example: ray-cfnet report out/loans --segment gender
    """
    from ray_cfnet.commands import run_report

    result = run_report(output, run, to, segment or [], samples)
    finish(result, as_json, lambda console, made: console.print(f"report: {made['report']}", soft_wrap=True))


def sql(
    output: Annotated[str, typer.Argument(help="output directory of explain", metavar="OUTPUT")],
    dialect: Annotated[
        Literal["duckdb", "trino", "athena", "bigquery", "spark"], typer.Option("--dialect", help="whose SQL")
    ] = "duckdb",
    directory: Annotated[
        str | None, typer.Option("--write", help="save it as views.<dialect>.sql in here", metavar="DIR")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print SQL that defines views over an output: explanations, changes_long, rejects and runs.

    changes_long has one row per changed feature: keys, option_number, feature, from_value, to_value.
    docs/report.md tells more.

    Example: ray-cfnet sql out/loans --dialect duckdb > views.sql
    """
    from ray_cfnet.commands import run_sql

    result = run_sql(output, dialect, directory)
    if as_json:
        print_json(result)
    else:
        write(f"saved: {result['file']}\n" if result["file"] else result["sql"])
