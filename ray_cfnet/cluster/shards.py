"""A worker's share of a split: held in memory, or streamed from Ray Data when it is too large for that.

Either way it depends on the table and the number of workers alone, so that a run can be repeated.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import ray
import ray.data
import torch
from torch import Tensor

from ray_cfnet.cluster.ingest import LabelledRows, concatenated, from_arrow
from ray_cfnet.explain.explainer import tensors
from ray_cfnet.model.net import Rows
from ray_cfnet.tables.schema import TableSchema

CHUNK_ROWS = 262_144
"""Rows that a streaming worker holds and shuffles at a time."""

Batch = tuple[Rows, Tensor]


@dataclass(frozen=True)
class Blocks:
    """The encoded rows of a split in Ray's object store, in the table's order.

    A worker fetches its own: a split by Ray Data is a set of tasks, which wait for ever on a cluster whose CPUs are
    all taken by workers. What a lost node held is encoded again by Ray.
    """

    refs: list[ray.ObjectRef]
    num_rows: list[int]

    @classmethod
    def of(cls, dataset: ray.data.Dataset) -> "Blocks":
        blocks = [block for bundle in dataset.materialize().iter_internal_ref_bundles() for block in bundle.blocks]
        return cls([block.ref for block in blocks], [block.metadata.num_rows for block in blocks])

    def share(self, rank: int, num_workers: int) -> Iterator[pa.Table]:
        """Every row goes to one worker, and all get as many, give or take one."""
        total = sum(self.num_rows)
        start, stop = total * rank // num_workers, total * (rank + 1) // num_workers
        first = 0
        for ref, num_rows in zip(self.refs, self.num_rows, strict=True):
            low, high = max(start, first), min(stop, first + num_rows)
            if low < high:
                yield ray.get(ref).slice(low - first, high - low)
            first += num_rows


class Shard(Protocol):
    """Rows that this worker, and no other, sees once in every epoch."""

    def num_batches(self, batch_rows: int) -> int | None:
        """How many batches an epoch has; None when that shows only at its end."""

    def batches(self, batch_rows: int, generator: torch.Generator) -> Iterator[Batch]:
        """The rows of an epoch in a new order."""

    def chunks(self) -> Iterator[LabelledRows]:
        """The rows as they are, in pieces that fit memory."""


class MemoryShard:
    """All rows on the training device, shuffled over the whole shard."""

    def __init__(self, rows: LabelledRows, schema: TableSchema, device: torch.device) -> None:
        self.rows = rows
        self.tensors = tensors(rows.encoded, schema, device)
        self.targets = torch.from_numpy(rows.targets.copy()).to(device)

    def num_batches(self, batch_rows: int) -> int | None:
        return math.ceil(len(self.rows) / batch_rows)

    def batches(self, batch_rows: int, generator: torch.Generator) -> Iterator[Batch]:
        order = torch.randperm(len(self.rows), generator=generator).to(self.targets.device)
        for picked in order.split(batch_rows) if len(order) else ():
            yield self.tensors.take(picked), self.targets.index_select(0, picked)

    def chunks(self) -> Iterator[LabelledRows]:
        yield self.rows


class StreamShard:
    """Rows as Ray Data delivers them, shuffled within chunks; memory does not grow with the table."""

    def __init__(self, dataset: ray.data.Dataset, schema: TableSchema, device: torch.device) -> None:
        self.dataset = dataset
        self.schema = schema
        self.device = device

    def num_batches(self, batch_rows: int) -> int | None:  # noqa: ARG002
        return None

    def chunks(self) -> Iterator[LabelledRows]:
        for table in self.dataset.iter_batches(batch_size=CHUNK_ROWS, batch_format="pyarrow", prefetch_batches=1):
            if len(table):
                yield from_arrow(table, self.schema)

    def batches(self, batch_rows: int, generator: torch.Generator) -> Iterator[Batch]:
        left = concatenated([], self.schema)
        for chunk in self.chunks():
            # What did not fill a batch goes into the next chunk, so that batches keep their size.
            rows = MemoryShard(concatenated([left, chunk], self.schema), self.schema, self.device)
            order = torch.randperm(len(rows.rows), generator=generator)
            whole = len(order) // batch_rows * batch_rows
            for picked in order[:whole].to(self.device).split(batch_rows) if whole else ():
                yield rows.tensors.take(picked), rows.targets.index_select(0, picked)
            left = rows.rows.take(order[whole:].numpy())
        if len(left):
            rows = MemoryShard(left, self.schema, self.device)
            yield rows.tensors, rows.targets


def in_memory(tables: Iterator[pa.Table], schema: TableSchema, device: torch.device) -> MemoryShard:
    return MemoryShard(concatenated([from_arrow(table, schema) for table in tables], schema), schema, device)
