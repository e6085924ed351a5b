"""Training runs in MLflow, if MLFLOW_TRACKING_URI is set and the package is there (`pip install 'ray-cfnet[mlflow]'`).

A copy for those who compare models there: the bundle in the model store stays the truth, and a tracking server that
does not answer costs no training.
"""

import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from ray_cfnet.model.bundle import verified_files
from ray_cfnet.tables.storage import Location

log = logging.getLogger("ray_cfnet.train")
_PARAM_LENGTH = 500


def track_training(bundle: Location) -> str | None:
    """Logs a bundle with its settings, its metrics and those of every epoch; returns the id of MLflow's run.

    None, and a warning in the log, when it could not be done; None without a word when no server is named.
    """
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        return None
    try:
        return _track(bundle)
    except Exception as error:  # whatever a server or a client of any version may raise
        log.warning("MLflow has no record of bundle %s: %s", bundle.name, error, extra={"event": "not_tracked"})
        return None


def _track(bundle: Location) -> str:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    files, bundle_id = verified_files(bundle)
    history = [json.loads(line) for line in (bundle / "history.jsonl").read_bytes().splitlines()]
    with mlflow.start_run(run_name=bundle_id, tags={"bundle_id": bundle_id, "bundle": str(bundle)}) as run:
        settings = _flat(json.loads(files["config.json"]))
        mlflow.log_params({name: str(value)[:_PARAM_LENGTH] for name, value in settings.items()})
        for epoch in history:
            mlflow.log_metrics({f"epoch_{name}": value for name, value in _numbers(epoch).items()}, step=epoch["epoch"])
        mlflow.log_metrics(
            {f"test_{name}": value for name, value in _numbers(json.loads(files["metrics.json"])).items()}
        )
        with tempfile.TemporaryDirectory() as directory:
            for name in [*files, "bundle.json"]:
                (Path(directory) / name).write_bytes((bundle / name).read_bytes())
            mlflow.log_artifacts(directory, "bundle")
        return str(run.info.run_id)


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} as {"a.b": 1}."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    flat = _flat(metrics)
    return {name: float(value) for name, value in flat.items() if isinstance(value, int | float) and name != "epoch"}
