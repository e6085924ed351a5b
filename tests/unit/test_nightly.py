"""How old a night takes its model to be, and how it ends where there is nothing to begin with."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import ray

from ray_cfnet.cli import main
from ray_cfnet.model.store import Decision, Record
from ray_cfnet.nightly import _age
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
