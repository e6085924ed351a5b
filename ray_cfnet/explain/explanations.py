"""What is known about explained rows, still as numbers."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from ray_cfnet.explain.columns import ROW_STATUS
from ray_cfnet.tables.codec import CodeArray, Encoded, Mask

OK, ALREADY_DESIRED, NO_FEASIBLE_CF, NOT_SELECTED = range(len(ROW_STATUS))

Floats = npt.NDArray[np.float32]

NUM_REASONS = 4


@dataclass
class Option:
    """Another feasible counterfactual, for the rows that have one."""

    fcf: Encoded
    exists: Mask
    probability: Floats

    def take(self, index: Mask | CodeArray | slice) -> "Option":
        return Option(self.fcf.take(index), self.exists[index], self.probability[index])


@dataclass
class Explanations:
    """Of N scored rows."""

    rows: Encoded
    predicted: npt.NDArray[np.int64]
    probability: Floats
    """Of the predicted class."""
    cf: Encoded
    cf_valid: Mask
    cf_probability: Floats
    """Of the desired class, at the counterfactual."""
    fcf: Encoded
    fcf_valid: Mask
    fcf_probability: Floats
    status: npt.NDArray[np.int8]
    binding: npt.NDArray[np.int16]
    """(N, 4) of rows without a feasible counterfactual: positions of features whose rules stand in the way, or -1."""
    options: list[Option] = field(default_factory=list)
    """The second feasible counterfactual, the third, ..."""

    @classmethod
    def to_fill(cls, rows: Encoded, num_options: int = 1) -> "Explanations":
        """Room for what will be known about rows: batches write into it, and nothing has to be joined."""
        num_rows = len(rows)

        def probabilities() -> Floats:
            return np.zeros(num_rows, dtype=np.float32)

        return cls(
            rows,
            np.empty(num_rows, dtype=np.int64),
            probabilities(),
            Encoded.like(rows),
            np.zeros(num_rows, dtype=bool),
            probabilities(),
            Encoded.like(rows),
            np.zeros(num_rows, dtype=bool),
            probabilities(),
            np.full(num_rows, NOT_SELECTED, dtype=np.int8),
            np.full((num_rows, NUM_REASONS), -1, dtype=np.int16),
            [Option(_copy(rows), np.zeros(num_rows, dtype=bool), probabilities()) for _ in range(num_options - 1)],
        )

    @property
    def is_explained(self) -> Mask:
        """Rows that were asked for; the others have a prediction and nothing else."""
        return self.status != NOT_SELECTED

    @property
    def has_fcf(self) -> Mask:
        """Rows with a feasible counterfactual to tell; the others' `fcf` values mean nothing."""
        return self.status == OK

    @property
    def wants_fcf(self) -> Mask:
        return (self.status == OK) | (self.status == NO_FEASIBLE_CF)

    def take(self, index: Mask | slice) -> "Explanations":
        """Some of the rows; of a slice, views."""
        picked: dict[str, Any] = {}
        for item in fields(self):
            column = getattr(self, item.name)
            if isinstance(column, list):
                picked[item.name] = [option.take(index) for option in column]
            else:
                picked[item.name] = column.take(index) if isinstance(column, Encoded) else column[index]
        return Explanations(**picked)

    def keep_rows(self) -> None:
        """Values that mean nothing yet become those of the rows: what is left of them is no stray memory."""
        for made in (self.cf, self.fcf):
            made.values[:], made.codes[:] = self.rows.values, self.rows.codes

    def put(self, places: Mask, part: "Explanations") -> None:
        """Writes what is known about some of the rows, but for the rows themselves."""
        for item in fields(self):
            if item.name != "rows":
                _put(getattr(self, item.name), places, getattr(part, item.name))


def _copy(rows: Encoded) -> Encoded:
    return Encoded(rows.values.copy(order="F"), rows.codes.copy(order="F"))


def _put(room: Any, places: Mask, part: Any) -> None:
    if isinstance(room, list):
        for mine, theirs in zip(room, part, strict=True):
            for name in ("fcf", "exists", "probability"):
                _put(getattr(mine, name), places, getattr(theirs, name))
    elif isinstance(room, Encoded):
        room.values[places], room.codes[places] = part.values, part.codes
    else:
        room[places] = part
