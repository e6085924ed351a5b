"""Training on Ray: fit the schema, shard the rows, run the workers, keep the best epoch as a bundle."""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray.data
import ray.train
import ray.train.torch
import safetensors.torch

from ray_cfnet import config
from ray_cfnet.cluster.board import board
from ray_cfnet.cluster.evaluate import evaluate
from ray_cfnet.cluster.ingest import encoded_dataset, fit
from ray_cfnet.cluster.loop import WEIGHTS_FILE, train_worker
from ray_cfnet.errors import InputError, JobError
from ray_cfnet.model.bundle import Bundle, Settings, desired_index, make_net
from ray_cfnet.model.store import MODELS
from ray_cfnet.tables.plan import Source
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.storage import Location


@dataclass
class Trained:
    """A saved bundle and how it came to be."""

    bundle: Bundle
    place: Location
    epochs: int
    best_epoch: int


class _EveryRowOnce(ray.train.DataConfig):
    """Shards that together hold every row once: Ray's own split drops rows to make shards equal."""

    def configure(self, datasets: dict[str, ray.data.Dataset], world_size: int, *_: Any, **__: Any) -> list:
        shards: list[dict[str, ray.data.DataIterator]] = [{} for _ in range(world_size)]
        for name, dataset in datasets.items():
            num_rows = dataset.count()
            cuts = [num_rows * worker // world_size for worker in range(1, world_size)]
            for shard, part in zip(shards, dataset.split_at_indices(cuts) if cuts else [dataset], strict=True):
                shard[name] = part.iterator()
        return shards


def train(source: Source, whole: config.Config, on_epoch: Callable[[dict[str, Any]], None]) -> Trained:
    """Trains a CounterNet and saves it below `output.path`. Needs a Ray session.

    `on_epoch` gets each epoch's metrics while the run goes on. Raises InputError for data that cannot be
    trained on, JobError when the run fails.
    """
    schema = fit(source, whole)
    desired_index(whole.explain.desired, schema)  # a wrong class must not cost a training run
    datasets = {name: encoded_dataset(source, whole, schema, name) for name in ("train", "validation")}
    split_rows = {name: dataset.count() for name, dataset in datasets.items()}
    for name, count in split_rows.items():
        if count == 0:
            raise InputError(
                f"{whole.table.path}: no usable row in the {name} split", f"give more rows, or a larger split.{name}"
            )
    store = Location.of(whole.output.path) / MODELS
    bundle, best_epoch = _run(schema, whole, datasets, store / ".training", on_epoch)
    bundle.metrics = {**evaluate(source, bundle, whole, "test"), "split_rows": split_rows, "best_epoch": best_epoch}
    bundle.metrics["split_rows"]["test"] = bundle.metrics["rows"]
    return Trained(bundle, bundle.save(store), whole.training.epochs, best_epoch)


def _run(
    schema: TableSchema,
    whole: config.Config,
    datasets: dict[str, Any],
    storage: Location,
    on_epoch: Callable[[dict[str, Any]], None],
) -> tuple[Bundle, int]:
    # Ray's controller collects reports this often, and a worker waits for it: the default of 2 s would be
    # most of an epoch on a small table.
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.1")
    settings = Settings.of(whole)
    run = storage / uuid.uuid4().hex[:12]
    with board(on_epoch) as handle:
        trainer = ray.train.torch.TorchTrainer(
            train_worker,
            train_loop_config={
                "schema": schema.to_json(),
                "settings": settings.model_dump_json(),
                "board": handle,
            },
            scaling_config=ray.train.ScalingConfig(
                num_workers=whole.cluster.num_workers, use_gpu=whole.cluster.use_gpu
            ),
            run_config=ray.train.RunConfig(
                name=run.name,
                storage_path=storage.path,
                storage_filesystem=storage.fs,
                checkpoint_config=ray.train.CheckpointConfig(
                    num_to_keep=1, checkpoint_score_attribute="score", checkpoint_score_order="max"
                ),
            ),
            datasets=datasets,
            dataset_config=_EveryRowOnce(),
        )
        try:
            result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            raise JobError(f"training failed: {error}") from error
    checkpoint, metrics = max(result.best_checkpoints or [], key=lambda pair: pair[1]["score"])
    net = make_net(schema, settings.model)
    with checkpoint.as_directory() as directory:
        net.load_state_dict(safetensors.torch.load_file(f"{directory}/{WEIGHTS_FILE}"))
    run.delete()
    return Bundle(net.eval(), schema, settings, {}), int(metrics["epoch"])
