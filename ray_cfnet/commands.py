"""What the command line and the jobs do: open the table, connect to Ray, run, and sum up as plain data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow.parquet as pq

from ray_cfnet.cluster.evaluate import evaluate
from ray_cfnet.cluster.find import find_row
from ray_cfnet.cluster.manifest import find_run, list_runs
from ray_cfnet.cluster.score import OnUnit, explain
from ray_cfnet.cluster.session import ray_session
from ray_cfnet.cluster.submission import check_places, submission_id
from ray_cfnet.cluster.tracking import track_training
from ray_cfnet.cluster.train import train
from ray_cfnet.config import Config
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.paper import paper_figures
from ray_cfnet.model.store import MODELS, list_models, promote, resolve_bundle, roll_back
from ray_cfnet.report.views import DialectName, write_views
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.samples import make_sample
from ray_cfnet.tables.split import SplitName
from ray_cfnet.tables.storage import Location

OnEpoch = Callable[[dict[str, Any]], None]


def shipped_conf(name: str) -> Path:
    """A configuration that comes with ray-cfnet: inside the wheel, or in the checkout's conf/."""
    here = Path(__file__).parent
    inside = here / "conf" / name
    return inside if inside.exists() else here.parent / "conf" / name


def _bundle_place(config: Config, bundle: str | None) -> Location:
    """The bundle that was named, or the one in use in the store below the output."""
    return resolve_bundle(Location.of(bundle) if bundle is not None else Location.of(config.output.path) / MODELS)


def check_job(config: Config, bundle: str | None = None, writes: bool = True) -> None:
    """Raises InputError when this runs as a job on a cluster, with paths that only the sender's machine has."""
    if submission_id() is not None:
        check_places(config, bundle, writes)


def run_train(config: Config, on_epoch: OnEpoch, wanted: Callable[[str], bool] | None = None) -> dict[str, Any]:
    """Trains and saves a bundle: bundle, model_id, epochs, metrics. Makes the table first if it is a sample.

    On the partitions that are `wanted`, or on all of them.
    """
    check_job(config)
    make_sample(config.table)
    source = open_source(config.table.path, wanted=wanted)
    with ray_session(min_cpus=config.cluster.num_workers + 1):
        trained = train(source, config, on_epoch)
    track_training(trained.place)
    return {
        "bundle": str(trained.place),
        "model_id": trained.bundle.id,
        "epochs": trained.epochs,
        "best_epoch": trained.best_epoch,
        "metrics": trained.bundle.metrics,
    }


def run_explain(config: Config, bundle: str | None, partition: str | None, on_unit: OnUnit) -> dict[str, Any]:
    """Explains a table, or one partition of it: run_id, model_id, row counts, seconds, output."""
    check_job(config, bundle)
    source = open_source(config.table.path, in_parts=True)
    if partition is not None:
        source = source.within(partition)
    place = _bundle_place(config, bundle)  # once: a promotion meanwhile does not touch this run
    with ray_session():
        manifest = explain(source, place, config, on_unit)
    names = ("run_id", "already_done", "model_id", "rows_in", "rows_out", "rows_rejected", "rejects", "row_status")
    return {name: manifest[name] for name in (*names, "seconds", "rows_per_s", "output")}


def run_runs(output: str, show: str | None) -> dict[str, Any]:
    """The runs of an output, or the manifest of one."""
    place = Location.of(output)
    return find_run(place, show) if show else {"output": str(place), "runs": list_runs(place)}


def run_show(output: str, keys: list[str], partition: str | None, bundle: str | None) -> dict[str, Any]:
    """One row of an output with all that is known about it."""
    return find_row(Location.of(output), keys, partition, Location.of(bundle) if bundle else None)


def run_report(
    output: str, run_id: str | None, to: str | None, segments: list[str], num_samples: int
) -> dict[str, Any]:
    """Writes the report of a run: output, report."""
    from ray_cfnet.report.page import write_report  # its packages are an extra

    return {"output": output, "report": write_report(output, run_id, to, segments, num_samples)}


def run_sql(output: str, dialect: DialectName, directory: str | None) -> dict[str, Any]:
    """The views over an output as SQL: dialect, sql, and the file it was saved in, if any."""
    return write_views(output, dialect, directory)


def run_evaluate(
    config: Config, bundle: str | None, split: SplitName | None, against: Literal["paper"] | None = None
) -> dict[str, Any]:
    """Measures a bundle on a split: rows, accuracy, cf, fcf and all else; with the paper's figures if asked."""
    check_job(config, bundle, writes=False)
    figures = {"paper": paper_figures(config.table.name)} if against == "paper" else {}
    source = open_source(config.table.path)
    loaded = Bundle.load(_bundle_place(config, bundle))
    with ray_session():
        return {"model_id": loaded.id, **evaluate(source, loaded, config, split, everything=True), **figures}


def run_promote(config: Config, bundle: str | None, store: str | None, force: str | None) -> dict[str, Any]:
    """Promotes a bundle, or rolls back where none is given: the history's new record, and the store."""
    place = Location.of(store) if store else Location.of(config.output.path) / MODELS
    record = promote(Location.of(bundle), place, config, force) if bundle else roll_back(place)
    return {"store": str(place), **record.model_dump(mode="json")}


def run_models(store: str) -> dict[str, Any]:
    """The bundles of a store with their metrics, the current one, and the history."""
    return list_models(Location.of(store))


def run_demo(config: Config, on_epoch: OnEpoch, on_unit: OnUnit) -> dict[str, Any]:
    """Train, explain and evaluate in one Ray session, and one explained row in words."""
    with ray_session(min_cpus=config.cluster.num_workers + 1):
        trained = run_train(config, on_epoch)
        explained = run_explain(config, trained["bundle"], None, on_unit)
        evaluated = run_evaluate(config, trained["bundle"], "test")
    source = open_source(config.table.path)
    return {
        "table": str(source.root),
        "partitions": len(source.partitions),
        "train": trained,
        "explain": explained,
        "evaluate": evaluated,
        "example": example_sentence(explained["output"], config.table.keys),
    }


def example_sentence(output: str, keys: list[str]) -> str:
    """The explained row with the fewest changes among the first rows of the newest partition, in words."""
    explained = open_source(output)
    newest = explained.root / explained.files[-1].found.path
    names = [*keys, "pred_label", "pred_proba", "fcf_num_changed", "fcf_distance", "explanation", "row_status"]
    with pq.ParquetFile(newest.path, filesystem=newest.fs) as file:
        rows = next(file.iter_batches(10_000, columns=names)).to_pylist()
    told = [row for row in rows if row["row_status"] == "ok"] or rows
    row = min(told, key=lambda row: (row["fcf_num_changed"] or 0, row["fcf_distance"] or 0))
    who = "".join(f"{key} {row[key]}: " for key in keys)
    return f"{who}predicted {row['pred_label']} ({row['pred_proba']:.0%}). {row['explanation'] or ''}"
