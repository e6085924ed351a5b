"""Training that is killed goes on and ends as if nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
EPOCHS = 12


def start(directory: Path, *overrides: str) -> subprocess.Popen[str]:
    settings = [
        f"table.path={directory}/loans",
        "table.sample.rows=40000",  # epochs of half a second: slow enough to be stopped on the way
        "cluster.num_actors=1",
        f"training.epochs={EPOCHS}",
        *overrides,
    ]
    arguments = [part for setting in settings for part in ("--set", setting)]
    command = [
        sys.executable,
        "-m",
        "ray_cfnet",
        "train",
        "--config",
        "conf/loans.yaml",
    ]
    return subprocess.Popen(
        [*command, "--output", f"{directory}/out", "--json", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return {**json.loads(out), "stderr": err}


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.1)


def checkpoints(directory: Path) -> list[Path]:
    return list(directory.glob("out/_models/.training/*/checkpoint_*/history.json"))


def processes_below(pid: int, title: str) -> list[int]:
    """Pids of descendants whose title has a word in it; Ray names its workers."""
    parents, titles = {}, {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
            titles[int(status.parent.name)] = (status.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(status.parent.name)] = int(fields[1])

    def below(child: int) -> bool:
        while child in parents:
            if child == pid:
                return True
            child = parents[child]
        return False

    return [child for child, words in titles.items() if title in words and child != pid and below(child)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, finished(start(directory))


def test_history_and_tensorboard_stand_beside_the_bundle(uninterrupted: tuple[Path, dict[str, Any]]) -> None:
    bundle = Path(uninterrupted[1]["bundle"])
    history = [json.loads(line) for line in (bundle / "history.jsonl").read_text().splitlines()]
    assert [epoch["epoch"] for epoch in history] == list(range(1, EPOCHS + 1))
    assert {"loss_pred", "loss_valid", "loss_prox", "accuracy", "validity", "proximity"} <= history[0].keys()
    for epoch in history:
        stages = epoch["seconds_stage_1"], epoch["seconds_stage_2"]
        assert min(stages) > 0
        assert sum(stages) < epoch["seconds_training"]
    assert list((bundle / "tensorboard").glob("events.out.tfevents*"))
    assert not checkpoints(uninterrupted[0])


def test_a_driver_that_signals_end_resumes_and_ends_with_the_same_model(
    uninterrupted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    # The same table at the same place: the run's name and the result depend on it.
    for number in (signal.SIGTERM, signal.SIGKILL):
        seen = set(checkpoints(tmp_path))
        process = start(tmp_path)
        wait_for(lambda seen=seen, process=process: set(checkpoints(tmp_path)) - seen or process.poll() is not None)
        assert process.poll() is None, "it ended before it could be stopped"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        if number == signal.SIGTERM:
            assert process.returncode == 1
            assert "error: stopped by a signal; start it again" in err
        else:
            assert process.returncode == -number
    resumed = finished(start(tmp_path))
    assert "going on after epoch" in resumed["stderr"]
    assert resumed["epochs"] == EPOCHS
    assert resumed["model_id"] == uninterrupted[1]["model_id"]


def test_a_killed_worker_is_replaced_and_the_run_ends_with_the_same_model(
    uninterrupted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run = start(tmp_path)
    wait_for(lambda: len(checkpoints(tmp_path)) >= 2)
    workers = processes_below(run.pid, "TrainWorker")
    assert workers
    os.kill(workers[0], signal.SIGKILL)
    result = finished(run)
    assert result["epochs"] == EPOCHS
    assert result["model_id"] == uninterrupted[1]["model_id"]
