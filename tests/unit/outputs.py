"""Outputs of real explain runs, made in this process: what the actors do, without Ray."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from ray_cfnet.cluster import score
from ray_cfnet.config import Config
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.plan import Unit, open_source
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, untrained_bundle


def _inline(units: list[Unit], function: Any, cluster: Any) -> Iterator[tuple[Unit, Any]]:
    for unit in units:
        yield unit, function(unit)


def explained_output(
    directory: Path, days: dict[str, pa.Table], bundle: Bundle | None = None, **settings: Any
) -> dict[str, Any]:
    """Explains each day's rows as a partition of one table below `directory`; returns the run's manifest."""
    bundle = bundle or untrained_bundle()
    for day, rows in days.items():
        place = directory / "in" / f"ds={day}"
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, place / "rows.parquet")
    whole = Config.model_validate(
        {
            **CONFIG.model_dump(mode="json"),
            "output": {"path": str(directory / "out")},
            "cluster": {"num_actors": 1},
            "explain": {"max_reject_fraction": 1.0, **settings},
        }
    )
    place = bundle.save(Location.of(directory / "models"))
    with patch.object(score, "unit_outcomes", _inline):
        source = open_source(str(directory / "in"))
        newest = source.within(f"ds={max(days)}") if len(days) == 1 else source
        return score.explain(newest, place, whole, lambda *_: None)
