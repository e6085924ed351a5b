"""Training on Ray: fit the schema, shard the rows, run the workers, keep the best epoch as a bundle."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import ray.train

from ray_cfnet import config
from ray_cfnet.cluster.board import board
from ray_cfnet.cluster.checkpoint import STATE_FORMAT, load_history, load_weights
from ray_cfnet.cluster.evaluate import evaluate, reference_rows
from ray_cfnet.cluster.history import write_history
from ray_cfnet.cluster.ingest import SPARE_CPU, EncodedTable, fit
from ray_cfnet.cluster.loop import SHARDS, diverged, train_worker
from ray_cfnet.cluster.shards import Blocks
from ray_cfnet.cluster.stopping import interruptible
from ray_cfnet.cluster.trainer import LeanTrainer
from ray_cfnet.errors import ConfigError, InputError, JobError, last_line
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle, Settings, desired_index, make_net
from ray_cfnet.model.store import MODELS
from ray_cfnet.tables.lock import exclusive
from ray_cfnet.tables.plan import Source
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.split import SplitName
from ray_cfnet.tables.storage import Location

RUNS = ".training"
_REPORT_INTERVAL = "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"
_ROWS_FOR_A_SECOND = 2_000_000
"""A second for a table of so many rows, whose epoch takes several."""

_MEMORY_INGEST_BYTES = 2 * 1024**3
"""A worker's share of encoded rows up to this size is kept in its memory."""

OnEpoch = Callable[[dict[str, Any]], None]


@dataclass
class Trained:
    """A saved bundle and how it came to be."""

    bundle: Bundle
    place: Location
    epochs: int
    best_epoch: int


def train(source: Source, whole: config.Config, on_epoch: OnEpoch) -> Trained:
    """Trains a CounterNet and saves it below `output.path`. Needs a Ray session.

    A run that was killed goes on after its last epoch when the same table, settings and output are given
    again. `on_epoch` gets each epoch's metrics while the run goes on, and `{"resumed_after": n}` first when it
    goes on. Raises InputError for data that cannot be trained on, JobError when the run fails or is at work already.
    """
    schema = fit(source, whole)
    desired_index(whole.explain.desired, schema)  # a wrong class must not cost a training run
    if whole.cluster.use_gpu and not os.environ.get("RAY_ADDRESS") and not ray.cluster_resources().get("GPU"):
        raise ConfigError("cluster.use_gpu", ["this machine has no GPU; set it to false, or RAY_ADDRESS to a cluster"])
    store = Location.of(whole.output.path) / MODELS
    run = store / RUNS / _run_name(source, schema, whole)
    with exclusive(run, "the same training", patience_s=0):  # two would delete each other's checkpoints
        return _trained(source, schema, whole, run, on_epoch)


def _trained(source: Source, schema: TableSchema, whole: config.Config, run: Location, on_epoch: OnEpoch) -> Trained:
    bundle, history = _run(source, schema, whole, run, on_epoch)
    if diverged(history):
        run.delete()
        raise JobError(f"training diverged in epoch {len(history)}; lower training.learning_rate")
    best_epoch = max(history, key=lambda metrics: metrics["standing"])["epoch"]
    reference = reference_rows(source, bundle, whole)
    bundle.reference = Explainer(bundle, bundle.desired).reference(reference)
    tested = evaluate(source, bundle, whole, "test", reference=reference)
    bundle.metrics = {**tested, "best_epoch": best_epoch, "train_rows": history[-1]["num_rows"]}
    place = bundle.save(run.parent.parent)
    write_history(place, history)
    run.delete()
    return Trained(bundle, place, len(history), best_epoch)


def _run_name(source: Source, schema: TableSchema, whole: config.Config) -> str:
    """The same table, settings and seed are the same run."""
    files = [(file.found.path, file.found.size, file.found.modified_ns) for file in source.files]
    settings = Settings.of(whole).model_dump_json()
    identity = json.dumps([STATE_FORMAT, str(source.root), files, schema.to_json(), settings])
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def _num_workers(cluster: config.Cluster) -> Any:  # Ray's annotations do not know the pair
    return cluster.num_workers if cluster.max_workers is None else (cluster.num_workers, cluster.max_workers)


