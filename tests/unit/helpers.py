"""A small model on a small table, made fast and without Ray."""

from functools import cache

import numpy as np
import pyarrow as pa
import torch

from ray_cfnet.config import Config
from ray_cfnet.explain.explainer import tensors
from ray_cfnet.model.bundle import Bundle, Settings, make_net
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.model.step import TwoStageUpdate
from ray_cfnet.tables.codec import codes_of, encode
from ray_cfnet.tables.fit import TableStats, fit_schema
from ray_cfnet.tables.schema import TableSchema

CONFIG = Config.model_validate(
    {
        "table": {
            "path": "nowhere",
            "target": "approved",
            "keys": ["id"],
            "features": {
                "age": {"kind": "continuous", "direction": "increase", "bounds": [18, 90]},
                "income": {"kind": "continuous", "step": 100},
                "rate": {"kind": "continuous"},
                "grade": {"kind": "categorical", "order": ["low", "mid", "high"], "direction": "increase"},
                "housing": {"kind": "categorical"},
                "gender": {"kind": "categorical", "immutable": True},
            },
        },
        "model": {"encoder": [16, 6], "predictor": [6], "generator": [12]},
    }
)


def people(num_rows: int, seed: int = 0) -> pa.Table:
    """Rows of the table that CONFIG describes."""
    rng = np.random.default_rng(seed)
    income = rng.integers(100, 900, num_rows) * 100
    grade = rng.integers(0, 3, num_rows)
    return pa.table(
        {
            "id": np.arange(num_rows),
            "age": rng.integers(18, 81, num_rows).astype(np.int32),
            "income": income,
            "rate": np.round(rng.random(num_rows) * 9 + 1, 2),
            "grade": pa.array(["low", "mid", "high"]).take(pa.array(grade)),
            "housing": pa.array(["rent", "own", "family"]).take(pa.array(rng.integers(0, 3, num_rows))),
            "gender": pa.array(["f", "m"]).take(pa.array(rng.integers(0, 2, num_rows))),
            "note": pa.array([f"row {i}" for i in range(num_rows)]),
            "approved": (income + 15_000 * grade + rng.normal(0, 9_000, num_rows) > 60_000).astype(np.int64),
        }
    )


def people_schema(table: pa.Table | None = None) -> TableSchema:
    table = people(500) if table is None else table
    stats = TableStats()
    stats.add(table, CONFIG.table, "people.parquet")
    return fit_schema(CONFIG.table, table.schema, stats, 0.0)


@cache
def trained_bundle() -> Bundle:
    """A few hundred steps: it predicts well, and most of its counterfactuals are valid. Copy it before a change."""
    table = people(4_000)
    schema = people_schema(table)
    torch.manual_seed(0)
    net = make_net(schema, CONFIG.model)
    update = TwoStageUpdate(net, CONFIG.training, SoftRules(schema, net.layout), None)
    rows = tensors(encode(table, schema)[0], schema, torch.device("cpu"))
    labels = torch.from_numpy(codes_of(table.column("approved").combine_chunks(), schema.target.classes))
    for _ in range(12):
        for picked in torch.randperm(len(labels)).split(64):
            update(rows.take(picked), labels[picked])
    return Bundle(net.eval(), schema, Settings.of(CONFIG), {})


def untrained_bundle(seed: int = 0) -> Bundle:
    """Random weights: half of its counterfactuals are invalid, which tests of flags want."""
    torch.manual_seed(seed)
    schema = people_schema()
    return Bundle(make_net(schema, CONFIG.model).eval(), schema, Settings.of(CONFIG), {"rows": 1, "accuracy": 0.5})
