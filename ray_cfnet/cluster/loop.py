"""What each Ray Train worker does: its shard, the epochs, validation over all workers, a checkpoint each."""

import gc
import itertools
import math
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import ray.train
import ray.train.torch
import ray.util
import torch
import torch.distributed as dist
from torch import Tensor

from ray_cfnet.cluster.averaging import averaging
from ray_cfnet.cluster.checkpoint import load_state, save_state
from ray_cfnet.cluster.ingest import EncodedTable
from ray_cfnet.cluster.shards import Blocks, Shard, StreamShard, in_memory
from ray_cfnet.config import Training
from ray_cfnet.explain.evaluation import evaluated
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle, Settings, desired_index, make_net
from ray_cfnet.model.metrics import EvaluationSums, selection_score
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import Losses, TwoStageUpdate
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.split import SplitName

SHARDS: tuple[SplitName, ...] = ("train", "validation")


def train_worker(arguments: dict[str, Any]) -> None:
    """Runs in every worker process, from the last checkpoint if there is one.

    `arguments`: schema and settings (JSON), rows (a table to stream, or blocks to keep in memory), planned_steps (of
    an epoch), board (progress).
    """
    schema = TableSchema.from_json(arguments["schema"])
    settings = Settings.model_validate_json(arguments["settings"])
    training = settings.training
    context, device = ray.train.get_context(), ray.train.torch.get_device()
    rank, num_workers = context.get_world_rank(), context.get_world_size()
    torch.set_num_threads(1)  # layers this small lose more to a second thread than they gain

    torch.manual_seed(training.seed)  # equal weights everywhere
    net = make_net(schema, settings.model).to(device)
    desired = desired_index(settings.desired, schema)
    rules = SoftRules(schema, net.layout).to(device)
    average = averaging(device, ray.util.get_node_ip_address()) if num_workers > 1 else None
    update = TwoStageUpdate(net, training, rules, desired, average)
    history = _resume(update)
    if history and rank == 0:
        arguments["board"].put({"resumed_after": len(history)})

    shards = {name: _shard(arguments["rows"], name, rank, num_workers, schema, device) for name in SHARDS}
    explainer = Explainer(Bundle(net, schema, settings, {}), desired)
    # What is there now stays. Looking through it for garbage would stop this worker for a fifth of a second every now
    # and then, and the others, who wait for it, at other times.
    gc.collect()
    gc.freeze()

    while len(history) < training.epochs and not (stops_early(history, training.patience) or diverged(history)):
        epoch = len(history) + 1
        started = time.perf_counter()
        # Weights, data and these seeds are all that an epoch depends on: a resumed run repeats it exactly.
        torch.manual_seed(_mixed(training.seed, epoch, rank, 1))
        order = torch.Generator().manual_seed(_mixed(training.seed, epoch, rank, 2))
        losses = _train_epoch(update, shards["train"], order, epoch, num_workers, arguments["planned_steps"])
        trained = time.perf_counter()
        summary = _validate(explainer, shards["validation"])
        metrics = {
            "epoch": epoch,
            **losses,
            "accuracy": summary["accuracy"],
            "validity": summary["cf"]["validity"],
            "fcf_validity": summary["fcf"]["validity"],
            "proximity": summary["cf"]["proximity"],
            "score": selection_score(summary, training.selection),
            "rows_per_s": losses["num_rows"] / (trained - started),
            "seconds_training": trained - started,
            "seconds_validation": time.perf_counter() - trained,
        }
        history.append(metrics)
        metrics["standing"] = standing(history, training)
        if rank == 0:
            arguments["board"].put(metrics)
        _report(metrics, update, history, rank)


def _shard(
    rows: EncodedTable | dict[SplitName, Blocks],
    name: SplitName,
    rank: int,
    num_workers: int,
    schema: TableSchema,
    device: torch.device,
) -> Shard:
    if isinstance(rows, EncodedTable):
        return StreamShard(rows.streamed(name, rank, num_workers), schema, device)
    return in_memory(rows[name].share(rank, num_workers), schema, device)


def _resume(update: TwoStageUpdate) -> list[dict[str, Any]]:
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return []
    with checkpoint.as_directory() as directory:
        return load_state(directory, update)


