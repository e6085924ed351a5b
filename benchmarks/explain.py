"""Explaining speed as ratios, each measured within one run: python benchmarks/explain.py roof memory refine job ...

roof     rows/s of the bare loop (read, reject, encode, predict, explain, prove, write; one process, one thread) /
         rows/s of pyarrow reading the same file and writing the same columns (target >= 0.35 at 8 and 30 features)
memory   peak resident memory of a process that explains one file with a single row group (<= 1.2 GiB, 10 M rows)

refine   rows/s of the bare loop with the settings that ship (refining, repairing) / with neither (>= 0.5 at 8 features,
         >= 0.25 at 30)

job      rows/s of the job with two actors / of two processes that run the bare loop over the same 64 files (>= 0.85)
actors   rows/s of the job with two actors / with one (>= 1.8 on two cores), beside what machine.py gains
scale    seconds per row of the job on the whole table / on a tenth of it (<= 1.1)
shipped  rows/s of the job with the settings that ship (refining, repairing, words) / without them
startup  seconds from the call, on a running Ray, until the first unit starts

The first three measure CPU time: one thread works, and a busy neighbour does not count. The others run real jobs, after
start-up and by the clock, and want a quiet machine. Everything is on local disk. `all` runs everything.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from machine import gains, two_over_one

from ray_cfnet.cluster.allocation import keep_freed_memory
from ray_cfnet.cluster.ingest import READ_ROWS
from ray_cfnet.cluster.ledger import UnitRecord
from ray_cfnet.cluster.session import ray_session
from ray_cfnet.commands import run_explain
from ray_cfnet.config import Config
from ray_cfnet.config import Explain as ExplainSettings
from ray_cfnet.explain.columns import dictionary_columns, output_schema, type_metadata
from ray_cfnet.explain.explainer import Explainer, tensors
from ray_cfnet.model.bundle import Bundle, Settings, make_net
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import TwoStageUpdate
from ray_cfnet.tables.codec import codes_of, encode
from ray_cfnet.tables.fit import TableStats, fit_schema
from ray_cfnet.tables.plan import Unit, open_source, read_unit
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.storage import Location

Explain = Callable[[pa.Table], pa.Table]
Benchmark = Callable[[Path, int, int], dict[str, float]]

LEVELS = ["none", "low", "middle", "high", "top"]
COLOURS = [f"colour-{i}" for i in range(12)]
REGIONS = [f"region-{i:02}" for i in range(50)]
MONTHS = [12, 24, 36, 48, 60]
KINDS: list[dict[str, Any]] = [
    {"kind": "continuous", "direction": "increase", "bounds": [18, 120]},
    {"kind": "categorical", "order": LEVELS, "direction": "increase"},
    {"kind": "continuous", "step": 100, "bounds": [0, None]},
    {"kind": "categorical"},
    {"kind": "continuous", "step": 0.1},
    {"kind": "categorical", "immutable": True},
    {"kind": "continuous"},
    {"kind": "categorical", "order": MONTHS},
]
"""The features of a generated table, in turn: whole numbers, steps, decimals, doubles; strings and integers."""

EPOCHS = 4


def config_of(num_features: int, shipped: bool = False) -> Config:
    features = {f"f{i:02}": KINDS[i % len(KINDS)] for i in range(num_features)}
    return Config.model_validate(
        {
            "table": {"path": "generated", "target": "y", "keys": ["id"], "features": features},
            "training": {"epochs": 1, "lambda_valid": 1.0},
            "explain": {} if shipped else {"refine": "none", "repair": False, "words": False},
        }
    )


def generated(num_features: int, num_rows: int, first_id: int) -> pa.Table:
    """Rows numbered from `first_id`: a key, the features, a string that is passed through, and the target."""
    rng = np.random.default_rng([num_features, first_id])
    columns: dict[str, Any] = {"id": np.arange(first_id, first_id + num_rows)}
    score = rng.logistic(0, 0.3, num_rows)
    for i in range(num_features):
        columns[f"f{i:02}"], effect = _feature(i % len(KINDS), num_rows, rng)
        score += effect
    columns["note"] = pa.array(COLOURS).take(pa.array(rng.integers(0, len(COLOURS), num_rows)))
    columns["y"] = (score > 0).astype(np.int64)
    return pa.table(columns)


def _feature(kind: int, num_rows: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """(values, what they add to the score: about 0 on average, about 1 apart)"""
    if kind % 2 == 0:
        effect = [rng.uniform(-1.7, 1.7, num_rows), rng.exponential(1.0, num_rows) - 1, rng.normal(0, 1, num_rows)]
        if kind == 0:
            return np.rint(54 + 20 * effect[0]).astype(np.int64), effect[0]
        if kind == 2:
            return (200 + 150 * effect[1]).astype(np.int64) * 100, effect[1]
        return (np.round(10 + 7 * effect[1], 1), effect[1]) if kind == 4 else (effect[2], effect[2])
    labels: list[Any] = [LEVELS, COLOURS, REGIONS, MONTHS][kind // 2]
    codes = rng.integers(0, len(labels), num_rows)
    return pa.array(labels).take(pa.array(codes)), 3.4 * codes / (len(labels) - 1) - 1.7


def write_input(place: Path, num_features: int, num_rows: int, row_group_rows: int) -> Path:
    """One file, written once and kept."""
    file = place / f"features-{num_features}-rows-{num_rows}-groups-{row_group_rows}.parquet"
    if not file.exists():
        place.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        with pq.ParquetWriter(unfinished, generated(num_features, 1, 0).schema, compression="zstd") as writer:
            for start in range(0, num_rows, row_group_rows):
                group = range(start, min(start + row_group_rows, num_rows))
                # In pieces: a row group of many rows need not be in memory at once to be random.
                pieces = [
                    generated(num_features, min(1_000_000, group.stop - first), first)
                    for first in range(group.start, group.stop, 1_000_000)
                ]
                writer.write_table(pa.concat_tables(pieces), row_group_size=row_group_rows)
        unfinished.rename(file)
    return file


def trained_bundle(num_features: int) -> Bundle:
    """A few epochs on 50,000 rows: of 200 counterfactuals one or two miss the other class, as with the shipped confs.

    Those are repaired where repairing is on, with the examples that the bundle keeps.
    """
    config = config_of(num_features)
    table = generated(num_features, 50_000, 0)
    stats = TableStats()
    stats.add(table, config.table, "generated")
    schema = fit_schema(config.table, table.schema, stats, 0.0)
    torch.manual_seed(0)
    net = make_net(schema, config.model)
    update = TwoStageUpdate(net, config.training, SoftRules(schema, net.layout), None)
    encoded, _ = encode(table, schema)
    rows = tensors(encoded, schema, torch.device("cpu"))
    labels = torch.from_numpy(codes_of(table.column("y").combine_chunks(), schema.target.classes))
    for epoch in range(EPOCHS):
        update.set_progress(epoch / EPOCHS)
        for picked in torch.randperm(len(rows)).split(128):
            update(rows.take(picked), labels[picked])
    bundle = Bundle(net.eval(), schema, Settings.of(config), {}, "generated")
    bundle.reference = Explainer(bundle, None).reference(encoded)
    return bundle


def read(file: Path, schema: TableSchema) -> Iterator[pa.Table]:
    source = open_source(str(file))
    dictionaries = [feature.name for feature in schema.categorical]
    for unit in source.units(500_000):
        yield from _read_unit(source.root, unit, source.schema.names, dictionaries)


def _read_unit(root: Location, unit: Unit, columns: list[str], dictionaries: list[str]) -> Iterator[pa.Table]:
    for _, _, batch in read_unit(root, unit, columns, dictionaries, READ_ROWS):
        yield pa.Table.from_batches([batch])


def loop(file: Path, output: Path, schema: TableSchema, explain: Explain) -> float:
    """Rows per CPU-second from file to file, with what `explain` makes of each batch."""
    started, num_rows = time.process_time(), 0
    writer: pq.ParquetWriter | None = None
    for table in read(file, schema):
        explained = explain(table)
        if writer is None:
            declared = output_schema(schema, table.schema)
            repeating = dictionary_columns(schema, declared)
            writer = pq.ParquetWriter(
                output, explained.schema, compression="zstd", store_schema=False, use_dictionary=repeating
            )
            writer.add_key_value_metadata(type_metadata(declared))
        writer.write_table(explained)
        num_rows += len(table)
    if writer is not None:
        writer.close()
    return num_rows / (time.process_time() - started)


def turn_by_turn(work: Path, file: Path, schema: TableSchema, steps: dict[str, Explain]) -> dict[str, float]:
    """Rows per CPU-second of two steps and the ratio of the first to the second."""
    speeds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(3):
        # Turn by turn, so that a busy neighbour slows both alike.
        for name, step in steps.items():
            speeds[name].append(loop(file, work / "output.parquet", schema, step))
    one, other = speeds.values()
    rows_per_s = {f"{name}_rows_per_s": statistics.median(taken) for name, taken in speeds.items()}
    return {**rows_per_s, "ratio": statistics.median(a / b for a, b in zip(one, other, strict=True))}


def roof_ratio(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    file = write_input(work, num_features, num_rows, 500_000)
    bundle = trained_bundle(num_features)
    explainer = Explainer(bundle, None)
    made = explainer.explain_table(next(read(file, bundle.schema)), "run")[0]
    steps: dict[str, Explain] = {
        "bare": lambda table: explainer.explain_table(table, "run")[0],
        "roof": lambda table: made.slice(0, len(table)),
    }
    return {"features": num_features, **turn_by_turn(work, file, bundle.schema, steps)}


def refine_ratio(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    file = write_input(work, num_features, num_rows, 500_000)
    bundle = trained_bundle(num_features)
    explainers = {"refined": Explainer(bundle, None, ExplainSettings()), "bare": Explainer(bundle, None)}
    steps: dict[str, Explain] = {
        name: lambda table, explainer=explainer: explainer.explain_table(table, "run")[0]  # type: ignore[misc]
        for name, explainer in explainers.items()
    }
    return {"features": num_features, **turn_by_turn(work, file, bundle.schema, steps)}


def peak_memory(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    """A process of its own explains the file, so that nothing else counts."""
    write_input(work, num_features, num_rows, num_rows)
    options = {"features": num_features, "rows": num_rows, "work": work}
    command = [sys.executable, __file__, "memory-child", *(f"--{name}={value}" for name, value in options.items())]
    told = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    result: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return {key: value for key, value in result.items() if key != "benchmark"}


def explain_in_child(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    file = write_input(work, num_features, num_rows, num_rows)
    bundle = trained_bundle(num_features)
    explainer = Explainer(bundle, None)
    before = peak_gib()
    speed = loop(file, work / "output.parquet", bundle.schema, lambda table: explainer.explain_table(table, "run")[0])
    return {"features": num_features, "peak_gib": peak_gib(), "before_gib": before, "rows_per_s": speed}


@dataclass
class Watch:
    """When the first unit of a run started, and when the last one ended."""

    called: float = field(default_factory=time.perf_counter)
    first_start: float = 0.0
    last_end: float = 0.0
    rows: int = 0

    def __call__(self, record: UnitRecord, *_: object) -> None:
        self.last_end = time.perf_counter()
        self.first_start = min(self.first_start or self.last_end, self.last_end - record.seconds)
        self.rows += record.rows_in

    @property
    def rows_per_s(self) -> float:
        return self.rows / (self.last_end - self.first_start)


def write_files(work: Path, num_features: int, num_rows: int) -> Path:
    """A table of 64 files."""
    table = work / f"features-{num_features}-rows-{num_rows}-files-64"
    each = num_rows // 64
    for number in range(64):
        file = table / f"part-{number:02}.parquet"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            made = generated(num_features, each, number * each)
            pq.write_table(made, file.with_suffix(".unfinished"), compression="zstd")
            file.with_suffix(".unfinished").rename(file)
    return table


def run_job(work: Path, num_features: int, num_rows: int, num_actors: int, shipped: bool = False) -> Watch:
    """One run after a short one: Ray's own processes are warm then."""
    config = config_of(num_features, shipped)
    bundle = trained_bundle(num_features).save(Location.of(work / "models"))
    watch = Watch()
    for rows in (64_000, num_rows):
        table = write_files(work, num_features, rows)
        shutil.rmtree(work / "out", ignore_errors=True)
        places = {"table": {"path": str(table)}, "output": {"path": str(work / "out")}}
        cluster = {"cluster": {"num_actors": num_actors}}
        settings = {name: {**config.model_dump()[name], **given} for name, given in (places | cluster).items()}
        watch = Watch()
        run_explain(Config.model_validate({**config.model_dump(), **settings}), str(bundle), None, watch)
    return watch


