"""How rows are dealt to workers: every row to one of them, the same way every time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from ray_cfnet.cluster.ingest import EncodedTable
from ray_cfnet.cluster.shards import Blocks
from ray_cfnet.config import Config
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.split import SplitName, rows_in_split


@dataclass(frozen=True)
class NoSchema:
    """Dealing does not look at it."""


def table_of(directory: Path, files: int, method: str) -> EncodedTable:
    for number in range(files):
        rows = pa.table({"x": np.arange(1000) + 1000 * number, "y": [0, 1] * 500})
        pq.write_table(rows, directory / f"{number:02}.parquet", row_group_size=100)
    whole = Config.model_validate(
        {
            "table": {"path": str(directory), "target": "y", "features": {"x": {"kind": "continuous"}}},
            "split": {"method": method},
        }
    )
    return EncodedTable(open_source(str(directory)), whole, NoSchema())  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["sequential", "random"])
@pytest.mark.parametrize("name", ["train", "validation"])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 7])
def test_streaming_workers_get_every_row_of_a_split_once_and_about_as_many(
    method: str, name: SplitName, num_workers: int, tmp_path: Path
) -> None:
    table = table_of(tmp_path, files=10, method=method)
    shares = [table.share(name, rank, num_workers) for rank in range(num_workers)]
    pieces = [piece for share in shares for unit in share for piece in unit.pieces]
    starts = [piece.first_row for piece in pieces]
    assert starts == sorted(set(starts)), "in the table's order, none twice"
    covered = np.zeros(10_000, dtype=bool)
    for piece in pieces:
        covered[piece.first_row : piece.first_row + piece.num_rows] = True
    assert covered[rows_in_split(name, table.whole.split, 0, 10_000, 10_000)].all()
    rows = [sum(unit.num_rows for unit in share) for share in shares]
    assert max(rows) - min(rows) <= max(unit.num_rows for share in shares for unit in share) + 100


def test_more_workers_than_units_leave_some_without_rows(tmp_path: Path) -> None:
    table = table_of(tmp_path, files=1, method="sequential")
    shares = [table.share("validation", rank, 30) for rank in range(30)]
    assert sum(len(share) for share in shares) == 1  # one row group holds the whole split


@pytest.mark.parametrize("num_workers", [1, 2, 3, 10])
def test_blocks_are_cut_at_row_numbers(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [pa.table({"x": range(start, stop)}) for start, stop in ((0, 5), (5, 5), (5, 6), (6, 23))]
    monkeypatch.setattr(ray, "get", lambda table: table)
    blocks = Blocks(tables, [len(table) for table in tables])  # type: ignore[arg-type]
    shares = [
        [x for part in blocks.share(rank, num_workers) for x in part["x"].to_pylist()] for rank in range(num_workers)
    ]
    assert [x for share in shares for x in share] == list(range(23))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
