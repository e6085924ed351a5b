"""Work units over Ray Data: the dataset is the list of units, an actor reads its own rows."""

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext

from ray_cfnet.errors import JobError, RayCfnetError, last_line
from ray_cfnet.tables.plan import Unit


class _UnitActor:
    """Applies a function to one unit at a time. The units wait here; only their numbers travel."""

    def __init__(self, function: Callable[[Unit], Any], units: list[Unit]) -> None:
        self.function = function
        self.units = units

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        try:
            outcome = self.function(self.units[int(batch["item"][0])])
        except RayCfnetError as error:
            outcome = error  # as a value: Ray would wrap it and bury its message in a trace
        return {"outcome": [outcome]}


def map_units(units: list[Unit], function: Callable[[Unit], Any], num_actors: int | Literal["auto"]) -> Iterator[Any]:
    """Yields the function's outcome for every unit, as they get ready.

    Each actor has its own copy of `function`, so that it may load what it needs once. Raises what the
    function raised, if it is one of our errors, and JobError for anything else.
    """
    if not units:
        return
    quiet_ray_data()
    dataset = ray.data.from_items(list(range(len(units))), override_num_blocks=len(units))
    outcomes = dataset.map_batches(
        _UnitActor,
        fn_constructor_args=(function, units),
        batch_size=1,
        compute=ActorPoolStrategy(size=actor_count(num_actors, len(units))),
        num_cpus=1,
    )
    try:
        for row in outcomes.iter_rows():
            if isinstance(row["outcome"], RayCfnetError):
                raise row["outcome"]
            yield row["outcome"]
    except ray.exceptions.RayError as error:
        raise JobError(f"a worker failed: {last_line(error)}") from error


def actor_count(num_actors: int | Literal["auto"], num_units: int) -> int:
    """As asked, or one per CPU of the cluster; never more than there are units."""
    wanted = int(ray.cluster_resources().get("CPU", os.cpu_count() or 1)) if num_actors == "auto" else num_actors
    return max(1, min(wanted, num_units))


def quiet_ray_data() -> None:
    """Ray Data's own bars and notices count blocks; people want to see rows, and we show those."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
