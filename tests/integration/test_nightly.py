"""Nights one after another on a small table, on a real local Ray."""

import json
import os
import shutil
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_cfnet.cli import main
from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.due import Choice
from ray_cfnet.errors import BundleError, JobError, StoppedError
from ray_cfnet.model.store import HISTORY, MODELS, promote, read_current
from ray_cfnet.nightly import run_nightly
from ray_cfnet.tables.lock import exclusive
from ray_cfnet.tables.storage import Location
from tests.integration.conftest import CONF, Trained

DAYS, DAY_ROWS = [f"ds=2026-11-{day}" for day in (13, 14, 15)], 500


class Nights:
    """Three partitions, their labels still to come, with an output of their own and a promoted bundle."""

    def __init__(self, directory: Path, trained: Trained) -> None:
        self.whole, self.bundle = Path(trained.config.table.path), trained.bundle
        self.table, self.output = directory / "loans", directory / "out"
        for day in DAYS:
            self.write(day, DAY_ROWS, labels=False)
        promote(Location.of(self.bundle), Location.of(self.output / MODELS), self.configured(), "a test")

    @property
    def settings(self) -> list[str]:
        places = [f"table.path={self.table}", f"output.path={self.output}", "table.sample=null"]
        # The bundle of these tests is a quick one, and one actor starts faster than two.
        return [*places, "promotion={}", "cluster.num_actors=1"]

    def configured(self, *overrides: str) -> Config:
        return load_config(CONF / "loans.yaml", [*self.settings, *overrides])

    def run(self, *overrides: str, **choice: Any) -> dict[str, Any]:
        status = run_nightly(self.configured(*overrides), Choice(**choice), lambda _: None, lambda: lambda *_: None)
        assert self.status == json.loads(json.dumps(status))
        return status

    def exit_code(self, *words: str) -> int:
        """Of `ray-cfnet nightly`."""
        settings = [word for setting in self.settings for word in ("--set", setting)]
        with pytest.raises(SystemExit) as ended:
            main(["nightly", "--config", str(CONF / "loans.yaml"), *settings, *words])
        return int(ended.value.code or 0)

    def age(self, days: int) -> None:
        """The promotion was that long ago."""
        [record] = (self.output / MODELS / HISTORY).glob("*.json")
        at = (datetime.now(UTC) - timedelta(days=days)).isoformat(timespec="seconds")
        record.write_text(json.dumps({**json.loads(record.read_text()), "at": at}))

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.output / "_status.json").read_text())

    def write(self, day: str, rows: int, labels: bool) -> None:
        [file] = (self.whole / day).glob("*.parquet")
        table = pq.read_table(file, partitioning=None).slice(0, rows)
        if not labels:
            table = table.set_column(table.column_names.index("decision"), "decision", pa.nulls(rows, pa.string()))
        (self.table / day).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, self.table / day / file.name)

    def written(self) -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in self.output.glob("ds=*/*") if path.is_file()}


@pytest.fixture
def nights(trained: Trained, tmp_path: Path) -> Nights:
    return Nights(tmp_path, trained)


def partitions(status: dict[str, Any]) -> list[tuple[str, str]]:
    return [(entry["partition"], entry["why"]) for entry in status["done"]]


