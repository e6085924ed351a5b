"""The epochs of a training, beside its bundle."""

import json
from pathlib import Path

from ray_cfnet.cluster.history import write_history
from ray_cfnet.tables.storage import Location


def test_a_model_that_is_trained_again_has_one_history(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "events.out.tfevents.1.host").write_bytes(b"of the training before")
    write_history(Location.of(tmp_path), [{"epoch": 1, "loss_pred": 0.5}, {"epoch": 2, "loss_pred": 0.25}])
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"loss_pred" in events.read_bytes()
    lines = (tmp_path / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
