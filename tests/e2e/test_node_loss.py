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
import ray
from ray.cluster_utils import Cluster

from ray_cfnet.cluster.ingest import SPARE_CPU, EncodedTable, fit
from ray_cfnet.cluster.session import ray_session
from ray_cfnet.cluster.shards import Blocks
from ray_cfnet.config.file import load_config
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.samples import make_sample
from tests.e2e.test_resume import EPOCHS, ROOT, checkpoints, finished, processes_below, start, wait_for

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
    # Epochs of half a second: a worker notices the loss of its node only after a while. Blocks of more than 100 kB:
    # smaller ones Ray keeps with the driver, and no node could lose them.
    run = start(directory, "table.sample.rows=80000", "training.batch_size=200", *overrides)
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


@ray.remote(num_cpus=1 - SPARE_CPU)
class Worker:
    """Holds a CPU as a training worker does."""

    def node_id(self) -> str:
        return str(ray.get_runtime_context().get_node_id())

    def num_rows(self, blocks: Blocks) -> int:
        return sum(len(part) for part in blocks.share(0, 1))


def nodes_with_blocks_of_their_own(cluster: Cluster, blocks: Blocks) -> list[Any]:
    places = [info["node_ids"] for info in ray.experimental.get_object_locations(blocks.refs).values()]
    return [node for node in cluster.worker_nodes if [node.node_id] in places]


@pytest.mark.timeout(600)
def test_blocks_of_a_lost_node_are_encoded_again_though_workers_hold_all_cpus(cluster: Cluster, tmp_path: Path) -> None:
    config = load_config(
        ROOT / "conf" / "loans.yaml",
        [f"table.path={tmp_path}/loans", "table.sample.rows=20000", "cluster.num_actors=1"],
    )
    make_sample(config.table)
    source = open_source(config.table.path)
    with ray_session():
        blocks = Blocks.of(EncodedTable(source, config, fit(source, config)).dataset("train"))
        # The driver has fetched none, so what lies on one node lies there alone. Ray hears of it a moment later.
        wait_for(lambda: nodes_with_blocks_of_their_own(cluster, blocks))
        lost, *_ = nodes_with_blocks_of_their_own(cluster, blocks)
        os.kill(raylet_pid(lost), signal.SIGKILL)
        wait_for(lambda: not any(node["Alive"] for node in ray.nodes() if node["NodeID"] == lost.node_id))
        worker = Worker.remote()  # type: ignore[attr-defined]
        assert ray.get(worker.node_id.remote(), timeout=120) != lost.node_id
        assert ray.get(worker.num_rows.remote(blocks), timeout=120) == 14_000


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


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_an_elastic_run_goes_on_with_the_workers_that_are_left(cluster: Cluster, tmp_path: Path) -> None:
    with training(tmp_path, "cluster.num_workers=1", "cluster.max_workers=2") as run:
        wait_for(lambda: len(checkpoints(tmp_path)) >= 2)
        lose_a_node(cluster)
        result = finished(run)
    assert "going on after epoch" in result["stderr"]
    assert epochs_of(result) == list(range(1, EPOCHS + 1))