def test_each_night_does_what_is_due_and_a_second_start_does_nothing(nights: Nights) -> None:
    first = nights.run(max_partitions=2)
    assert partitions(first) == [(DAYS[2], "new"), (DAYS[1], "new")]
    assert all("<html" in Path(entry["report"]).read_text() for entry in first["done"])
    assert (first["state"], first["left"], first["rows_in"]) == ("ok", [DAYS[0]], 2 * DAY_ROWS)
    assert (first["model"]["id"], first["model"]["quality"]) == (Path(nights.bundle).name, None)
    nights.write(DAYS[0], DAY_ROWS, labels=True)
    second = nights.run()
    assert partitions(second) == [(DAYS[0], "new")]
    assert (second["left"], second["rows_out"] + second["rows_rejected"]) == ([], DAY_ROWS)
    assert second["model"]["labelled_rows"] == DAY_ROWS
    assert 0.6 < second["model"]["quality"]["accuracy"] <= 1
    before = nights.written()
    third = nights.run()
    assert (third["state"], third["done"], third["rows_in"]) == ("ok", [], 0)
    assert third["model"]["quality"] == second["model"]["quality"], "what was measured before still counts"
    assert nights.written() == before
    nights.write(DAYS[1], 120, labels=True)  # labels arrive
    changed = nights.run()
    assert partitions(changed) == [(DAYS[1], "changed")]
    assert (changed["rows_in"], changed["model"]["labelled_rows"]) == (120, DAY_ROWS + 120)
    after = nights.written()
    assert {path for path in before if path in after} == {path for path in before if DAYS[1] not in str(path)}


def test_a_partition_that_fails_stops_no_other_and_is_due_until_it_is_mended(nights: Nights) -> None:
    [file] = (nights.table / DAYS[2]).glob("*.parquet")
    whole = file.read_bytes()
    third = len(whole) // 3
    file.write_bytes(whole[:100] + bytes(third) + whole[100 + third :])  # the footer stays
    for expected in ([(DAYS[1], "new"), (DAYS[0], "new")], []):
        status = nights.run("explain.retries=0")
        assert partitions(status) == expected
        assert (status["state"], status["left"]) == ("failed", [])
        assert [entry["partition"] for entry in status["failed"]] == [DAYS[2]]
        assert file.name in status["errors"][0]
    file.write_bytes(whole)
    mended = nights.run()
    assert (mended["state"], partitions(mended)) == ("ok", [(DAYS[2], "new")])


def test_a_file_cut_short_fails_its_partition_alone_and_beyond_until_it_is_nobodys_concern(nights: Nights) -> None:
    [file] = (nights.table / DAYS[2]).glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])  # still being written
    before = nights.run(until="2026-11-13")
    assert (before["state"], partitions(before)) == ("ok", [(DAYS[0], "new")])
    status = nights.run()
    assert (status["state"], partitions(status)) == ("failed", [(DAYS[1], "new")])
    assert [entry["partition"] for entry in status["failed"]] == [DAYS[2]]
    assert "not a readable Parquet file" in status["errors"][0]
    assert not (nights.output / DAYS[2]).exists()
    pages = {Path(entry["report"]) for entry in [*before["done"], *status["done"]]}
    for page in pages:  # as if those nights had been stopped before
        page.unlink()
    file.write_bytes(whole)
    mended = nights.run()
    assert (mended["state"], partitions(mended)) == ("ok", [(DAYS[2], "new")])
    assert all(page.exists() for page in pages)


def test_a_stopped_night_begins_nothing_more_and_the_next_goes_on(nights: Nights) -> None:
    def stop_us(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StoppedError, match="stopped by a signal"):
        run_nightly(nights.configured(), Choice(), lambda _: None, lambda: stop_us)
    assert (nights.status["state"], nights.status["done"], nights.status["failed"]) == ("failed", [], [])
    assert nights.status["left"] == DAYS[::-1]
    assert "stopped by a signal" in nights.status["errors"][0]
    assert [partition for partition, _ in partitions(nights.run(since="2026-11-15"))] == [DAYS[2]]


def test_another_model_explains_new_partitions_and_old_ones_when_asked(nights: Nights) -> None:
    nights.run(since="2026-11-15")
    other = nights.run("explain.unit_rows=499999")
    assert [partition for partition, _ in partitions(other)] == DAYS[1::-1], "settings alone change nothing"
    again = nights.run("explain.unit_rows=499999", re_explain=True)
    assert partitions(again) == [(day, "asked for") for day in reversed(DAYS)]
    assert [entry["already_done"] for entry in again["done"]] == [False, True, True]


