"""Metrics as Prometheus would scrape them from a real Ray, and the log of the same run."""

import logging
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from ray_cfnet.commands import run_explain
from tests.integration.conftest import Trained

QUIET: Any = lambda *_: None  # noqa: E731


def scraped(run_id: str) -> dict[str, float]:
    """The samples of a run on all nodes: name and own labels -> value, summed over actors."""
    found: dict[str, float] = {}
    for node in ray.nodes():
        address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("ray_cfnet_") and sample.labels.get("run_id") == run_id:
                    own = [sample.labels[key] for key in ("row_status", "reason") if sample.labels.get(key)]
                    name = " ".join([sample.name, *own])
                    found[name] = found.get(name, 0.0) + sample.value
    return found


def test_a_runs_metrics_are_on_the_prometheus_endpoint(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = trained.config.model_copy(
        update={"output": trained.config.output.model_copy(update={"path": str(tmp_path / "out")})}
    )
    with caplog.at_level(logging.INFO, "ray_cfnet"):
        result = run_explain(config, trained.bundle, None, QUIET)
    status = {name: count for name, count in result["row_status"].items() if count}
    deadline, found = time.monotonic() + 60, {}
    while time.monotonic() < deadline:  # actors report every few seconds
        found = scraped(result["run_id"])
        if sum(value for name, value in found.items() if name.startswith("ray_cfnet_rows_total")) >= 4000:
            break
        time.sleep(1)
    assert {name: found.get(f"ray_cfnet_rows_total {name}") for name in status} == status
    assert found["ray_cfnet_unit_seconds_count"] == 8
    assert 0 < found["ray_cfnet_unit_seconds_sum"] < 300
    assert 0 < found["ray_cfnet_fcf_validity"] <= 1

    lines = [vars(record) for record in caplog.records if record.name == "ray_cfnet.explain"]
    units = [line for line in lines if line["event"] == "unit_done"]
    assert sorted(line["unit"] for line in units) == list(range(8))
    assert {line["run_id"] for line in lines} == {result["run_id"]}
    assert sum(line["rows_in"] for line in units) == 4000
    [last] = [line for line in lines if line["event"] == "run_finished"]
    assert last["rows_out"] == result["rows_out"]
