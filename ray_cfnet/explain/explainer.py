"""A table in, an explained table out: predict -> counterfactual -> project -> prove -> columns.

Every flag and probability is computed on the values that are written: rounded, typed and encoded anew.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from ray_cfnet.config import Words
from ray_cfnet.explain.columns import ROW_STATUS, output_schema, rejects_schema
from ray_cfnet.explain.refine import Refiner
from ray_cfnet.explain.words import Wording, no_words
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.inference import Inference, likeliest
from ray_cfnet.model.metrics import distances, num_changed
from ray_cfnet.model.net import Rows
from ray_cfnet.tables.codec import (
    REJECT_REASONS,
    CodeArray,
    Encoded,
    Mask,
    Rejects,
    bitmap,
    decode,
    encode,
    flag_column,
    from_unit,
    label_column,
    number_column,
    to_unit,
)
from ray_cfnet.tables.constraints import project
from ray_cfnet.tables.schema import TableSchema

BATCH_ROWS = 16_384
"""Rows per forward pass: large enough to be vectorised, small enough to stay in the processor's cache."""

_OK, _ALREADY_DESIRED, _NO_FEASIBLE_CF = range(len(ROW_STATUS))

Floats = npt.NDArray[np.float32]


@dataclass
class Explanations:
    """What is known about N scored rows, still as numbers."""

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

    @classmethod
    def to_fill(cls, rows: Encoded) -> "Explanations":
        """Room for what will be known about rows: batches write into it, and nothing has to be joined."""
        num_rows = len(rows)
        return cls(
            rows,
            np.empty(num_rows, dtype=np.int64),
            np.empty(num_rows, dtype=np.float32),
            Encoded.like(rows),
            np.empty(num_rows, dtype=bool),
            np.empty(num_rows, dtype=np.float32),
            Encoded.like(rows),
            np.empty(num_rows, dtype=bool),
            np.empty(num_rows, dtype=np.float32),
            np.empty(num_rows, dtype=np.int8),
        )

    @property
    def has_fcf(self) -> Mask:
        """Rows with a feasible counterfactual to tell; the others' `fcf` values mean nothing."""
        return self.status == _OK

    @property
    def wants_fcf(self) -> Mask:
        return self.status != _ALREADY_DESIRED

    def take(self, index: Mask | slice) -> "Explanations":
        """Some of the rows; of a slice, views."""
        picked: dict[str, Any] = {}
        for item in fields(self):
            column = getattr(self, item.name)
            picked[item.name] = column.take(index) if isinstance(column, Encoded) else column[index]
        return Explanations(**picked)


