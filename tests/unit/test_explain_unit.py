"""What an actor does with a unit, in real processes where it dies."""

import multiprocessing
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_cfnet.cluster import explain_unit
from ray_cfnet.cluster.explain_unit import ExplainUnit
from ray_cfnet.cluster.ledger import RunFiles
from ray_cfnet.errors import InputError
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, people, untrained_bundle


class DyingUnit(ExplainUnit):
    """As one that needs more memory than there is."""

    def _explain(self, unit):
        os._exit(137)


class DamagedUnit(ExplainUnit):
    """As one with a text of negative length: reading lets it pass, and the writer stumbles."""

    def _explain(self, unit):
        raise pa.ArrowInvalid("Negative buffer resize: -10")


def worker_of(kind: type[ExplainUnit], directory: Path, token: str) -> ExplainUnit:
    source = open_source(str(directory / "in"))
    place = untrained_bundle().save(Location.of(directory / "models"))
    run = RunFiles(Location.of(directory / "out"), "0123456789abcdef")
    settings = CONFIG.explain.model_copy(update={"retries": 0})
    stop = run.staging / f".stop-{token}"
    return kind(source.root, source.schema, place, None, settings, None, run, stop, 1, False)


def test_a_unit_that_kills_its_actor_each_time_fails_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(people(200), tmp_path / "in" / "part-0.parquet")
    (unit,) = open_source(str(tmp_path / "in")).units(500_000)
    dying = worker_of(DyingUnit, tmp_path, "one")
    fork = multiprocessing.get_context("fork")
    for _ in range(5):
        process = fork.Process(target=dying, args=(unit,))
        process.start()
        process.join()
        assert process.exitcode == 137
    with pytest.raises(InputError, match=r"part-0\.parquet: unit 0 was begun 5 times and its actor died each time"):
        dying(unit)
    record = worker_of(ExplainUnit, tmp_path, "another attempt")(unit)
    assert record is not None
    assert record.rows_out == 200


def test_damage_that_reading_lets_pass_fails_the_unit_and_names_its_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(people(20), tmp_path / "in" / "part-0.parquet")
    (unit,) = open_source(str(tmp_path / "in")).units(500_000)
    with pytest.raises(InputError, match=r"part-0\.parquet: cannot be explained \(ArrowInvalid: Negative buffer"):
        worker_of(DamagedUnit, tmp_path, "one")(unit)


def test_small_batches_share_a_row_group_unless_their_rows_are_wide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        pq.write_table(people(100), tmp_path / "in" / f"part-{number}.parquet")
    (unit,) = open_source(str(tmp_path / "in")).units(500_000)

    def row_groups() -> int:
        worker = worker_of(ExplainUnit, tmp_path, "one")
        record = worker(unit)
        assert record is not None
        return pq.ParquetFile((worker.run.staging / record.files[0]).path).num_row_groups

    assert row_groups() == 1
    monkeypatch.setattr(explain_unit, "_GROUP_BYTES", 1_000)
    assert row_groups() == 3