def standing(history: list[dict[str, Any]], training: Training) -> int:
    """How good the last epoch is as the one to keep; the largest standing of a run is the epoch that is kept.

    That is the latest one whose score is about as good as the best: later epochs have settled, and so small a
    difference is the luck of a validation split. Of `update: posthoc` the first half has no trained generator to keep.
    """
    first = training.epochs // 2 if training.update == "posthoc" else 0
    scores = [metrics["score"] for metrics in history[first:]]
    return len(history) if scores and scores[-1] >= max(scores) - training.selection.tolerance else 0


def stops_early(history: list[dict[str, Any]], patience: int | None) -> bool:
    """Whether the best score is `patience` epochs old. The same everywhere: scores are over all workers."""
    if patience is None or not history:
        return False
    best = max(range(len(history)), key=lambda index: history[index]["score"])
    return len(history) - 1 - best >= patience


def diverged(history: list[dict[str, Any]]) -> bool:
    """Whether the last epoch has a loss that is no number any more."""
    return bool(history) and not all(
        math.isfinite(history[-1][name]) for name in ("loss_pred", "loss_valid", "loss_prox", "score")
    )


def _train_epoch(
    update: TwoStageUpdate, shard: Shard, order: torch.Generator, epoch: int, num_workers: int, planned_steps: int
) -> dict[str, float]:
    """One pass over the rows of all workers; mean losses, and this worker's seconds (with its waiting for others)."""
    # Sums stay on the device: reading a step's losses would wait for them.
    sums = torch.zeros(3, dtype=torch.float64, device=ray.train.torch.get_device())
    trained_rows, stage_1, stage_2 = 0, 0.0, 0.0
    for losses in _steps(update, shard, order, epoch, num_workers, planned_steps):
        sums += torch.stack([losses.prediction, losses.validity, losses.proximity])
        trained_rows += losses.num_rows
        stage_1 += losses.seconds_stage_1
        stage_2 += losses.seconds_stage_2
    together = torch.cat([sums, sums.new_tensor([trained_rows])])
    prediction, validity, proximity, num_rows = _over_workers(together, dist.ReduceOp.SUM).tolist()
    return {
        "num_rows": int(num_rows),
        "loss_pred": prediction / num_rows,
        "loss_valid": validity / num_rows,
        "loss_prox": proximity / num_rows,
        "seconds_stage_1": stage_1,
        "seconds_stage_2": stage_2,
    }


def _steps(
    update: TwoStageUpdate, shard: Shard, order: torch.Generator, epoch: int, num_workers: int, planned_steps: int
) -> Iterator[Losses]:
    device = ray.train.torch.get_device()
    batch_rows = math.ceil(update.settings.batch_size / num_workers)
    known = shard.num_batches(batch_rows)
    num_steps = None if known is None else int(_over_workers(torch.tensor([known]), dist.ReduceOp.MAX)[0])
    nothing = (update.net.layout.no_rows(device), torch.empty(0, dtype=torch.int64, device=device))
    batches = shard.batches(batch_rows, order)
    for step in itertools.count() if num_steps is None else range(num_steps):
        # A worker that has run out of rows goes on with empty batches: the others meet it in every step.
        rows, labels = next(batches, nothing)
        if num_steps is None and not _over_workers(torch.tensor([len(rows)]), dist.ReduceOp.SUM)[0]:
            break
        update.set_progress((epoch - 1 + min(step / planned_steps, 1.0)) / update.settings.epochs)
        yield update(rows, labels)
    yield update.finish()


def _over_workers(values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    if ray.train.get_context().get_world_size() > 1:
        values = values.to(ray.train.torch.get_device())
        dist.all_reduce(values, op=operation)
    return values.cpu()


def _mixed(*numbers: int) -> int:
    """One seed of several numbers."""
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number) % 2**63
    return seed


def _validate(explainer: Explainer, shard: Shard) -> dict[str, Any]:
    """Metrics over the validation rows of all workers, on the values that would be written."""
    sums = EvaluationSums()
    for rows in shard.chunks():
        sums.merge(evaluated(explainer, rows.encoded, rows.labels))
    numbers = torch.tensor(sums.numbers(), dtype=torch.float64)
    sums.set_numbers(_over_workers(numbers, dist.ReduceOp.SUM).tolist())
    return sums.summary()


def _report(metrics: dict[str, Any], update: TwoStageUpdate, history: list[dict[str, Any]], rank: int) -> None:
    if rank > 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as directory:
        save_state(directory, update, history)
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(directory))
