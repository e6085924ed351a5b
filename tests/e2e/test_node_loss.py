"""A training run that loses a node goes on from its last checkpoint and ends with the same model.

Several raylets on this machine stand for machines; a raylet killed with -9 takes its workers and its part of the
object store along.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.e2e.test_resume import EPOCHS, checkpoints, finished, processes_below, start, wait_for

WORKERS = 2
TWO = ("cluster.num_workers=2", "training.batch_size=64")


def raylet_pid(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head that runs no work, as on Kubernetes, and nodes with a CPU each: as many as there are workers."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 4, "health_check_initial_delay_ms": 0}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": quick}
    )
    try:
        for _ in range(WORKERS):
            cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
    finally:
        cluster.shutdown()


def test_a_lost_node_is_replaced_and_the_run_ends_with_the_same_model(cluster: Cluster, tmp_path: Path) -> None:
    expected = finished(start(tmp_path / "whole", *TWO))
    run = start(tmp_path / "broken", *TWO)
    wait_for(lambda: len(checkpoints(tmp_path / "broken")) >= 2)
    (lost, *_) = [node for node in cluster.worker_nodes if processes_below(raylet_pid(node), "TrainWorker")]
    os.kill(raylet_pid(lost), signal.SIGKILL)
    cluster.add_node(num_cpus=1)
    result = finished(run)
    assert "going on after epoch" in result["stderr"]
    assert result["epochs"] == EPOCHS
    assert result["model_id"] == expected["model_id"]
    history = [json.loads(line) for line in (Path(result["bundle"]) / "history.jsonl").read_text().splitlines()]
    assert [epoch["epoch"] for epoch in history] == list(range(1, EPOCHS + 1))
