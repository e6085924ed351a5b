"""Commands of those who run it every night: send a job to a cluster, and the nightly job itself."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ray_cfnet.cli.options import (
    AsJson,
    ConfigFile,
    InputPath,
    OutputPath,
    Overrides,
    finish,
    load,
    print_json,
    progress_display,
    unit_counter,
    write,
)


def submit(
    context: typer.Context,
    command: Annotated[
        Literal["explain", "train", "evaluate", "nightly"], typer.Argument(help="what to run", metavar="COMMAND")
    ],
    config: ConfigFile,
    address: Annotated[
        str | None,
        typer.Option("--address", help="the cluster's dashboard; default: RAY_API_SERVER_ADDRESS", metavar="URL"),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="follow the log to the job's end")] = True,
    as_json: AsJson = False,
) -> None:
    """Run a command as a job on a Ray cluster; further options go to the command.

    Sent are this version's code and the configuration file, nothing else: paths must be s3:// or absolute, and such
    that every node has them. A token comes from Ray's own RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH. The exit code
    is the job's.

    Example: ray-cfnet submit explain --config ours.yaml --address http://127.0.0.1:8265 --partition ds=2026-11-15
    """
    # Read here as they will be read there: a wrong option or configuration needs no cluster to be found.
    commands = context.find_root().command.commands  # type: ignore[attr-defined]
    given = commands[command].make_context(command, ["--config", str(config), *context.args]).params
    loaded = load(config, given["overrides"], given["input_path"], given.get("output"))
    from ray_cfnet.cluster.submission import check_places
    from ray_cfnet.cluster.submission import submit as send

    check_places(loaded, given.get("bundle"), writes="output" in given)
    progress = progress_display()
    job = send(command, Path(config), context.args, address)
    progress.say(f"job {job.id}, {job.dashboard}")
    status, exit_code = "SUBMITTED", 0
    if wait:
        try:
            status, exit_code = job.follow(
                lambda lines: print(lines, end="", file=sys.stderr) if as_json else write(lines)
            )
        except KeyboardInterrupt:
            progress.say(f"job {job.id} goes on; ray job stop {job.id} ends it")
            raise
        progress.say(f"job {job.id}: {status}")
    if as_json:
        print_json({"submission_id": job.id, "dashboard": job.dashboard, "status": status, "exit_code": exit_code})
    if exit_code:
        raise typer.Exit(exit_code)


def nightly(
    config: ConfigFile,
    input_path: InputPath = None,
    output: OutputPath = None,
    since: Annotated[
        str | None, typer.Option("--since", help="no partition before this one, e.g. 2026-11-01", metavar="VALUE")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="no partition after this one", metavar="VALUE")] = None,
    max_partitions: Annotated[
        int | None, typer.Option("--max-partitions", min=1, help="no more than this tonight, newest first")
    ] = None,
    re_explain: Annotated[
        bool, typer.Option("--re-explain", help="also partitions that another model explained, or other settings")
    ] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Explain what is new or changed since the last good run, measure it where labels are, and say how it stands.

    With the store's promoted bundle. A partition that fails does not stop the others; the exit code is 1 then.
    OUTPUT/_status.json tells what was done, what is left and whether a training is due; docs/operations.md describes
    it. A second start has nothing to do.

    Example: ray-cfnet nightly --config ours.yaml --until 2026-11-15 --max-partitions 10
    """
    loaded = load(config, overrides, input_path, output)
    from ray_cfnet.cli.display import show_night
    from ray_cfnet.due import Choice
    from ray_cfnet.nightly import run_nightly

    progress = progress_display()
    try:
        choice = Choice(since, until, max_partitions, re_explain)
        result = run_nightly(loaded, choice, progress.say, lambda: unit_counter(progress))
    finally:
        progress.close()
    finish(result, as_json, show_night)
    if result["state"] != "ok":
        raise typer.Exit(1)
