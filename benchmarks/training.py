"""Training speed as ratios, each measured within one run: python benchmarks/training.py step loop workers ingest memory

step     two-stage step / step of the predictor alone in plain torch, batch 128 (target <= 2.2; the paper: about 3)
loop     seconds per epoch of a Ray Train run / of the same loop in plain torch, after start-up (<= 1.15)
workers  rows/s of 2 workers / of 1, batches of 4096 rows a worker, and of 4096 over both (each >= 1.6 on two cores),
         beside what machine.py gains
ingest   rows/s streamed / from memory, batch 4096 (>= 0.7)
memory   peak RSS of a streaming worker on all rows / on a quarter of them (<= 1.15)
"""

import argparse
import json
import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from machine import gains, two_over_one
from torch import nn

from ray_cfnet.cluster.session import ray_session
from ray_cfnet.commands import run_train
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.explain.evaluation import evaluated
from ray_cfnet.explain.explainer import Explainer, tensors
from ray_cfnet.model.bundle import Bundle, Settings, desired_index, make_net
from ray_cfnet.model.net import Rows
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import TwoStageUpdate
from ray_cfnet.tables.codec import codes_of, encode
from ray_cfnet.tables.fit import TableStats, fit_schema
from ray_cfnet.tables.samples import loans_table

CONF = Path(__file__).parent.parent / "conf" / "loans.yaml"


def config_of(work: Path, *overrides: str) -> Config:
    return load_config(CONF, [f"table.path={work}/loans", f"output.path={work}/out", *overrides])


def plain(config: Config, num_rows: int) -> tuple[Bundle, TwoStageUpdate, Rows, torch.Tensor, Any]:
    """The same net and update without Ray, on rows of the same table."""
    table = loans_table(num_rows, 0, 0)
    stats = TableStats()
    stats.add(table, config.table, "generated")
    schema = fit_schema(config.table, table.schema, stats, 0.0)
    torch.manual_seed(0)
    net = make_net(schema, config.model)
    update = TwoStageUpdate(
        net, config.training, SoftRules(schema, net.layout), desired_index(config.explain.desired, schema)
    )
    encoded, _ = encode(table, schema)
    labels = torch.from_numpy(codes_of(table.column("decision").combine_chunks(), schema.target.classes))
    bundle = Bundle(net, schema, Settings.of(config), {})
    return bundle, update, tensors(encoded, schema, torch.device("cpu")), labels, encoded


def predictor_step(update: TwoStageUpdate) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """A step of the predictor alone, as a user of torch would write it: one-hot rows, backward, clip, Adam."""
    sizes = [update.net.layout.width, 50, 10, 10]
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(sizes):
        layers += [nn.Linear(width_in, width_out), nn.LeakyReLU(), nn.Dropout(0.3)]
    predictor = nn.Sequential(*layers, nn.Linear(sizes[-1], 2), nn.Softmax(dim=1))
    optimizer = torch.optim.Adam(predictor.parameters(), lr=0.003)

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(predictor(x)[:, 1], y).backward()
        nn.utils.clip_grad_norm_(predictor.parameters(), 0.5)
        optimizer.step()

    return step


def step_ratio(work: Path) -> dict[str, float]:
    _, update, rows, labels, _ = plain(config_of(work, "training.batch_size=128"), 25_600)
    slices = [slice(i, i + 128) for i in range(0, 25_600, 128)]
    batches = [(rows.take(part), labels[part]) for part in slices]
    dense = [(update.net.layout.dense(batch), y.float()) for batch, y in batches]
    predictor = predictor_step(update)
    steps: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "predictor_in_torch": (predictor, dense),
        "stage_1": (lambda batch, y: update._stage_1(batch, update.net.layout.dense(batch), y), batches),
        "both_stages": (update, batches),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(9):
        # Turn by turn, so that a busy neighbour slows all alike.
        for name, (step, arguments) in steps.items():
            started = time.perf_counter()
            for argument in arguments:
                step(*argument)
            seconds[name].append(time.perf_counter() - started)
    ms = {f"{name}_ms": statistics.median(taken) / len(batches) * 1e3 for name, taken in seconds.items()}
    both = ms["both_stages_ms"]
    return {**ms, "ratio": both / ms["predictor_in_torch_ms"], "ratio_to_stage_1": both / ms["stage_1_ms"]}


