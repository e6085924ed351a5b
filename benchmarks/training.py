"""Training speed as ratios, each measured within one run: python benchmarks/training.py step loop workers ingest

step     two-stage step / predictor step, batch 128 (target <= 2.2; the paper: about 3)
loop     seconds per epoch of a Ray Train run / of the same loop in plain torch, after start-up (<= 1.15)
workers  rows/s of 2 workers / of 1, batch 4096 (>= 1.6 on two cores)
ingest   rows/s streamed / from memory, batch 4096 (>= 0.7)
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from ray_cfnet.cluster.session import ray_session
from ray_cfnet.commands import run_train
from ray_cfnet.config import Config
from ray_cfnet.configfile import load_config
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


def step_ratio(work: Path) -> dict[str, float]:
    _, update, rows, labels, _ = plain(config_of(work, "training.batch_size=128"), 25_600)
    batches = [(rows.take(slice(i, i + 128)), labels[i : i + 128]) for i in range(0, 25_600, 128)]
    seconds: dict[str, list[float]] = {"base": [], "both": []}
    for _ in range(9):
        # Turn by turn, so that a busy neighbour slows both alike.
        started = time.perf_counter()
        for batch in batches:
            update._stage_1(*batch)
        seconds["base"].append(time.perf_counter() - started)
        started = time.perf_counter()
        for batch in batches:
            update(*batch)
        seconds["both"].append(time.perf_counter() - started)
    base, both = (statistics.median(seconds[name]) / len(batches) for name in ("base", "both"))
    return {"base_step_ms": base * 1e3, "two_stage_step_ms": both * 1e3, "ratio": both / base}


def loop_ratio(work: Path) -> dict[str, float]:
    """40,000 loans, 10 epochs each; validation is in both."""
    config = config_of(work, "training.epochs=10", "training.batch_size=128")
    times: list[float] = []
    run_train(config, lambda _: times.append(time.perf_counter()))
    with_ray = (times[-1] - times[0]) / (len(times) - 1)
    bundle, update, rows, labels, encoded = plain(config, 32_000)
    explainer = Explainer(bundle, update.desired)
    started = time.perf_counter()
    for _ in range(5):
        for picked in torch.randperm(28_000).split(128):
            update(rows.take(picked), labels[picked])
        evaluated(explainer, encoded.take(slice(28_000, None)), labels[28_000:].numpy())
    alone = (time.perf_counter() - started) / 5
    return {"ray_epoch_s": with_ray, "plain_epoch_s": alone, "ratio": with_ray / alone}


def rows_per_s(work: Path, rows: int, *overrides: str) -> float:
    config = config_of(work, f"table.sample.rows={rows}", "training.batch_size=4096", "training.epochs=4", *overrides)
    speeds: list[float] = []
    run_train(config, lambda metrics: speeds.append(metrics["rows_per_s"]))
    return statistics.median(speeds[1:])


def workers_ratio(work: Path, rows: int) -> dict[str, float]:
    one, two = (rows_per_s(work, rows, f"cluster.num_workers={n}") for n in (1, 2))
    return {"rows_per_s_1": one, "rows_per_s_2": two, "ratio": two / one}


def ingest_ratio(work: Path, rows: int) -> dict[str, float]:
    memory, stream = (rows_per_s(work, rows, f"training.ingest={kind}") for kind in ("memory", "stream"))
    return {"rows_per_s_memory": memory, "rows_per_s_stream": stream, "ratio": stream / memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="+", choices=["step", "loop", "workers", "ingest"])
    parser.add_argument("--rows", type=int, default=2_000_000, help="for workers and ingest")
    parser.add_argument("--work", type=Path, default=Path("out/benchmarks"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.which:
        if name == "step":
            result = step_ratio(arguments.work)
        else:
            with ray_session(min_cpus=3):
                if name == "loop":
                    result = loop_ratio(arguments.work)
                elif name == "workers":
                    result = workers_ratio(arguments.work, arguments.rows)
                else:
                    result = ingest_ratio(arguments.work, arguments.rows)
        print(json.dumps({"benchmark": name, **{key: round(value, 4) for key, value in result.items()}}), flush=True)


if __name__ == "__main__":
    main()
