"""Metrics as Prometheus would scrape them from a real Ray, and the log of the same run."""

import logging
import time
import urllib.request
from pathlib import Path

import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.helpers import people
from tests.unit.outputs import explained_output
from tests.unit.test_report import replaced


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


def test_a_runs_metrics_are_on_the_prometheus_endpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    days = {f"2026-11-{day}": people(500, seed=day) for day in range(10, 14)}
    days["2026-11-10"] = replaced(days["2026-11-10"], "housing", ["castle"] * 500)
    with caplog.at_level(logging.INFO, "ray_cfnet"):
        manifest = explained_output(tmp_path, days, on_ray=True)
    deadline, found = time.monotonic() + 60, {}
    while time.monotonic() < deadline:  # actors report every few seconds
        found = scraped(manifest["run_id"])
        if sum(value for name, value in found.items() if name.startswith("ray_cfnet_rows_total")) >= 1500:
            break
        time.sleep(1)
    assert manifest["row_status"].keys() == {"ok", "no_feasible_cf"}
    for status, count in manifest["row_status"].items():
        assert found[f"ray_cfnet_rows_total {status}"] == count
    assert found["ray_cfnet_rejects_total unseen_category"] == 500
    assert found["ray_cfnet_unit_seconds_count"] == 4
    assert found["ray_cfnet_busy_seconds_total"] == pytest.approx(manifest["seconds_in_actors"], abs=0.01)
    assert 0 < found["ray_cfnet_fcf_validity"] < 1

    lines = [vars(record) for record in caplog.records if record.name == "ray_cfnet.explain"]
    assert {line["run_id"] for line in lines} == {manifest["run_id"]}
    units = [line for line in lines if line["event"] == "unit_done"]
    assert sorted(line["unit"] for line in units) == [0, 1, 2, 3]
    assert sum(line["rows_in"] for line in units) == 2000
    [last] = [line for line in lines if line["event"] == "run_finished"]
    assert last["rows_out"] == 1500
