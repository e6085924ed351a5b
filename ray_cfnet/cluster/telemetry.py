"""What operators watch: metrics of the explain actors on Ray's Prometheus endpoint, and a log line a unit.

Ray puts `ray_` in front of the names, and adds labels of its own (node, worker, session).
"""

import logging
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge, Histogram

from ray_cfnet.cluster.ledger import FailedUnit, UnitRecord

log = logging.getLogger("ray_cfnet.explain")

_SECONDS = [0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000]


class UnitMetrics:
    """Counts the units of one actor; made in the actor's process. Silent where no Ray is running."""

    def __init__(self, run_id: str) -> None:
        self.is_on = ray.is_initialized()
        if not self.is_on:
            return
        tag = {"run_id": run_id}
        self.rows = Counter("cfnet_rows", "explained rows, by row_status", tag_keys=("run_id", "row_status"))
        self.rejects = Counter("cfnet_rejects", "rejected rows, by reason", tag_keys=("run_id", "reason"))
        self.seconds = Histogram("cfnet_unit_seconds", "seconds a unit took", _SECONDS, tag_keys=("run_id",))
        # Ray 2.60 publishes a histogram's sum as if every value lay in the middle of its bucket.
        self.busy = Counter("cfnet_busy_seconds", "seconds spent on units", tag_keys=("run_id",))
        self.validity = Gauge(
            "cfnet_fcf_validity", "share of a unit's rows in need of a way that got one", tag_keys=("run_id",)
        )
        for metric in (self.rows, self.rejects, self.seconds, self.busy, self.validity):
            metric.set_default_tags(tag)

    def add(self, record: UnitRecord) -> None:
        """A finished unit."""
        if not self.is_on:
            return
        for status, count in record.status.items():
            self.rows.inc(count, {"row_status": status})
        for reason, count in record.rejects.items():
            self.rejects.inc(count, {"reason": reason})
        self.seconds.observe(record.seconds)
        self.busy.inc(record.seconds)
        wanted = record.status.get("ok", 0) + record.status.get("no_feasible_cf", 0)
        if wanted:
            self.validity.set(record.status.get("ok", 0) / wanted)


def log_unit(run_id: str, record: UnitRecord, fresh: bool) -> None:
    """`fresh`: done now, not by an earlier attempt at the run."""
    said: dict[str, Any] = {
        "event": "unit_done" if fresh else "unit_found_done",
        "run_id": run_id,
        "unit": record.number,
        "partition": record.partition,
        "rows_in": record.rows_in,
        "rows_out": record.rows_out,
        "rows_rejected": record.rows_rejected,
        "seconds": round(record.seconds, 3),
        "retries": record.retries,
    }
    log.info("unit %d: %d rows", record.number, record.rows_in, extra=said)


def log_failure(run_id: str, failure: FailedUnit) -> None:
    said = {"event": "unit_failed", "run_id": run_id, "unit": failure.number, "partition": failure.partition}
    log.error("unit %d failed: %s", failure.number, failure.error, extra=said)


def log_run(manifest: dict[str, Any]) -> None:
    names = ("run_id", "model_id", "state", "rows_in", "rows_out", "rows_rejected", "fcf_validity", "seconds", "output")
    said = {"event": "run_finished", **{name: manifest[name] for name in names}}
    log.info("run %s: %s", manifest["run_id"], manifest["state"], extra=said)