class Explainer:
    """Applies a bundle to Arrow data. Pure: the same rows always give the same columns."""

    def __init__(
        self,
        bundle: Bundle,
        desired: int | None,
        refine: bool = False,
        margin: float = 0.0,
        words: Words | None = None,
    ) -> None:
        self.bundle = bundle
        self.schema = bundle.schema
        self.net = bundle.net.eval()
        self.device = next(bundle.net.parameters()).device
        self.desired = desired
        self._inference = Inference(self.net)
        self._refiner = Refiner(self._inference, self.schema, margin) if refine else None
        self._wording = Wording(words, self.schema) if words else None

    def explain(self, rows: Encoded) -> Explanations:
        """Explains rows without rejects."""
        found = Explanations.to_fill(rows)
        for start in range(0, len(rows), BATCH_ROWS):
            self._explain_batch(found.take(slice(start, start + BATCH_ROWS)))
        return found

    def _explain_batch(self, found: Explanations) -> None:
        """Fills in what is to be known about `found.rows`."""
        rows = self._tensors(found.rows)
        seen = self._inference.predict(rows)
        predicted = likeliest(seen.probabilities)
        found.predicted[:] = _numpy(predicted)
        found.probability[:] = _of_classes(seen.probabilities, predicted)
        desired = self.wanted(found.predicted)
        numbers, codes = self._inference.generate(rows, seen)
        from_unit(_numpy(numbers).T, self.schema, out=found.cf.values)
        for column, category in enumerate(codes):
            found.cf.codes[:, column] = _numpy(category)
        self._prove(found.cf, desired, found.cf_valid, found.cf_probability)
        project(found.rows, found.cf, self.schema, out=found.fcf)
        self._prove(found.fcf, desired, found.fcf_valid, found.fcf_probability)
        if self._refiner is not None:
            self._refine(self._refiner, found, desired)
        found.status[:] = np.where(found.fcf_valid, _OK, _NO_FEASIBLE_CF)
        found.status[found.predicted == desired] = _ALREADY_DESIRED

    def predicted(self, rows: Encoded) -> CodeArray:
        """(N,) the predicted classes of rows without rejects."""
        classes = np.empty(len(rows), dtype=np.int64)
        for start in range(0, len(rows), BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            probabilities = self._inference.predict(self._tensors(rows.take(part))).probabilities
            classes[part] = _numpy(likeliest(probabilities))
        return classes

    def wanted(self, predicted: CodeArray) -> CodeArray:
        """(N,) the classes that rows of these predicted classes should reach."""
        if self.desired is not None:
            return np.full_like(predicted, self.desired)
        if self.net.num_classes != 2:
            raise ValueError("the opposite class exists for two classes only; name the desired class")
        return 1 - predicted

    def _prove(self, candidates: Encoded, desired: CodeArray, valid: Mask, probability: Floats) -> None:
        """Fills in whether each candidate is predicted as desired, and with which probability."""
        probabilities = self._inference.predict(self._tensors(candidates)).probabilities
        np.equal(_numpy(likeliest(probabilities)), desired, out=valid)
        probability[:] = _of_classes(probabilities, torch.from_numpy(desired).to(self.device))

    def _refine(self, refiner: Refiner, found: Explanations, desired: CodeArray) -> None:
        """Takes back changes of the rows that have a feasible counterfactual."""
        some = np.flatnonzero(found.fcf_valid & (found.predicted != desired))
        if not len(some):
            return
        refined = refiner.refined(found.rows.take(some), found.fcf.take(some), desired[some])
        valid, probability = np.empty(len(some), dtype=bool), np.empty(len(some), dtype=np.float32)
        self._prove(refined, desired[some], valid, probability)
        # Trials add up in another order than the proof: one that does not hold to the last digit is not taken.
        some = some[valid]
        found.fcf.values[some], found.fcf.codes[some] = refined.values[valid], refined.codes[valid]
        found.fcf_probability[some] = probability[valid]

    def _tensors(self, rows: Encoded) -> Rows:
        """Encoded rows for inference: columns stay contiguous."""
        continuous = torch.from_numpy(to_unit(rows.values, self.schema))
        return Rows(continuous.to(self.device), torch.from_numpy(rows.codes).to(self.device))

    def explain_table(self, table: pa.Table, run_id: str) -> tuple[pa.Table, pa.Table, Explanations]:
        """(explained rows, rejected rows, the numbers behind): together every row of the table, in order."""
        encoded, rejects = encode(table, self.schema)
        good = rejects.good
        if good.all():
            kept, rejected = table, table.slice(0, 0)
        else:
            kept, rejected = table.filter(pa.array(good)), table.filter(pa.array(~good))
            encoded = encoded.take(good)
        explanations = self.explain(encoded)
        return (
            self._output(kept, explanations, run_id),
            self._reject_columns(rejected, rejects),
            explanations,
        )

    def _output(self, table: pa.Table, found: Explanations, run_id: str) -> pa.Table:
        schema = output_schema(self.schema, table.schema)
        types = {name: table.schema.field(name).type for name in self.schema.feature_names}
        classes, label_type = self.schema.target.classes, schema.field("pred_label").type
        has_fcf = bitmap(found.has_fcf)
        cf, fcf = decode(found.cf, self.schema, types), decode(found.fcf, self.schema, types, has_fcf)
        added = {
            "pred_label": label_column(found.predicted, classes, label_type),
            "pred_proba": pa.array(found.probability),
            **{f"cf_{name}": column for name, column in cf.items()},
            "cf_valid": pa.array(found.cf_valid),
            "cf_proba": pa.array(found.cf_probability),
            **{f"fcf_{name}": column for name, column in fcf.items()},
            "fcf_valid": flag_column(found.has_fcf, bitmap(found.wants_fcf)),
            "fcf_proba": number_column(found.fcf_probability, has_fcf),
            "fcf_num_changed": number_column(num_changed(found.rows, found.fcf), has_fcf),
            "fcf_distance": number_column(distances(found.rows, found.fcf, self.schema).astype(np.float32), has_fcf),
            **self._words(found),
            "row_status": label_column(found.status, ROW_STATUS, pa.string()),
            "model_id": _constant(self.bundle.id, len(table)),
            "run_id": _constant(run_id, len(table)),
        }
        names = schema.names[len(table.schema) :]
        return pa.table([*table.columns, *(added[name] for name in names)], names=schema.names)

    def _words(self, found: Explanations) -> dict[str, pa.Array]:
        if self._wording is None:
            return no_words(len(found.rows))
        desired = self.wanted(found.predicted)
        return self._wording.columns(found.rows, found.fcf, found.has_fcf, found.wants_fcf, desired)

    def _reject_columns(self, rejected: pa.Table, rejects: Rejects) -> pa.Table:
        bad = ~rejects.good
        reasons = label_column(rejects.reason[bad], REJECT_REASONS, pa.string())
        columns = label_column(rejects.feature[bad], tuple(self.schema.feature_names), pa.string())
        names = rejects_schema(rejected.schema).names
        return pa.table([*rejected.columns, reasons, columns], names=names)


def tensors(rows: Encoded, schema: TableSchema, device: torch.device) -> Rows:
    """Encoded rows as training takes them: row by row, to pick batches from."""
    continuous = torch.from_numpy(np.ascontiguousarray(to_unit(rows.values, schema)))
    return Rows(continuous.to(device), torch.from_numpy(np.ascontiguousarray(rows.codes)).to(device))


def _of_classes(probabilities: torch.Tensor, classes: torch.Tensor) -> Floats:
    """(N,) of (classes, N) probabilities, that of each row's class."""
    return _numpy(probabilities.gather(0, classes[None])[0])


def _numpy(tensor: torch.Tensor) -> npt.NDArray:
    return tensor.cpu().numpy()


def _constant(value: str, num_rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_rows, dtype=np.int32)), pa.array([value]))
