"""How old a night takes its model to be, and how it ends: with nothing to begin with, with errors, by a signal."""

import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
import ray

from ray_cfnet import nightly
from ray_cfnet.cli import main
from ray_cfnet.config import Config
from ray_cfnet.due import Choice
from ray_cfnet.errors import InputError, JobError, StoppedError
from ray_cfnet.model.store import Decision, Record
from ray_cfnet.nightly import STATUS, _age, _Night, run_nightly
from ray_cfnet.report import page
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG
from tests.unit.k8s_checks import CONF

ONE, OTHER = "1" * 16, "2" * 16


def days_ago(days: int) -> str:
    return (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")


def history(*entries: tuple[int, Decision, str]) -> list[Record]:
    """(days ago, decision, bundle), oldest first."""
    return [
        Record(sequence=number, decision=decision, at=days_ago(days), by="a test", from_id=None, to_id=to_id)
        for number, (days, decision, to_id) in enumerate(entries, start=1)
    ]


def test_a_rollback_does_not_make_a_model_younger() -> None:
    records = history((30, "promoted", ONE), (20, "promoted", OTHER), (10, "rolled_back", ONE))
    age = _age(ONE, records)
    assert (age["id"], age["in_use_since"]) == (ONE, records[0].at)
    assert age["age_days"] == pytest.approx(30, abs=0.01)
    assert _age(OTHER, records)["age_days"] == pytest.approx(20, abs=0.01)


def test_a_second_promotion_does_not_make_a_model_younger() -> None:
    records = history((30, "promoted", ONE), (20, "forced", OTHER), (10, "promoted", ONE))
    assert _age(ONE, records)["in_use_since"] == records[0].at


def test_a_model_that_was_refused_was_not_in_use_then() -> None:
    records = history((30, "refused", ONE), (10, "forced", ONE))
    assert _age(ONE, records)["in_use_since"] == records[1].at


def test_a_model_without_a_history_is_new() -> None:
    assert _age(ONE, history((30, "promoted", OTHER), (20, "refused", ONE)))["age_days"] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize(
    ("setting", "said"),
    [("nightly.window=0", "nightly.window"), ("nightly.window=7", "no store with a promoted one")],
)
def test_without_a_bundle_or_with_a_wrong_setting_a_night_ends_with_2_before_ray_starts(
    setting: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    places = ["--input", str(tmp_path / "table"), "--output", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as ended:
        main(["nightly", "--config", str(CONF / "loans.yaml"), *places, "--set", setting])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def writing_to(output: Path) -> Config:
    return CONFIG.model_validate({**CONFIG.model_dump(mode="json"), "output": {"path": str(output)}})


def night_at(output: Path) -> _Night:
    return _Night(writing_to(output), Choice(), Location.of(output), lambda _: None, None, None)  # type: ignore[arg-type]


def test_whatever_a_partition_raises_stays_its_own_but_for_a_signal(tmp_path: Path) -> None:
    night, begun = night_at(tmp_path), []
    raised = {"ds=1": OSError("no space left"), "ds=2": InputError("damaged", "write it again"), "ds=3": None}

    def step(partition: str) -> None:
        begun.append(partition)
        if error := raised[partition]:
            raise error

    for partition in raised:
        night._try(step, partition)
    assert begun == list(raised)
    assert [entry["partition"] for entry in night.failed] == ["ds=1", "ds=2"]
    assert night.errors == ["ds=1: OSError: no space left", "ds=2: damaged\n  remedy: write it again"]
    for signalled in (StoppedError("stopped by a signal"), SystemExit()):
        raised["ds=1"] = signalled
        with pytest.raises(type(signalled)):
            night._try(step, "ds=1")


def test_a_signal_during_a_training_is_no_failed_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise StoppedError("stopped by a signal")

    night = night_at(tmp_path)
    night.retrain = {"reasons": ["age"]}
    monkeypatch.setattr(nightly, "run_train", stopped)
    with pytest.raises(StoppedError):
        night._train([])


def test_a_report_that_fails_ends_neither_the_night_nor_the_other_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    night, said = night_at(tmp_path), []
    night.say = said.append
    failing = {"a": duckdb.IOException("no such file"), "b": OSError("no space left"), "c": JobError("in use")}
    night.done = [{"run_id": run_id} for run_id in (*failing, "d")]

    def write_report(_: str, run_id: str) -> str:
        if run_id in failing:
            raise failing[run_id]
        return f"{run_id}.html"

    monkeypatch.setattr(page, "write_report", write_report)
    monkeypatch.setattr(_Night, "_of_this_model", lambda _: [])
    night._report()
    assert night.errors == [
        "report of run a: IOException: no such file",
        "report of run b: OSError: no space left",
        "report of run c: in use",
    ]
    assert said == [f"failed: {error}" for error in night.errors]
    assert [entry.get("report") for entry in night.done] == [None, None, None, "d.html"]


def test_a_training_that_fails_is_told_and_ends_no_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    night, said = night_at(tmp_path), []
    night.say, night.retrain = said.append, {"reasons": ["age"], "done": None}
    raised = [JobError("training diverged"), OSError("no space left")]

    def fails(*_: object) -> None:
        raise raised.pop()

    monkeypatch.setattr(nightly, "run_train", fails)
    night._train([])
    night._train([])
    assert night.errors == ["training: OSError: no space left", "training: training diverged"]
    assert said == ["training: age", f"failed: {night.errors[0]}", "training: age", f"failed: {night.errors[1]}"]
    assert night.retrain["done"] is None


@pytest.mark.parametrize("fails", [False, True])
def test_a_signal_while_the_status_is_written_does_not_keep_it_from_being_written(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def do(_: _Night) -> None:
        if fails:
            raise InputError("no table", "write one")

    def status(night: _Night) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGTERM)
        return {"errors": night.errors}

    def too_late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(_Night, "do", do)
    monkeypatch.setattr(_Night, "status", status)
    before = signal.signal(signal.SIGTERM, too_late)
    try:
        run_nightly(writing_to(tmp_path), Choice(), lambda _: None, None)  # type: ignore[arg-type]
    except InputError:
        assert fails
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads((tmp_path / STATUS).read_text())["errors"] == ["no table\n  remedy: write one"] * fails


def test_a_signal_after_the_status_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    monkeypatch.setattr(_Night, "do", lambda night: night.stack.callback(os.kill, os.getpid(), signal.SIGTERM))
    try:
        with pytest.raises(StoppedError, match="stopped by a signal"):
            run_nightly(writing_to(tmp_path), Choice(), lambda _: None, None)  # type: ignore[arg-type]
    finally:
        signal.signal(signal.SIGTERM, before)
    assert json.loads((tmp_path / STATUS).read_text())["state"] == "ok"
