"""The manifest of a run: what it read, wrote and found. docs/manifest.md tells what each key means."""

import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ray_cfnet import config
from ray_cfnet.cluster.ledger import (
    MANIFEST_VERSION,
    RUNS,
    FailedUnit,
    RunFiles,
    UnitRecord,
    read_manifest,
    totals,
    unit_entries,
)
from ray_cfnet.cluster.submission import submission_id
from ray_cfnet.cluster.units import actor_range
from ray_cfnet.errors import InputError
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.plan import Source
from ray_cfnet.tables.storage import Location

_READ_THREADS = 16
_PACKAGES = ("ray-cfnet", "ray", "torch", "pyarrow", "numpy")


def make_manifest(
    source: Source,
    bundle: Bundle,
    bundle_place: Location,
    whole: config.Config,
    run: RunFiles,
    done: dict[str, list[UnitRecord]],
    failed: list[FailedUnit],
    visible: set[str],
    earlier: list[UnitRecord],
    seconds: float,
) -> dict[str, Any]:
    """`done` are all units, `earlier` those among them that were done before this attempt of so many seconds."""
    records = [record for partition in done.values() for record in partition]
    summary = totals(records)
    rows_per_s = (summary["rows_in"] - sum(record.rows_in for record in earlier)) / seconds
    _, actors = actor_range(whole.cluster, len(records) - len(earlier) or 1)
    return {
        "version": MANIFEST_VERSION,
        "run_id": run.run_id,
        "model_id": bundle.id,
        "bundle": str(bundle_place),
        "state": "incomplete" if failed else "complete",
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "submission_id": submission_id(),
        "input": str(source.root),
        "inputs": [asdict(file.found) for file in source.all_files],
        "table": _described(bundle, whole.explain),
        "output": str(run.output),
        "format": whole.output.format,
        **summary,
        "max_reject_fraction": whole.explain.max_reject_fraction,
        "partitions": {
            name: {"state": "committed" if name in visible else "unfinished", **totals(done[name])}
            for name in source.partitions
        },
        "units_planned": len(records) + len(failed),
        "units": unit_entries(records),
        "failures": [asdict(failure) for failure in sorted(failed, key=lambda failure: failure.number)],
        "retries": sum(record.retries for record in records),
        "seconds": round(seconds, 3),
        "rows_per_s": round(rows_per_s, 1),
        "rows_per_s_per_core": round(rows_per_s / (actors * whole.cluster.actor_cpus), 1),
        "actors": actors,
        "peak_rss_mb": max((record.peak_rss_mb for record in records), default=0),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a job's uploaded directory is not installed
        return None


def _described(bundle: Bundle, settings: config.Explain) -> dict[str, Any]:
    """What a reader of the output must know to make sense of its columns, without the bundle at hand."""
    schema, desired = bundle.schema, bundle.desired_for(settings.desired)
    return {
        "target": schema.target.name,
        "classes": [str(name) for name in schema.target.classes],
        "keys": list(schema.keys),
        "desired": "opposite" if desired is None else str(schema.target.classes[desired]),
        "features": {feature.name: feature.kind for feature in schema.features},
    }


def list_runs(output: Location) -> list[dict[str, Any]]:
    """The runs of an output, oldest first. Raises InputError where there is none."""
    runs = known_runs(output)
    if not runs:
        raise InputError(f"{output}: no runs in it", "name the output directory of ray-cfnet explain")
    return runs


def known_runs(output: Location) -> list[dict[str, Any]]:
    """The runs of an output, oldest first, or none; one without a manifest was stopped or is at work."""
    files = [file.path.partition("/") for file in (output / RUNS).files()]
    with_manifest = sorted({run_id for run_id, _, name in files if name == "manifest.json"})
    without = {run_id for run_id, _, name in files if name} - set(with_manifest)
    with ThreadPoolExecutor(_READ_THREADS) as threads:
        runs = list(threads.map(lambda run_id: read_manifest(output / RUNS / run_id / "manifest.json"), with_manifest))
    runs += [{"run_id": run_id, "state": "unfinished"} for run_id in without]
    return sorted(runs, key=lambda run: (run.get("finished_at", "~"), run["run_id"]))


def find_run(output: Location, wanted: str) -> dict[str, Any]:
    """The manifest of a run, by its id or the first characters of it."""
    matching = [run for run in list_runs(output) if run["run_id"].startswith(wanted)]
    if len(matching) != 1:
        problem = "no such run" if not matching else f"{len(matching)} runs begin so"
        raise InputError(f"{output}: {problem}: {wanted}", f"ray-cfnet runs {output} lists them")
    return matching[0]
