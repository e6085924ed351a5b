"""What an actor does with a unit, in real processes where it dies."""

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_cfnet.cluster import explain_unit
from ray_cfnet.cluster.explain_unit import ExplainUnit
from ray_cfnet.cluster.ledger import RunFiles
from ray_cfnet.config import Config
from ray_cfnet.errors import InputError
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables.fit import TableStats, fit_schema
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


def worker_of(kind: type[ExplainUnit], directory: Path, token: str, bundle: Bundle | None = None) -> ExplainUnit:
    source = open_source(str(directory / "in"))
    place = (bundle or untrained_bundle()).save(Location.of(directory / "models"))
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


def test_numbers_in_a_wider_column_than_that_of_training_keep_their_digits(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rates = pa.array(np.round(np.linspace(0.1, 9.7, 300), 1))
    table = people(300).set_column(3, "rate", rates)
    pq.write_table(table, tmp_path / "in" / "part-0.parquet")
    (unit,) = open_source(str(tmp_path / "in")).units(500_000)
    written = CONFIG.model_dump(mode="json", include={"table"})
    written["table"]["features"]["rate"] |= {"bounds": [0.1, 9.7], "step": 0.1}
    declared = Config.model_validate(written).table
    stats, narrow = TableStats(), table.set_column(3, "rate", rates.cast(pa.float32()))
    stats.add(narrow, declared, "people.parquet")
    bundle = untrained_bundle()
    bundle.schema = fit_schema(declared, narrow.schema, stats, 0.0)
    worker = worker_of(ExplainUnit, tmp_path, "one", bundle)
    record = worker(unit)
    assert record is not None
    assert (record.rows_in, record.rows_out) == (300, 300), "9.7 lies within its bounds"
    output = pq.read_table(tmp_path / "out" / "_runs" / "0123456789abcdef" / "staging" / record.files[0])
    made = np.concatenate([output.column(f"{kind}_rate").drop_null().to_numpy() for kind in ("cf", "fcf")])
    assert len(made) > 300
    np.testing.assert_array_equal(made, np.round(made, 1))