def _streams(source: Source, schema: TableSchema, whole: config.Config) -> bool:
    if whole.training.ingest != "auto":
        return whole.training.ingest == "stream"
    row_bytes = 12 * len(schema.continuous) + 16 * len(schema.categorical) + 16  # raw and as tensors
    share = source.num_rows * whole.split.train / whole.cluster.num_workers
    return share * row_bytes > _MEMORY_INGEST_BYTES


def _rows(table: EncodedTable) -> EncodedTable | dict[SplitName, Blocks]:
    """What workers get: the table to stream, or all rows, encoded by the whole cluster before they take its CPUs.

    Raises InputError for a split whose rows are all rejects or without a known class: no epoch could be judged.
    """
    if _streams(table.source, table.schema, table.whole):
        if not table.has_usable_row("validation"):
            raise _no_usable_row(table, "validation")
        return table
    blocks: dict[SplitName, Blocks] = {}
    for name in SHARDS:
        blocks[name] = Blocks.of(table.dataset(name))
        if not sum(blocks[name].num_rows):
            raise _no_usable_row(table, name)
    return blocks


def _no_usable_row(table: EncodedTable, name: SplitName) -> InputError:
    path = table.whole.table.path
    return InputError(f"{path}: no usable row in the {name} split", f"give more rows, or a larger split.{name}")


@contextmanager
def _reports_every(seconds: float) -> Iterator[None]:
    """How often Ray's controller collects reports, within limits and unless it is set already.

    A worker waits for it: the default of 2 s would be most of an epoch on a small table. On a large one every time
    costs all workers a moment of the step they are in.
    """
    if _REPORT_INTERVAL in os.environ:
        yield
        return
    os.environ[_REPORT_INTERVAL] = f"{min(max(seconds, 0.05), 2.0):.2f}"
    try:
        yield
    finally:
        del os.environ[_REPORT_INTERVAL]


def _run(
    source: Source, schema: TableSchema, whole: config.Config, run: Location, on_epoch: OnEpoch
) -> tuple[Bundle, list[dict[str, Any]]]:
    """The best epoch's net, and the metrics of all epochs."""
    settings, table = Settings.of(whole), EncodedTable(source, whole, schema)
    storage = run.parent
    with board(on_epoch) as told, _reports_every(source.num_rows / _ROWS_FOR_A_SECOND):
        trainer = LeanTrainer(
            train_worker,
            train_loop_config={
                "schema": schema.to_json(),
                "settings": settings.model_dump_json(),
                "rows": _rows(table),
                "planned_steps": math.ceil(source.num_rows * whole.split.train / whole.training.batch_size),
                "board": told,
            },
            scaling_config=ray.train.ScalingConfig(
                num_workers=_num_workers(whole.cluster),
                use_gpu=whole.cluster.use_gpu,
                resources_per_worker=None if whole.cluster.use_gpu else {"CPU": 1 - SPARE_CPU},
            ),
            run_config=ray.train.RunConfig(
                name=run.name,
                storage_path=storage.path,
                storage_filesystem=storage.fs,
                failure_config=ray.train.FailureConfig(max_failures=whole.training.max_failures),
                checkpoint_config=ray.train.CheckpointConfig(
                    num_to_keep=2, checkpoint_score_attribute="standing", checkpoint_score_order="max"
                ),
            ),
        )
        try:
            with interruptible():
                result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise JobError(f"training failed: {last_line(error)}") from error
    if result.checkpoint is None or not result.best_checkpoints:
        raise JobError(f"training ended without a checkpoint; look into Ray's logs of run {run.name}")
    with result.checkpoint.as_directory() as directory:
        history = load_history(directory)
    net = make_net(schema, settings.model)
    best, _ = max(result.best_checkpoints, key=lambda pair: pair[1]["standing"])
    with best.as_directory() as directory:
        load_weights(directory, net)
    return Bundle(net.eval(), schema, settings, {}), history
