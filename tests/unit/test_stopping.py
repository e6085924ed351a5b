"""SIGTERM to this very process, outside of a job and in one."""

import contextlib
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import ray

from ray_cfnet.cluster.session import ray_session
from ray_cfnet.cluster.stopping import NoTimeLeftError, interruptible, put_on_sigterm, told_on_sigterm
from ray_cfnet.errors import StoppedError
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
    with put_on_sigterm(sign), contextlib.suppress(Exception):  # Ray Data takes those for its own
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)


def test_units_that_end_in_time_leave_no_alarm_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_job(monkeypatch, "60")
    with put_on_sigterm(Location.of(tmp_path / "stop")) as stopped:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(5)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 60
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_signal_leaves_through_whatever_catches_errors_and_is_told() -> None:
    before, reached = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        try:
            with contextlib.suppress(Exception):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(20)
            reached.append("what comes after")
        finally:
            reached.append("the end")

    with pytest.raises(StoppedError, match="stopped by a signal"), told_on_sigterm(), told_on_sigterm():
        work()
    assert reached == ["the end"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_whoever_opened_a_block_last_need_not_leave_it_first() -> None:
    """As a night does: it connects to Ray on its way, and disconnects after its status is written."""

    def work() -> None:
        later.enter_context(told_on_sigterm())
        os.kill(os.getpid(), signal.SIGTERM)

    with ExitStack() as later, pytest.raises(StoppedError), told_on_sigterm():
        work()


def test_a_second_signal_does_not_interrupt_what_the_first_set_going() -> None:
    reached = []

    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            reached.append("the end")

    with pytest.raises(StoppedError), told_on_sigterm(), told_on_sigterm():
        work()
    assert reached == ["the end"]


def test_a_signal_that_something_swallowed_does_not_make_deaf_to_the_next() -> None:
    def work() -> None:
        with contextlib.suppress(SystemExit):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError), told_on_sigterm():
        work()


@pytest.mark.parametrize("during", ["start", "work", "end"])
def test_a_signal_is_told_while_ray_starts_works_and_ends(during: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, ended = signal.getsignal(signal.SIGTERM), []

    def signal_in(moment: str) -> None:
        if during == moment:
            os.kill(os.getpid(), signal.SIGTERM)

    def init(**_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))  # as Ray does
        signal_in("start")

    def shutdown() -> None:
        ended.append("Ray")
        signal_in("end")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    with pytest.raises(StoppedError, match="stopped by a signal"), ray_session():
        signal_in("work")
    assert ended == ([] if during == "start" else ["Ray"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_any_other_exit_stays_what_it_is() -> None:
    with pytest.raises(SystemExit, match="3"), told_on_sigterm():
        sys.exit(3)


def test_a_signal_while_units_are_at_work_is_still_for_them(tmp_path: Path) -> None:
    with told_on_sigterm():
        inner = signal.getsignal(signal.SIGTERM)
        with put_on_sigterm(Location.of(tmp_path / "stop")) as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopped.wait(5)
        assert signal.getsignal(signal.SIGTERM) is inner


def test_an_interrupt_is_one_whatever_ray_train_makes_of_it_and_its_handler_does_not_stay() -> None:
    before = signal.getsignal(signal.SIGINT)

    def train() -> None:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(0))  # as Ray Train does, to end gracefully
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

    with pytest.raises(KeyboardInterrupt), interruptible():
        train()
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(SystemExit), interruptible():
        raise SystemExit  # of SIGTERM
