"""How good predictions and counterfactuals are, as sums that merge over batches, units and workers.

Definitions (docs/columns.md): distance = L1 over the encoded row / its width, a changed category counting
2 (two one-hot entries); sparsity = changed raw features / raw features; manifold = L1 to the nearest
training row, which is also shown for the untouched rows.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ray_cfnet.config import Selection
from ray_cfnet.model.distinct import row_hashes
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask, to_unit
from ray_cfnet.tables.constraints import violations
from ray_cfnet.tables.schema import FloatArray, TableSchema

_ASKED_ROWS, _REFERENCE_ROWS = 256, 4096
"""Rows compared at a time: the matrix of their distances stays in the processor's cache."""


def distances(rows: Encoded, others: Encoded, schema: TableSchema) -> FloatArray:
    """(N,) L1 over the encoded row divided by its width, without building one-hot blocks."""
    moved = np.zeros(len(rows))
    for column, feature in enumerate(schema.continuous):  # a column at a time: it is contiguous
        moved += np.abs(rows.values[:, column] - others.values[:, column]) / feature.span
    return (moved + 2.0 * _differing(rows.codes, others.codes)) / encoded_width(schema)


def _differing(columns: npt.NDArray, others: npt.NDArray) -> npt.NDArray[np.int32]:
    """(N,) in how many of their columns two matrices differ."""
    count = np.zeros(len(columns), dtype=np.int32)
    for mine, theirs in zip(columns.T, others.T, strict=True):
        count += mine != theirs
    return count


def encoded_width(schema: TableSchema) -> int:
    """Columns of the encoded row: one a number, one a category."""
    return len(schema.continuous) + sum(len(f.categories) for f in schema.categorical)


def second_order(rows: Encoded, cf: Encoded, threshold: float) -> Encoded:
    """The paper's x'': number changes of at most `threshold` (raw units) are taken back, categories stay."""
    # Two decimals that lie exactly `threshold` apart may as doubles be a last digit further.
    slack = np.spacing(np.maximum(np.abs(rows.values), np.abs(cf.values)))
    small = np.abs(rows.values - cf.values) <= threshold + slack
    return Encoded(np.where(small, rows.values, cf.values), cf.codes)


def num_changed(rows: Encoded, others: Encoded) -> npt.NDArray[np.int32]:
    """(N,) how many raw features differ."""
    return _differing(rows.values, others.values) + _differing(rows.codes, others.codes)


class Manifold:
    """Reference rows, to ask which of them is nearest to a row and how far it is."""

    def __init__(self, reference: Encoded, schema: TableSchema) -> None:
        self.schema = schema
        _, self.positions = np.unique(row_hashes(reference), return_index=True)
        self.numbers, self.blocks = self._tensors(reference.take(self.positions))

    def _tensors(self, rows: Encoded) -> tuple[Tensor, Tensor]:
        """Scaled numbers and one-hot blocks."""
        parts = [torch.empty(len(rows), 0)]
        for column, feature in enumerate(self.schema.categorical):
            codes = torch.from_numpy(np.ascontiguousarray(rows.codes[:, column]))
            parts.append(torch.nn.functional.one_hot(codes, len(feature.categories)).float())
        numbers = torch.from_numpy(np.ascontiguousarray(to_unit(rows.values, self.schema)))
        return numbers, torch.cat(parts, dim=1)

    def nearest(self, rows: Encoded) -> tuple[FloatArray, CodeArray]:
        """(N,) L1 to the nearest reference row, and that row's position among those given."""
        _, first, where = np.unique(row_hashes(rows), return_index=True, return_inverse=True)
        numbers, blocks = self._tensors(rows.take(first))
        distance = torch.full((len(first),), torch.inf)
        position = torch.zeros(len(first), dtype=torch.int64)
        for start in range(0, len(self.numbers), _REFERENCE_ROWS):
            part = slice(start, start + _REFERENCE_ROWS)
            for asked in range(0, len(first), _ASKED_ROWS):
                some = slice(asked, asked + _ASKED_ROWS)
                found, index = self._matrix(numbers[some], blocks[some], part).min(dim=1)
                better = found < distance[some]
                distance[some] = torch.where(better, found, distance[some])
                position[some] = torch.where(better, index + start, position[some])
        return distance[where].double().numpy(), self.positions[position[where].numpy()]

    def _matrix(self, numbers: Tensor, blocks: Tensor, part: slice) -> Tensor:
        """L1 of every pair. Two one-hot blocks are 2 apart, less 2 for each category that agrees."""
        gaps = torch.cdist(numbers, self.numbers[part], p=1)
        num_blocks = len(self.schema.categorical)
        if num_blocks == 0:
            return gaps
        return gaps.addmm_(blocks, self.blocks[part].T, alpha=-2.0).add_(2.0 * num_blocks)

    def distances(self, rows: Encoded) -> FloatArray:
        """(N,) L1 to the nearest reference row."""
        return self.nearest(rows)[0]


