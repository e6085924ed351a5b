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
from ray_cfnet.tables.codec import Encoded, Mask, to_unit
from ray_cfnet.tables.constraints import violations
from ray_cfnet.tables.schema import FloatArray, TableSchema

_REFERENCE_ROWS = 4096
"""Reference rows compared at a time: keeps the distance matrix small."""


def distances(rows: Encoded, others: Encoded, schema: TableSchema) -> FloatArray:
    """(N,) L1 over the encoded row divided by its width, without building one-hot blocks."""
    span = np.array([f.span for f in schema.continuous])
    width = len(span) + sum(len(f.categories) for f in schema.categorical)
    moved = (np.abs(rows.values - others.values) / span).sum(axis=1)
    return (moved + 2.0 * (rows.codes != others.codes).sum(axis=1)) / width


def num_changed(rows: Encoded, others: Encoded) -> npt.NDArray[np.int32]:
    """(N,) how many raw features differ."""
    changed = (rows.values != others.values).sum(axis=1) + (rows.codes != others.codes).sum(axis=1)
    return changed.astype(np.int32)


class Manifold:
    """The training rows, to ask how far a row is from the nearest of them."""

    def __init__(self, reference: Encoded, schema: TableSchema) -> None:
        self.schema = schema
        self.reference = torch.unique(self._dense(reference), dim=0)

    def _dense(self, rows: Encoded) -> Tensor:
        """One-hot blocks: L1 between two of them is 2 for different categories, 0 for equal ones."""
        parts = [torch.from_numpy(to_unit(rows.values, self.schema))]
        for column, feature in enumerate(self.schema.categorical):
            codes = torch.from_numpy(np.ascontiguousarray(rows.codes[:, column]))
            parts.append(torch.nn.functional.one_hot(codes, len(feature.categories)).float())
        return torch.cat(parts, dim=1)

    def distances(self, rows: Encoded) -> FloatArray:
        """(N,) L1 to the nearest training row."""
        asked, where = torch.unique(self._dense(rows), dim=0, return_inverse=True)
        nearest = torch.full((len(asked),), torch.inf)
        for reference in self.reference.split(_REFERENCE_ROWS):
            nearest = torch.minimum(nearest, torch.cdist(asked, reference, p=1).amin(dim=1))
        return nearest[where].double().numpy()


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
