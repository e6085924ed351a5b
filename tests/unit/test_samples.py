from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_cfnet.config import Table
from ray_cfnet.tables import samples
from ray_cfnet.tables.samples import EDUCATION, TERMS, cancer_table, loans_table, make_sample


def sampled(path: Path, **sample) -> Table:
    features = {"age": {"kind": "continuous"}}
    return Table.model_validate({"path": str(path), "target": "decision", "features": features, "sample": sample})


def parquet_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))


def test_the_same_numbers_and_seed_give_the_same_loans():
    assert loans_table(50, 10, 3).equals(loans_table(50, 10, 3))


def test_another_seed_gives_other_loans():
    assert not loans_table(50, 10, 3).equals(loans_table(50, 10, 4))


def test_loans_are_numbered_from_the_first_id():
    assert loans_table(5, 10, 0)["application_id"].to_pylist() == [10, 11, 12, 13, 14]


def test_loans_hold_the_values_that_their_rules_promise():
    loans = loans_table(2_000, 0, 0)
    assert set(loans["education"].to_pylist()) == set(EDUCATION)
    assert set(loans["term_months"].to_pylist()) == set(TERMS)
    assert set(loans["decision"].to_pylist()) == {"refused", "approved"}
    for name, step in [("income", 100), ("savings", 50), ("amount", 500)]:
        assert set((loans[name].to_numpy() % step).tolist()) == {0}
    assert min(loans["amount"].to_pylist()) >= 1_000
    assert min(loans["age"].to_pylist()) >= 18
    assert (loans["years_employed"].to_numpy() <= loans["age"].to_numpy() - 16).all()
    assert all(column.null_count == 0 for column in loans.columns)


def test_both_decisions_are_common():
    approved = np.mean([decision == "approved" for decision in loans_table(5_000, 0, 0)["decision"].to_pylist()])
    assert 0.3 < approved < 0.7


def test_a_loans_sample_has_all_its_rows_in_eight_days(tmp_path: Path):
    make_sample(sampled(tmp_path / "loans", name="loans", rows=1_003))
    files = parquet_files(tmp_path / "loans")
    assert len(files) == 8
    assert files[-1].parent.name == "ds=2026-11-15"
    ids = [number for file in files for number in pq.ParquetFile(file).read()["application_id"].to_pylist()]
    assert ids == list(range(1_003))


def test_a_cancer_sample_has_its_569_rows(tmp_path: Path):
    make_sample(sampled(tmp_path / "cancer", name="cancer"))
    [file] = parquet_files(tmp_path / "cancer")
    table = pq.read_table(file)
    assert (table.num_rows, table.num_columns) == (569, 31)
    assert table.equals(cancer_table())


def test_a_sample_that_is_there_is_not_written_again(tmp_path: Path):
    table = sampled(tmp_path / "loans", name="loans", rows=200)
    make_sample(table)
    before = {file: file.stat().st_mtime_ns for file in parquet_files(tmp_path)}
    make_sample(table)
    assert {file: file.stat().st_mtime_ns for file in parquet_files(tmp_path)} == before


def test_a_sample_with_other_settings_replaces_the_old_one(tmp_path: Path):
    make_sample(sampled(tmp_path / "loans", name="loans", rows=200))
    make_sample(sampled(tmp_path / "loans", name="loans", rows=400))
    assert sum(pq.read_metadata(file).num_rows for file in parquet_files(tmp_path)) == 400


def test_the_data_of_others_is_never_touched(tmp_path: Path):
    pq.write_table(pa.table({"mine": [1]}), tmp_path / "mine.parquet")
    make_sample(sampled(tmp_path, name="loans", rows=200))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.parquet"]


def test_a_single_file_of_others_is_never_touched(tmp_path: Path):
    pq.write_table(pa.table({"mine": [1]}), tmp_path / "mine.parquet")
    make_sample(sampled(tmp_path / "mine.parquet", name="loans", rows=200))
    assert pq.read_table(tmp_path / "mine.parquet").to_pydict() == {"mine": [1]}


def test_a_table_without_a_sample_makes_nothing(tmp_path: Path):
    features = {"age": {"kind": "continuous"}}
    make_sample(Table.model_validate({"path": str(tmp_path / "x"), "target": "decision", "features": features}))
    assert list(tmp_path.iterdir()) == []


def test_a_sample_interrupted_while_it_is_written_is_made_whole_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table = sampled(tmp_path / "loans", name="loans", rows=800)

    def fails_on_the_fifth_day(num_rows: int, first_id: int, seed: int) -> pa.Table:
        if first_id >= 400:
            raise KeyboardInterrupt
        return loans_table(num_rows, first_id, seed)

    with monkeypatch.context() as patched:
        patched.setattr(samples, "loans_table", fails_on_the_fifth_day)
        with pytest.raises(KeyboardInterrupt):
            make_sample(table)
    make_sample(table)
    assert sum(pq.read_metadata(file).num_rows for file in parquet_files(tmp_path)) == 800
