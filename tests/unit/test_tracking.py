import json
import logging

import pytest

from ray_cfnet.cluster.tracking import track_training
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import untrained_bundle

HISTORY = [{"epoch": 1, "loss_pred": 0.5, "fcf": {"validity": 0.9}}, {"epoch": 2, "loss_pred": 0.4, "manifold": None}]


@pytest.fixture
def bundle(tmp_path):
    place = untrained_bundle().save(Location.of(tmp_path / "models"))
    (place / "history.jsonl").write_bytes("".join(json.dumps(epoch) + "\n" for epoch in HISTORY).encode())
    return place


@pytest.fixture
def mlflow():
    return pytest.importorskip("mlflow", reason="no mlflow: pip install 'ray-cfnet[mlflow]'")


def test_a_training_run_is_recorded_with_its_bundle(bundle, tmp_path, monkeypatch, mlflow):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "loans")
    run_id = track_training(bundle)
    client = mlflow.MlflowClient(f"file:{tmp_path}/mlruns")
    run = client.get_run(run_id)
    assert client.get_experiment(run.info.experiment_id).name == "loans"
    assert run.info.run_name == bundle.name
    assert run.data.params["model.encoder"] == "[16, 6]"
    assert run.data.metrics["test_accuracy"] == 0.5
    steps = client.get_metric_history(run_id, "epoch_loss_pred")
    assert [(metric.step, metric.value) for metric in steps] == [(1, 0.5), (2, 0.4)]
    stored = tmp_path / "mlruns" / run.info.experiment_id / run_id / "artifacts" / "bundle"
    for file in bundle.files():
        if "/" not in file.path and file.path != "history.jsonl":
            assert (stored / file.path).read_bytes() == (bundle / file.path).read_bytes()
    assert (stored / "model.safetensors").exists()


def test_a_server_that_does_not_answer_costs_a_warning(bundle, tmp_path, monkeypatch, mlflow, caplog):
    (tmp_path / "mlruns").write_text("not a directory")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with caplog.at_level(logging.WARNING, "ray_cfnet"):
        assert track_training(bundle) is None
    assert f"MLflow has no record of bundle {bundle.name}" in caplog.text


def test_without_a_server_named_nothing_happens(bundle, monkeypatch, caplog):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert track_training(bundle) is None
    assert caplog.text == ""