def loop_ratio(work: Path) -> dict[str, float]:
    """40,000 loans; validation is in both. The plain loop runs before and after: speeds drift on shared machines."""
    config = config_of(work, "training.epochs=24", "training.batch_size=128")
    bundle, update, rows, labels, encoded = plain(config, 32_000)
    explainer = Explainer(bundle, update.desired)

    def plain_epoch() -> float:
        started = time.perf_counter()
        for picked in torch.randperm(28_000).split(128):
            update(rows.take(picked), labels.index_select(0, picked))
        evaluated(explainer, encoded.take(slice(28_000, None)), labels[28_000:].numpy())
        return time.perf_counter() - started

    alone = [plain_epoch() for _ in range(12)]
    ended: list[float] = []
    with ray_session(min_cpus=3):
        run_train(config, lambda _: ended.append(time.perf_counter()))
    alone += [plain_epoch() for _ in range(12)]
    # Means: epochs are heard of a few times a second, which rounds single ones.
    with_ray = (ended[-1] - ended[0]) / (len(ended) - 1)
    plain_s = statistics.mean(alone)
    return {"ray_epoch_s": with_ray, "plain_epoch_s": plain_s, "ratio": with_ray / plain_s}


def rows_per_s(work: Path, rows: int, *overrides: str, batch_size: int = 4096) -> float:
    sizes = [f"table.sample.rows={rows}", f"training.batch_size={batch_size}", "training.epochs=6"]
    speeds: list[float] = []
    shutil.rmtree(work / "out", ignore_errors=True)  # a run that was stopped would go on, and tell other epochs
    with ray_session(min_cpus=3):  # each training has a Ray of its own, as with `ray-cfnet train`
        run_train(config_of(work, *sizes, *overrides), lambda metrics: speeds.append(metrics["rows_per_s"]))
    return statistics.median(speeds[1:])


def workers_ratio(work: Path, rows: int) -> dict[str, float]:
    def speed(workers: int, batch_size: int) -> float:
        return rows_per_s(work, rows, f"cluster.num_workers={workers}", batch_size=batch_size)

    before = two_over_one()
    # In turn: one worker, two with twice the batch, one, two with the same batch, one, ...
    speeds = [speed(1, 4096)]
    for batch_size in (8192, 4096) * 3:
        speeds += [speed(2, batch_size), speed(1, 4096)]
    machine = (before + two_over_one()) / 2
    ratios, twos = gains(speeds), speeds[1::2]
    return {
        "rows_per_s_1": statistics.median(speeds[::2]),
        "rows_per_s_2": statistics.median(twos[::2]),
        "ratio": statistics.median(ratios[::2]),
        "machine_ratio": machine,
        "rows_per_s_2_same_batch": statistics.median(twos[1::2]),
        "ratio_same_batch": statistics.median(ratios[1::2]),
    }


def ingest_ratio(work: Path, rows: int) -> dict[str, float]:
    memory, stream = (rows_per_s(work, rows, f"training.ingest={kind}") for kind in ("memory", "stream"))
    return {"rows_per_s_memory": memory, "rows_per_s_stream": stream, "ratio": stream / memory}


def train_workers() -> Iterator[Path]:
    """/proc directories of the training workers that this process's Ray has started."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if "RayTrainWorker" not in (process / "cmdline").read_text():
                continue
            parent = process
            while parent.name not in ("0", "1", str(os.getpid())):
                parent = Path("/proc") / (parent / "stat").read_text().rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        if parent.name == str(os.getpid()):
            yield process


@contextmanager
def peak_memory() -> Iterator[dict[str, float]]:
    """MB of the largest training worker: all of it (rss, with pages of Ray's object store) and its own (anon)."""
    peak, done = {"rss": 0.0, "anon": 0.0}, threading.Event()

    def watch() -> None:
        while not done.wait(0.2):
            for process in train_workers():
                try:
                    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
                except OSError:
                    continue
                for name, field in (("rss", "VmRSS"), ("anon", "RssAnon")):
                    peak[name] = max(peak[name], int(lines.get(field, "0 kB").split()[0]) / 1000)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def memory_ratio(work: Path, rows: int) -> dict[str, float]:
    result: dict[str, float] = {}
    for name, num_rows in (("quarter", rows // 4), ("all", rows)):
        with peak_memory() as peak:
            rows_per_s(work / name, num_rows, "training.ingest=stream", "training.epochs=2")
        result |= {f"{kind}_mb_{name}": megabytes for kind, megabytes in peak.items()}
    ratios = {f"ratio_{kind}": result[f"{kind}_mb_all"] / result[f"{kind}_mb_quarter"] for kind in ("rss", "anon")}
    return {**result, **ratios}


MEASURED: dict[str, Callable[[Path, int], dict[str, float]]] = {
    "step": lambda work, _: step_ratio(work),
    "loop": lambda work, _: loop_ratio(work),
    "workers": workers_ratio,
    "ingest": ingest_ratio,
    "memory": memory_ratio,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="+", choices=["all", *MEASURED], metavar="|".join(MEASURED))
    parser.add_argument("--rows", type=int, default=2_000_000, help="for workers, ingest and memory")
    parser.add_argument("--work", type=Path, default=Path("out/benchmarks"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in MEASURED if arguments.which == ["all"] else arguments.which:
        result = MEASURED[name](arguments.work, arguments.rows)
        print(json.dumps({"benchmark": name, **{key: round(value, 4) for key, value in result.items()}}), flush=True)


if __name__ == "__main__":
    main()
