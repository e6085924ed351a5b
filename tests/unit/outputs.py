"""Outputs of real explain runs, made in this process unless Ray is asked for: what the actors do, fast."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq

from ray_cfnet.cluster import score
from ray_cfnet.config import Config
from ray_cfnet.errors import RayCfnetError
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.plan import Unit, open_source
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, untrained_bundle


def _inline(units: list[Unit], function: Any, cluster: Any) -> Iterator[tuple[Unit, Any]]:
    for unit in units:
        try:
            outcome = function(unit)
        except RayCfnetError as error:
            outcome = error
        yield unit, outcome


def telling_bundle() -> Bundle:
    """Random weights whose ways reach about half of the rows, and predict both classes."""
    return untrained_bundle(7)


def explained_output(
    directory: Path,
    days: dict[str, pa.Table],
    bundle: Bundle | None = None,
    output_format: str = "parquet",
    on_ray: bool = False,
    **explain: Any,
) -> dict[str, Any]:
    """Adds each day's rows as a partition of a table below `directory` and explains them in one run.

    `explain`: settings of that section. Returns the run's manifest; the output is `directory / "out"`.
    """
    for day, rows in days.items():
        place = directory / "in" / f"ds={day}"
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows, place / "rows.parquet")
    whole = Config.model_validate(
        {
            **CONFIG.model_dump(mode="json"),
            "output": {"path": str(directory / "out"), "format": output_format},
            "cluster": {"num_actors": 1},
            "explain": {"max_reject_fraction": 1.0, **explain},
        }
    )
    place = (bundle or telling_bundle()).save(Location.of(directory / "models"))
    source = open_source(str(directory / "in"))
    given = replace(source, files=tuple(file for file in source.files if file.partition.removeprefix("ds=") in days))
    with nullcontext() if on_ray else patch.object(score, "unit_outcomes", _inline):
        return score.explain(given, place, whole, lambda *_: None)
