import json
import logging

import pytest

from ray_cfnet.cli import main
from ray_cfnet.cluster.ledger import FailedUnit, UnitRecord
from ray_cfnet.cluster.telemetry import log_failure, log_unit
from ray_cfnet.logs import LoggedProgress, is_json, log, log_as_json


@pytest.fixture(autouse=True)
def logger_as_it_was():
    before = log.handlers, log.level, log.propagate
    yield
    log.handlers, log.level, log.propagate = before


def lines(captured: str) -> list[dict]:
    return [json.loads(line) for line in captured.splitlines()]


def test_a_unit_is_one_json_object_a_line(capsys):
    log_as_json()
    log_unit("r1", UnitRecord(3, "ds=1", rows_in=10, rows_out=9, rejects={"null": 1}, seconds=1.25), True)
    log_failure("r1", FailedUnit(4, "ds=2", "file:\nnot readable"))
    LoggedProgress().epoch({"epoch": 2, "accuracy": 0.5}, 30)
    done, failed, epoch = lines(capsys.readouterr().err)
    assert {
        key: done[key] for key in ("event", "run_id", "unit", "partition", "rows_in", "rows_rejected", "seconds")
    } == {
        "event": "unit_done",
        "run_id": "r1",
        "unit": 3,
        "partition": "ds=1",
        "rows_in": 10,
        "rows_rejected": 1,
        "seconds": 1.25,
    }
    assert (failed["level"], failed["unit"]) == ("error", 4)
    assert not any(name.startswith("_") for name in epoch), "Ray adds to every record"
    assert (epoch["event"], epoch["epoch"], epoch["num_epochs"]) == ("epoch_done", 2, 30)
    assert done["time"].endswith("+00:00")


def test_the_command_line_switches_by_option_or_variable(tmp_path, capsys, monkeypatch):
    for arguments, variable in ((["--log-format", "json"], ""), ([], "json")):
        log.handlers = []
        monkeypatch.setenv("RAY_CFNET_LOG", variable or "text")
        with pytest.raises(SystemExit) as exited:
            main([*arguments, "runs", str(tmp_path)])
        assert exited.value.code == 2
        [failed] = lines(capsys.readouterr().err)
        assert (failed["event"], failed["kind"]) == ("failed", "InputError")
        assert "no runs in it" in failed["message"]


def test_as_text_nothing_of_it_is_seen(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["runs", str(tmp_path)])
    assert not is_json()
    assert capsys.readouterr().err.startswith("error: ")
    logging.getLogger("ray_cfnet.explain").info("a unit")
    assert capsys.readouterr().err == ""
