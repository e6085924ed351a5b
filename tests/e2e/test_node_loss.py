"""A training run that loses a node goes on from its last checkpoint and ends with the same model.

Several raylets on this machine stand for machines; a raylet killed with -9 takes its workers and its part of the
object store along.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.e2e.test_resume import EPOCHS, checkpoints, finished, processes_below, start, wait_for

WORKERS = 2


def raylet_pid(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head that runs no work, as on Kubernetes, and nodes with a CPU each: as many as there are workers."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "120")
    quick = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5, "health_check_initial_delay_ms": 0}
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False, _system_config=quick)
        for _ in range(WORKERS):
            cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
    finally:
        cluster.shutdown()


@contextmanager
def training(directory: Path, *overrides: str) -> Iterator[subprocess.Popen[str]]:
    # Blocks of more than 100 kB: smaller ones Ray keeps with the driver, and no node could lose them.
    run = start(directory, "table.sample.rows=20000", "training.batch_size=200", *overrides)
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def lose_a_node(cluster: Cluster) -> None:
    """The raylet of a node with a worker dies, and the worker with it."""
    (lost, *_) = [node for node in cluster.worker_nodes if processes_below(raylet_pid(node), "TrainWorker")]
    os.kill(raylet_pid(lost), signal.SIGKILL)


def epochs_of(result: dict[str, Any]) -> list[int]:
    history = (Path(result["bundle"]) / "history.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch"] for line in history]


@pytest.mark.timeout(600)
def test_a_lost_node_is_replaced_and_the_run_ends_with_the_same_model(cluster: Cluster, tmp_path: Path) -> None:
    with training(tmp_path / "whole", "cluster.num_workers=2") as run:
        expected = finished(run)
    with training(tmp_path / "broken", "cluster.num_workers=2") as run:
        wait_for(lambda: len(checkpoints(tmp_path / "broken")) >= 2)
        lose_a_node(cluster)
        cluster.add_node(num_cpus=1)
        result = finished(run)
    assert "going on after epoch" in result["stderr"]
    assert epochs_of(result) == list(range(1, EPOCHS + 1))
    assert result["model_id"] == expected["model_id"]


@pytest.mark.timeout(600)
def test_an_elastic_run_goes_on_with_the_workers_that_are_left(cluster: Cluster, tmp_path: Path) -> None:
    with training(tmp_path, "cluster.num_workers=1", "cluster.max_workers=2") as run:
        wait_for(lambda: len(checkpoints(tmp_path)) >= 2)
        lose_a_node(cluster)
        result = finished(run)
    assert "going on after epoch" in result["stderr"]
    assert epochs_of(result) == list(range(1, EPOCHS + 1))
