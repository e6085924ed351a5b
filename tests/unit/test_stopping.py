"""SIGTERM to this very process, outside of a job and in one."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from ray_cfnet.cluster.stopping import NoTimeLeftError, put_on_sigterm
from ray_cfnet.tables.storage import Location

# These set the alarm that pytest-timeout would use.
pytestmark = pytest.mark.timeout(60, method="thread")


def in_a_job(monkeypatch: pytest.MonkeyPatch, grace_s: str) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}}))
    monkeypatch.setenv("RAY_JOB_STOP_WAIT_TIME_S", grace_s)


def test_a_signal_puts_up_the_sign_and_the_old_handlers_come_back(tmp_path: Path) -> None:
    before, alarm = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    sign = Location.of(tmp_path / "stop")
    with put_on_sigterm(sign) as stopped:
        assert not stopped.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(5)
        assert sign.exists()
        assert signal.getsignal(signal.SIGALRM) is alarm, "nobody will kill it: there is time"
    assert signal.getsignal(signal.SIGTERM) is before


def test_in_a_job_waiting_ends_before_ray_would_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_job(monkeypatch, "2")
    started = time.monotonic()
    with pytest.raises(NoTimeLeftError):
        _work_through_a_signal(Location.of(tmp_path / "stop"))
    assert time.monotonic() - started < 2


def _work_through_a_signal(sign: Location) -> None:
    with put_on_sigterm(sign):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)


def test_units_that_end_in_time_leave_no_alarm_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_job(monkeypatch, "60")
    with put_on_sigterm(Location.of(tmp_path / "stop")) as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(5)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 60
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
