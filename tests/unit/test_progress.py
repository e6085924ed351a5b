import io
import time

import pytest
from rich.console import Console

from ray_cfnet.cli.progress import ProgressDisplay


def test_in_a_log_a_line_comes_also_while_no_unit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_cfnet.cli.progress._LINE_EVERY_S", 0.05)
    log = io.StringIO()
    progress = ProgressDisplay(Console(file=log, width=200))

    def wait_for(count: int, text: str) -> None:
        give_up = time.monotonic() + 10
        while log.getvalue().count(text) < count:
            assert time.monotonic() < give_up, log.getvalue()
            time.sleep(0.01)

    progress.expect_units()
    wait_for(2, "at work")
    progress.say("going on: 1 of 3 units were done by an earlier attempt")
    progress.unit(2, 3, 1_000, 7)
    wait_for(3, "explaining 2/3  1,000 rows  7 rejected")
    progress.unit(3, 3, 1_500, 7)
    wait_for(1, "explaining 3/3")
    told = log.getvalue()
    time.sleep(0.2)
    assert log.getvalue() == told, "all is done"
    progress.close()


def test_in_a_log_lines_do_not_come_with_every_unit() -> None:
    log = io.StringIO()
    progress = ProgressDisplay(Console(file=log, width=200))
    progress.expect_units()
    for done in range(1, 101):
        progress.unit(done, 100, done * 10, 0)
    progress.close()
    assert [line.split()[1] for line in log.getvalue().splitlines()] == ["1/100", "100/100"]
