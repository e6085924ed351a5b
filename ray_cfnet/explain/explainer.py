"""A table in, an explained table out: predict -> counterfactual -> project -> prove -> columns.

Every flag and probability is computed on the values that are written: rounded, typed and encoded anew.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ray_cfnet.explain.columns import ROW_STATUS, output_schema, rejects_schema
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.metrics import distances, num_changed
from ray_cfnet.model.net import Rows
from ray_cfnet.model.step import desired_classes
from ray_cfnet.tables.codec import (
    REJECT_REASONS,
    CodeArray,
    Encoded,
    Mask,
    Rejects,
    decode,
    encode,
    from_unit,
    label_column,
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

    @property
    def has_fcf(self) -> Mask:
        """Rows with a feasible counterfactual to tell; the others' `fcf` values mean nothing."""
        return self.status == _OK

    @property
    def wants_fcf(self) -> Mask:
        return self.status != _ALREADY_DESIRED

    def take(self, index: Mask) -> "Explanations":
        """Some of the rows."""
        picked: dict[str, Any] = {}
        for item in fields(self):
            column = getattr(self, item.name)
            picked[item.name] = column.take(index) if isinstance(column, Encoded) else column[index]
        return Explanations(**picked)


class Explainer:
    """Applies a bundle to Arrow data. Pure: the same rows always give the same columns."""

    def __init__(self, bundle: Bundle, desired: int | None) -> None:
        self.bundle = bundle
        self.schema = bundle.schema
        self.net = bundle.net.eval()
        self.device = next(bundle.net.parameters()).device
        self.desired = desired

    def explain(self, rows: Encoded) -> Explanations:
        """Explains rows without rejects."""
        parts = [
            self._explain_batch(rows.take(slice(start, start + BATCH_ROWS)))
            for start in range(0, len(rows), BATCH_ROWS)
        ]
        return _joined(parts or [self._explain_batch(rows)])

    @torch.inference_mode()
    def _explain_batch(self, rows: Encoded) -> Explanations:
        probabilities, generated = self.net(tensors(rows, self.schema, self.device))
        predicted = probabilities.argmax(dim=1)
        desired = desired_classes(probabilities, self.desired)
        cf = Encoded(from_unit(_numpy(generated.continuous), self.schema), _numpy(generated.codes))
        cf_valid, cf_probability = self._prove(cf, desired)
        fcf = project(rows, cf, self.schema)
        fcf_valid, fcf_probability = self._prove(fcf, desired)
        status = np.where(fcf_valid, _OK, _NO_FEASIBLE_CF).astype(np.int8)
        status[_numpy(predicted == desired)] = _ALREADY_DESIRED
        return Explanations(
            rows,
            _numpy(predicted),
            _numpy(probabilities.gather(1, predicted[:, None])[:, 0]),
            cf,
            cf_valid,
            cf_probability,
            fcf,
            fcf_valid,
            fcf_probability,
            status,
        )

    @torch.inference_mode()
    def predicted(self, rows: Encoded) -> CodeArray:
        """(N,) the predicted classes of rows without rejects."""
        classes = np.empty(len(rows), dtype=np.int64)
        for start in range(0, len(rows), BATCH_ROWS):
            part = slice(start, start + BATCH_ROWS)
            _, probabilities = self.net.predict(self.net.encode(tensors(rows.take(part), self.schema, self.device)))
            classes[part] = _numpy(probabilities.argmax(dim=1))
        return classes

    def wanted(self, predicted: CodeArray) -> CodeArray:
        """(N,) the classes that rows of these predicted classes should reach."""
        return 1 - predicted if self.desired is None else np.full_like(predicted, self.desired)

    def _prove(self, candidates: Encoded, desired: torch.Tensor) -> tuple[Mask, Floats]:
        """Whether each candidate is predicted as desired, and with which probability."""
        _, probabilities = self.net.predict(self.net.encode(tensors(candidates, self.schema, self.device)))
        valid = probabilities.argmax(dim=1) == desired
        return _numpy(valid), _numpy(probabilities.gather(1, desired[:, None])[:, 0])

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
        cf = decode(found.cf, self.schema, types)
        no_fcf = pa.array(~found.has_fcf)
        fcf = {name: _null_where(no_fcf, column) for name, column in decode(found.fcf, self.schema, types).items()}
        fcf_numbers = {
            "fcf_proba": pa.array(found.fcf_probability),
            "fcf_num_changed": pa.array(num_changed(found.rows, found.fcf)),
            "fcf_distance": pa.array(distances(found.rows, found.fcf, self.schema).astype(np.float32)),
        }
        added = {
            "pred_label": label_column(found.predicted, classes, label_type),
            "pred_proba": pa.array(found.probability),
            **{f"cf_{name}": column for name, column in cf.items()},
            "cf_valid": pa.array(found.cf_valid),
            "cf_proba": pa.array(found.cf_probability),
            **{f"fcf_{name}": column for name, column in fcf.items()},
            "fcf_valid": _null_where(pa.array(~found.wants_fcf), pa.array(found.has_fcf)),
            **{name: _null_where(no_fcf, column) for name, column in fcf_numbers.items()},
            "row_status": label_column(found.status.astype(np.int64), ROW_STATUS, pa.string()),
            "model_id": _constant(self.bundle.id, len(table)),
            "run_id": _constant(run_id, len(table)),
        }
        names = schema.names[len(table.schema) :]
        return pa.table([*table.columns, *(added[name] for name in names)], names=schema.names)

    def _reject_columns(self, rejected: pa.Table, rejects: Rejects) -> pa.Table:
        bad = ~rejects.good
        reasons = label_column(rejects.reason[bad].astype(np.int64), REJECT_REASONS, pa.string())
        columns = label_column(rejects.feature[bad].astype(np.int64), tuple(self.schema.feature_names), pa.string())
        names = rejects_schema(rejected.schema).names
        return pa.table([*rejected.columns, reasons, columns], names=names)


def tensors(rows: Encoded, schema: TableSchema, device: torch.device) -> Rows:
    """Encoded rows as the network takes them."""
    continuous = torch.from_numpy(to_unit(rows.values, schema))
    return Rows(continuous.to(device), torch.from_numpy(np.ascontiguousarray(rows.codes)).to(device))


def _numpy(tensor: torch.Tensor) -> npt.NDArray:
    return tensor.cpu().numpy()


def _null_where(mask: pa.Array, column: pa.Array) -> pa.Array:
    return pc.if_else(mask, pa.scalar(None, column.type), column)


def _constant(value: str, num_rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_rows, dtype=np.int32)), pa.array([value]))


def _joined(parts: list[Explanations]) -> Explanations:
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for item in fields(Explanations):
        pieces = [getattr(part, item.name) for part in parts]
        columns[item.name] = _joined_rows(pieces) if isinstance(pieces[0], Encoded) else np.concatenate(pieces)
    return Explanations(**columns)


def _joined_rows(parts: list[Encoded]) -> Encoded:
    # Through the transpose: columns stay contiguous.
    values = np.concatenate([part.values.T for part in parts], axis=1).T
    return Encoded(values, np.concatenate([part.codes for part in parts]))
