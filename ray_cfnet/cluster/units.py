"""Work units over Ray Data: the dataset is the list of units, an actor or a task reads its own rows."""

import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, TaskPoolStrategy

from ray_cfnet.cluster.session import is_alone
from ray_cfnet.config import Cluster
from ray_cfnet.errors import JobError, RayCfnetError, last_line
from ray_cfnet.logs import log
from ray_cfnet.tables.plan import Unit


class _AtUnit:
    """Applies a function to one unit at a time. The units wait here; only their numbers travel."""

    def __init__(self, function: Callable[[Unit], Any], units: list[Unit], at_once: int) -> None:
        self.function = function
        self.units = units
        self.at_once = at_once

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        number = int(batch["item"][0])
        likely_next = number + self.at_once
        if hasattr(self.function, "expect") and likely_next < len(self.units):
            self.function.expect(self.units[likely_next])
        try:
            outcome = self.function(self.units[number])
        except RayCfnetError as error:
            outcome = error  # as a value: Ray would wrap it and bury its message in a trace
        return {"outcome": [(number, outcome)]}


def map_units(
    units: list[Unit], function: Callable[[Unit], Any], cluster: Cluster, *, in_tasks: bool = False
) -> Iterator[Any]:
    """Yields the function's outcome for every unit, as they get ready.

    Raises what the function raised, if it is one of our errors, and JobError for anything else.
    """
    for _, outcome in unit_outcomes(units, function, cluster, in_tasks=in_tasks):
        if isinstance(outcome, RayCfnetError):
            raise outcome
        yield outcome


def unit_outcomes(
    units: list[Unit], function: Callable[[Unit], Any], cluster: Cluster, *, in_tasks: bool = False
) -> Iterator[tuple[Unit, Any | RayCfnetError]]:
    """Every unit and the function's outcome, or the error of ours that it raised, as they get ready.

    Each actor has its own copy of `function`, so that it may load what it needs once. A function with a method
    `expect` is told which unit is likely its next. One that loads nothing and needs no GPU may run `in_tasks`: Ray's
    idle processes take them at once, and keep what they have imported for the next. Raises JobError for errors that
    are not ours.
    """
    if not units:
        return
    _check_room(cluster)
    quiet_ray_data()
    dataset = ray.data.from_items(list(range(len(units))), override_num_blocks=len(units))
    if in_tasks:
        _, most = actor_range(cluster.model_copy(update={"actor_gpus": 0.0}), len(units))
        outcomes = dataset.map_batches(
            _AtUnit(function, units, most),
            batch_size=1,
            compute=TaskPoolStrategy(size=most),
            num_cpus=cluster.actor_cpus,
        )
    else:
        least, most = actor_range(cluster, len(units))
        outcomes = dataset.map_batches(
            _AtUnit,
            fn_constructor_args=(function, units, most),
            batch_size=1,
            compute=ActorPoolStrategy(min_size=least, max_size=most, max_tasks_in_flight_per_actor=2),
            num_cpus=cluster.actor_cpus,
            num_gpus=cluster.actor_gpus or None,
        )
    try:
        for row in outcomes.iter_rows():
            number, outcome = row["outcome"]
            yield units[number], outcome
    except ray.exceptions.RayError as error:
        raise JobError(f"a worker failed: {last_line(error)}") from error


def actor_range(cluster: Cluster, num_units: int) -> tuple[int, int]:
    """The least and the most actors: as asked, or as many as the cluster has room for; no more than units."""
    if isinstance(cluster.num_actors, list):
        least, most = cluster.num_actors
    elif cluster.num_actors == "auto":
        least = most = _room(cluster)
    else:
        least = most = cluster.num_actors
    return max(1, min(least, num_units)), max(1, min(most, num_units))


def _room(cluster: Cluster) -> int:
    resources = ray.cluster_resources()
    by_cpu = resources.get("CPU", os.cpu_count() or 1) / cluster.actor_cpus
    by_gpu = resources.get("GPU", 0.0) / cluster.actor_gpus if cluster.actor_gpus else by_cpu
    return int(min(by_cpu, by_gpu))


def _check_room(cluster: Cluster) -> None:
    """Raises JobError when no actor could ever start: Ray would wait for room without a word.

    Another machine may join a cluster; that is waited for, and told.
    """
    asked = {"CPU": cluster.actor_cpus, "GPU": cluster.actor_gpus}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(kind, 0.0) >= number for kind, number in asked.items()) for node in nodes):
        return
    problem = (
        f"no machine has room for an actor of {cluster.actor_cpus:g} CPUs and {cluster.actor_gpus:g} GPUs "
        "(cluster.actor_cpus, cluster.actor_gpus)"
    )
    if is_alone():
        raise JobError(f"{problem}; ask for less, or set RAY_ADDRESS to a cluster that has it")
    log.warning("%s: waiting for one that has", problem)


def quiet_ray_data() -> None:
    """Ray Data's own bars and notices count blocks; people want to see rows, and we show those."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