class _Sums:
    """Sums that merge by addition, also as a flat list of numbers for a collective between workers."""

    def numbers(self) -> list[float]:
        listed: list[float] = []
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            listed += value.numbers() if isinstance(value, _Sums) else [value]
        return listed

    def set_numbers(self, numbers: list[float]) -> None:
        """The inverse of `numbers`; counts come back as integers."""
        remaining = list(numbers)
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if isinstance(value, _Sums):
                count = len(value.numbers())
                value.set_numbers(remaining[:count])
                remaining = remaining[count:]
            else:
                setattr(self, item.name, type(value)(remaining.pop(0)))

    def merge(self, other: "_Sums") -> None:
        """Adds another's sums to these."""
        self.set_numbers([mine + theirs for mine, theirs in zip(self.numbers(), other.numbers(), strict=True)])


@dataclass
class CounterfactualSums(_Sums):
    """`asked` rows wanted a counterfactual, `given` got one; distances are over those given."""

    asked: int = 0
    given: int = 0
    valid: int = 0
    distance: float = 0.0
    sparsity: float = 0.0
    violations: int = 0
    manifold: float = 0.0
    manifold_rows: int = 0

    def add(
        self, rows: Encoded, cf: Encoded, valid: Mask, given: Mask, schema: TableSchema, manifold: Manifold | None
    ) -> None:
        """Takes in N rows and their counterfactuals; only `given` ones count for distances."""
        self.asked += len(rows)
        self.given += int(given.sum())
        self.valid += int((valid & given).sum())
        rows, cf = rows.take(given), cf.take(given)
        self.distance += float(distances(rows, cf, schema).sum())
        self.sparsity += float(num_changed(rows, cf).sum()) / len(schema.features)
        self.violations += int(violations(rows, cf, schema).sum())
        if manifold is not None and len(rows):
            self.manifold += float(manifold.distances(cf).sum())
            self.manifold_rows += len(rows)

    def summary(self) -> dict[str, float | None]:
        return {
            "validity": _ratio(self.valid, self.asked),
            "proximity": _ratio(self.distance, self.given),
            "sparsity": _ratio(self.sparsity, self.given),
            "manifold": _ratio(self.manifold, self.manifold_rows),
        }


@dataclass
class ChangeSums(_Sums):
    """The short form, for answers that are shown beside the counterfactuals."""

    asked: int = 0
    given: int = 0
    valid: int = 0
    distance: float = 0.0
    changed: int = 0

    def add(self, rows: Encoded, answers: Encoded, valid: Mask, given: Mask, schema: TableSchema) -> None:
        """Takes in N rows and their answers; only `given` ones count for distances."""
        self.asked += len(rows)
        self.given += int(given.sum())
        self.valid += int((valid & given).sum())
        rows, answers = rows.take(given), answers.take(given)
        self.distance += float(distances(rows, answers, schema).sum())
        self.changed += int(num_changed(rows, answers).sum())

    def summary(self, schema: TableSchema) -> dict[str, float | None]:
        """Proximity and sparsity as everywhere here; l1 and num_changed are the same as plain sums."""
        return {
            "validity": _ratio(self.valid, self.asked),
            "proximity": _ratio(self.distance, self.given),
            "l1": _ratio(self.distance * encoded_width(schema), self.given),
            "sparsity": _ratio(self.changed / len(schema.features), self.given),
            "num_changed": _ratio(self.changed, self.given),
        }


@dataclass
class EvaluationSums(_Sums):
    """Everything `evaluate` reports."""

    rows: int = 0
    rejected: int = 0
    labelled: int = 0
    correct: int = 0
    own_manifold: float = 0.0
    own_manifold_rows: int = 0
    cf: CounterfactualSums = field(default_factory=CounterfactualSums)
    fcf: CounterfactualSums = field(default_factory=CounterfactualSums)

    def summary(self) -> dict[str, Any]:
        """The metrics contract: rows, accuracy, cf and fcf; None where nothing could be measured."""
        return {
            "rows": self.rows,
            "rows_rejected": self.rejected,
            "accuracy": _ratio(self.correct, self.labelled),
            "manifold_of_rows": _ratio(self.own_manifold, self.own_manifold_rows),
            "cf": self.cf.summary(),
            "fcf": {**self.fcf.summary(), "violations": self.fcf.violations},
        }


def selection_score(summary: dict[str, Any], weights: Selection) -> float:
    """One number by which epochs are compared: validity first, then accuracy, then proximity.

    Validity is that of the worse of cf and fcf, and counts up to 0.998: more is the luck of a validation
    split.
    """
    validity = min(summary[name]["validity"] for name in ("cf", "fcf") if summary[name]["validity"] is not None)
    accuracy, proximity = summary["accuracy"] or 0.0, summary["cf"]["proximity"] or 0.0
    return float(weights.validity * min(validity, 0.998) + weights.accuracy * accuracy - weights.proximity * proximity)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
