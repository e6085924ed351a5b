"""A small real output: written and committed by the code that writes them, without Ray."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ray_cfnet.cluster.commit import DeltaCommit, ParquetCommit
from ray_cfnet.cluster.explain_unit import ExplainUnit
from ray_cfnet.cluster.ledger import RunFiles
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.explain.columns import output_schema
from ray_cfnet.model.bundle import Bundle, Settings, make_net
from ray_cfnet.tables.delta import prepare_delta
from ray_cfnet.tables.fit import TableStats, fit_schema
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.samples import make_sample
from ray_cfnet.tables.storage import Location

CONF = Path(__file__).parents[2] / "conf"
RUN_ID = "0123456789abcdef"


@dataclass
class LoansOutput:
    """800 explained loan applications of eight days; the first of each day is rejected: it has no age."""

    directory: Path

    @property
    def output(self) -> Path:
        return self.directory / "out"

    @cached_property
    def config(self) -> Config:
        overrides = [f"table.path={self.directory}/loans", "table.sample.rows=800"]
        return load_config(CONF / "loans.yaml", overrides)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Read back file by file, with the name of the partition."""
        files = sorted(self.output.glob("ds=*/*.parquet"))
        return [
            {**row, "ds": file.parent.name}
            for file in files
            for row in pq.read_table(file, partitioning=None).to_pylist()
        ]

    def write(self, run_id: str = RUN_ID, delta: bool = False) -> "LoansOutput":
        config = self.config
        make_sample(config.table)
        stats = TableStats()
        for file in sorted((self.directory / "loans").glob("ds=*/*.parquet")):
            table = pq.read_table(file, partitioning=None)
            stats.add(table, config.table, str(file))
            ages = pa.array([None, *table.column("age").to_pylist()[1:]], type=pa.int64())
            pq.write_table(table.set_column(table.column_names.index("age"), "age", ages), file)
        source = open_source(config.table.path)
        torch.manual_seed(1)  # one that leaves rows of each status
        schema = fit_schema(config.table, source.schema, stats, 0.1)
        bundle = Bundle(make_net(schema, config.model).eval(), schema, Settings.of(config), {"rows": 1})
        place = bundle.save(Location.of(self.output) / "_models")
        run = RunFiles(Location.of(self.output), run_id)
        never = run.staging / "stop"
        texts = (config.explain, config.words)
        worker = ExplainUnit(source.root, source.schema, place, bundle.desired, *texts, run, never, 1, False)
        written = output_schema(schema, source.schema)
        if delta:
            prepare_delta(run.output, written, source.partitions)
        commit = DeltaCommit(run, written) if delta else ParquetCommit(run)
        for unit in source.units(500_000):
            record = worker(unit)
            assert record is not None
            commit.partition(unit.partition, [record])
        commit.end()
        manifest = {"version": 2, "state": "complete", "model_id": bundle.id, "bundle": str(place), "run_id": run_id}
        (run.directory / "manifest.json").write_bytes(json.dumps(manifest).encode())
        return self
