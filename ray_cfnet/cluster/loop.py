"""What each Ray Train worker does: its shard, the epochs, validation over all workers, a checkpoint each."""

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray.train
import ray.train.torch
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from ray_cfnet.cluster.ingest import LabelledRows, concatenated, from_arrow
from ray_cfnet.explain.evaluation import evaluated
from ray_cfnet.explain.explainer import Explainer, tensors
from ray_cfnet.model.bundle import Bundle, Settings, desired_index, make_net
from ray_cfnet.model.metrics import selection_score
from ray_cfnet.model.net import CounterNet
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import TwoStageUpdate, alone
from ray_cfnet.tables.schema import TableSchema

WEIGHTS_FILE = "model.safetensors"


def train_worker(arguments: dict[str, Any]) -> None:
    """Runs in every worker process. `arguments`: schema (JSON), settings (JSON), board (progress)."""
    schema = TableSchema.from_json(arguments["schema"])
    settings = Settings.model_validate_json(arguments["settings"])
    device = ray.train.torch.get_device()
    torch.set_num_threads(1)  # layers this small lose more to a second thread than they gain
    rank, num_workers = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()

    torch.manual_seed(settings.training.seed)  # equal weights everywhere
    net = make_net(schema, settings.model).to(device)
    torch.manual_seed(settings.training.seed * 1_000_003 + rank)  # but a dropout of its own in each worker
    desired = desired_index(settings.desired, schema)
    rules = SoftRules(schema, net.layout).to(device)
    update = TwoStageUpdate(net, settings.training, rules, desired, average_gradients if num_workers > 1 else alone)

    training = _shard("train", schema)
    validation = _shard("validation", schema)
    rows, labels = tensors(training.encoded, schema, device), torch.from_numpy(training.targets.copy()).to(device)
    batch_rows = math.ceil(settings.training.batch_size / num_workers)
    num_steps = int(_over_workers(torch.tensor([math.ceil(len(training) / batch_rows)]), dist.ReduceOp.MAX)[0])

    for epoch in range(1, settings.training.epochs + 1):
        started = time.perf_counter()
        order = torch.randperm(len(training), generator=_epoch_generator(settings.training.seed, epoch, rank)).to(
            device
        )
        sums = torch.zeros(4, dtype=torch.float64)
        for step in range(num_steps):
            # A worker that has run out of rows goes on with empty batches: the others wait for it in `sync`.
            picked = order[step * batch_rows : (step + 1) * batch_rows]
            update.set_progress((epoch - 1 + step / num_steps) / settings.training.epochs)
            losses = update(rows.take(picked), labels[picked])
            sums += torch.stack([losses.num_rows, losses.prediction, losses.validity, losses.proximity]).cpu().double()
        num_rows, prediction, validity, proximity = _over_workers(sums, dist.ReduceOp.SUM).tolist()
        seconds = time.perf_counter() - started
        summary = _validate(net, schema, settings, desired, validation)
        metrics = {
            "epoch": epoch,
            "loss_pred": prediction / num_rows,
            "loss_valid": validity / num_rows,
            "loss_prox": proximity / num_rows,
            "accuracy": summary["accuracy"],
            "validity": summary["cf"]["validity"],
            "fcf_validity": summary["fcf"]["validity"],
            "proximity": summary["cf"]["proximity"],
            "rows_per_s": num_rows / seconds,
            "score": selection_score(summary),
        }
        _report(metrics, net, rank)
        if rank == 0:
            arguments["board"].put.remote(metrics)


def average_gradients(gradients: list[Tensor], num_rows: int) -> None:
    """The mean over the rows of all workers, in one collective: workers may bring unequal numbers of rows."""
    flat = torch.cat([*(gradient.flatten() * num_rows for gradient in gradients), gradients[0].new_tensor([num_rows])])
    dist.all_reduce(flat)
    flat /= flat[-1].clone()
    position = 0
    for gradient in gradients:
        gradient.copy_(flat[position : position + gradient.numel()].view_as(gradient))
        position += gradient.numel()


def _over_workers(values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    if ray.train.get_context().get_world_size() > 1:
        values = values.to(ray.train.torch.get_device())
        dist.all_reduce(values, op=operation)
    return values.cpu()


def _shard(name: str, schema: TableSchema) -> LabelledRows:
    """This worker's rows, in memory."""
    batches = ray.train.get_dataset_shard(name).iter_batches(batch_size=None, batch_format="pyarrow")
    return concatenated(
        [from_arrow(batch, schema) for batch in batches if isinstance(batch, pa.Table) and len(batch)], schema
    )


def _epoch_generator(seed: int, epoch: int, rank: int) -> torch.Generator:
    """The order of an epoch depends on nothing that happened before it."""
    return torch.Generator().manual_seed((seed * 1_000_003 + epoch) * 1_000_003 + rank)


def _validate(
    net: CounterNet, schema: TableSchema, settings: Settings, desired: int | None, rows: LabelledRows
) -> dict[str, Any]:
    """Metrics over the validation rows of all workers, on the values that would be written."""
    explainer = Explainer(Bundle(net, schema, settings, {}), desired)
    sums = evaluated(explainer, rows.encoded, rows.labels)
    numbers = torch.tensor(sums.numbers(), dtype=torch.float64)
    sums.set_numbers(_over_workers(numbers, dist.ReduceOp.SUM).tolist())
    return sums.summary()


def _report(metrics: dict[str, Any], net: CounterNet, rank: int) -> None:
    if rank > 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as directory:
        weights = {name: weight.detach().cpu() for name, weight in net.state_dict().items()}
        safetensors.torch.save_file(weights, str(Path(directory) / WEIGHTS_FILE))
        Path(directory, "state.json").write_text(json.dumps(metrics))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(directory))