def bare_rows_per_s(work: Path, num_features: int, num_rows: int) -> float:
    """Two processes, each with every other file; the slower one counts."""
    write_files(work, num_features, num_rows)
    options = {"features": num_features, "rows": num_rows, "work": work}
    children = [
        subprocess.Popen(  # noqa: S603
            [sys.executable, __file__, f"bare-child-{n}", *(f"--{name}={value}" for name, value in options.items())],
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in (0, 1)
    ]
    seconds = [json.loads(child.communicate()[0].splitlines()[-1])["seconds"] for child in children]
    return num_rows / max(seconds)


def bare_in_child(number: int) -> Benchmark:
    def run(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
        bundle = trained_bundle(num_features)
        explainer = Explainer(bundle, None)
        files = sorted(write_files(work, num_features, num_rows).glob("*.parquet"))[number::2]
        started = time.perf_counter()
        for file in files:
            output = work / f"output-{number}.parquet"
            loop(file, output, bundle.schema, lambda table: explainer.explain_table(table, "run")[0])
        return {"seconds": time.perf_counter() - started}

    return run


def job_ratio(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    bare = bare_rows_per_s(work, num_features, num_rows)
    with ray_session():
        job = run_job(work, num_features, num_rows, 2).rows_per_s
    return {"features": num_features, "bare_rows_per_s": bare, "job_rows_per_s": job, "ratio": job / bare}


def actors_ratio(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    with ray_session():
        before = two_over_one()
        speeds = [run_job(work, num_features, num_rows, actors).rows_per_s for actors in (1, 2) * 3 + (1,)]
        machine = (before + two_over_one()) / 2
    speeds_of = {"rows_per_s_1": statistics.median(speeds[::2]), "rows_per_s_2": statistics.median(speeds[1::2])}
    return {"features": num_features, **speeds_of, "ratio": statistics.median(gains(speeds)), "machine_ratio": machine}


def scale_ratio(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    with ray_session():
        small, large = (run_job(work, num_features, rows, 2).rows_per_s for rows in (num_rows // 10, num_rows))
    return {"features": num_features, "rows_per_s_tenth": small, "rows_per_s": large, "ratio": small / large}


def shipped_ratio(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    with ray_session():
        # Turn by turn, so that a busy neighbour slows both alike.
        speeds = [run_job(work, num_features, num_rows, 2, shipped).rows_per_s for shipped in (False, True) * 2]
    plain, shipped = max(speeds[::2]), max(speeds[1::2])
    return {"features": num_features, "rows_per_s": plain, "rows_per_s_shipped": shipped, "ratio": shipped / plain}


def startup_seconds(work: Path, num_features: int, num_rows: int) -> dict[str, float]:
    with ray_session():
        watch = run_job(work, num_features, min(num_rows, 640_000), 2)
    return {"features": num_features, "seconds": watch.first_start - watch.called}


def peak_gib() -> float:
    """Not from getrusage: there a child starts with the peak of the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


BENCHMARKS: dict[str, Benchmark] = {
    "roof": roof_ratio,
    "memory": peak_memory,
    "refine": refine_ratio,
    "job": job_ratio,
    "actors": actors_ratio,
    "scale": scale_ratio,
    "shipped": shipped_ratio,
    "startup": startup_seconds,
}
CHILDREN = {"memory-child": explain_in_child, "bare-child-0": bare_in_child(0), "bare-child-1": bare_in_child(1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="+", choices=["all", *BENCHMARKS, *CHILDREN], metavar="|".join(BENCHMARKS))
    parser.add_argument("--rows", type=int, default=2_000_000, help="the targets are meant for 20,000,000")
    parser.add_argument("--features", type=int, nargs="+", default=[8, 30])
    parser.add_argument("--work", type=Path, default=Path("out/benchmarks"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    keep_freed_memory()  # as actors do
    for name in BENCHMARKS if arguments.which == ["all"] else arguments.which:
        for num_features in arguments.features:
            result = {**BENCHMARKS, **CHILDREN}[name](arguments.work.absolute(), num_features, arguments.rows)
            rounded = {key: round(value, 4) for key, value in result.items()}
            print(json.dumps({"benchmark": name, **rounded}), flush=True)


if __name__ == "__main__":
    main()