def test_a_training_that_is_due_is_said_and_done_only_when_told_and_through_the_gate(nights: Nights) -> None:
    for day in DAYS:
        nights.write(day, DAY_ROWS, labels=True)
    old = ("nightly.min_labelled_rows=1", "training.epochs=1", "promotion.min_accuracy=1")
    said = nights.run(*old, max_partitions=1)
    assert said["state"] == "ok"
    assert said["retrain"]["due"]
    assert said["retrain"]["done"] is None
    [reason] = said["retrain"]["reasons"]
    assert reason.startswith("quality on 500 labelled rows: promotion.min_accuracy")
    waits = nights.run(*old, "nightly.retrain=true", since="2026-12-01")
    assert waits["retrain"]["done"] is None, "there was a promotion a moment ago"
    trained = nights.run(*old, "nightly.retrain=true", "nightly.retrain_wait_days=0", since="2026-12-01")
    assert trained["retrain"]["done"]["decision"] == "refused"
    assert trained["retrain"]["done"]["to_id"] != said["model"]["id"]
    assert read_current(Location.of(nights.output / MODELS)).id == said["model"]["id"]


def test_a_training_that_is_due_and_told_is_promoted_where_it_passes_and_explains_from_the_next_night_on(
    nights: Nights,
) -> None:
    for day in DAYS:
        nights.write(day, DAY_ROWS, labels=True)
    nights.age(days=100)
    [file] = (nights.table / DAYS[2]).glob("*.parquet")
    file.write_bytes(file.read_bytes()[:1000])  # still being written
    not_compared = "promotion.tolerance={accuracy: null, validity: null, proximity: null}"
    told = ("nightly.retrain=true", "training.epochs=1", not_compared)
    tonight = nights.run(*told, since="2026-12-01", until="2026-11-14")
    assert (tonight["state"], tonight["model"]["id"]) == ("ok", Path(nights.bundle).name)
    assert tonight["retrain"]["reasons"] == ["age: 100.0 days, nightly.max_model_age_days is 90"]
    done = tonight["retrain"]["done"]
    assert (done["decision"], done["failures"]) == ("promoted", [])
    assert read_current(Location.of(nights.output / MODELS)).id == done["to_id"] != tonight["model"]["id"]
    metrics = json.loads((nights.output / MODELS / done["to_id"] / "metrics.json").read_text())
    assert metrics["train_rows"] == 0.7 * 2 * DAY_ROWS, "of the days up to --until"
    tomorrow = nights.run(*told, until="2026-11-01")
    assert (tomorrow["model"]["id"], tomorrow["retrain"]["due"]) == (done["to_id"], False)


def test_the_exit_code_tells_a_good_night_from_a_failed_and_from_a_wrong_one(
    nights: Nights, capsys: pytest.CaptureFixture
) -> None:
    [file] = (nights.table / DAYS[2]).glob("*.parquet")
    file.write_bytes(file.read_bytes()[:1000])
    assert nights.exit_code("--until", "2026-11-01") == 0
    assert nights.status["state"] == "ok"
    assert nights.exit_code("--since", "2026-11-15") == 1
    assert [entry["partition"] for entry in nights.status["failed"]] == [DAYS[2]]
    shutil.rmtree(nights.output / MODELS)
    assert nights.exit_code() == 2
    assert "no store with a promoted one" in capsys.readouterr().err
    assert nights.exit_code("--set", "nightly.windw=3") == 2
    assert "did you mean window?" in capsys.readouterr().err


def test_a_night_without_a_bundle_or_beside_another_says_so(nights: Nights) -> None:
    shutil.rmtree(nights.output / MODELS)
    with pytest.raises(BundleError, match="no store with a promoted one"):
        nights.run()
    assert nights.status["state"] == "failed"
    assert "CURRENT is missing" in nights.status["errors"][0]
    with (
        exclusive(Location.of(nights.output / "_nightly"), "another"),
        pytest.raises(JobError, match="held by another"),
    ):
        nights.run()
