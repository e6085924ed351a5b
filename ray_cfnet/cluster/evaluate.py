"""Evaluation over a table: every actor measures its units, the sums are merged here."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch

from ray_cfnet import config
from ray_cfnet.cluster.ingest import LabelledRows, SplitReader, concatenated, labelled_rows
from ray_cfnet.cluster.units import map_units
from ray_cfnet.errors import InputError
from ray_cfnet.explain.evaluation import evaluated
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.metrics import EvaluationSums, Manifold
from ray_cfnet.tables.plan import Source, Unit, check_columns
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.split import SplitName

MANIFOLD_REFERENCE_ROWS = 50_000
MANIFOLD_ROWS = 20_000
"""Nearest-row distances are exact up to these sizes; beyond, evenly spaced rows stand for the rest."""


@dataclass(frozen=True)
class ReferenceUnit:
    """Evenly spaced usable training rows of a unit."""

    reader: SplitReader
    schema: TableSchema
    every: int

    def __call__(self, unit: Unit) -> LabelledRows:
        parts = []
        for _, rows in self.reader.read(unit, self.schema.feature_names):
            spaced = rows.take(np.arange(0, len(rows), self.every)) if self.every > 1 else rows
            parts.append(labelled_rows(spaced, self.schema))
        return concatenated(parts, self.schema)


@dataclass(frozen=True)
class EvaluateUnit:
    """The sums over a unit's rows of a split."""

    reader: SplitReader
    columns: list[str]
    bundle: ray.ObjectRef
    reference: ray.ObjectRef | None
    desired: int | None
    manifold_rows: int

    def __call__(self, unit: Unit) -> EvaluationSums:
        torch.set_num_threads(1)
        explainer = Explainer(ray.get(self.bundle), self.desired)
        manifold = Manifold(ray.get(self.reference), explainer.schema) if self.reference is not None else None
        sums = EvaluationSums()
        for _, table in self.reader.read(unit, self.columns):
            rows = labelled_rows(table, explainer.schema)
            sums.rejected += rows.rejected
            # Distances to the nearest training row are dear: the first rows of a unit stand for it.
            near = max(0, self.manifold_rows - sums.rows)
            sums.merge(evaluated(explainer, rows.encoded.take(slice(0, near)), rows.labels[:near], manifold))
            sums.merge(evaluated(explainer, rows.encoded.take(slice(near, None)), rows.labels[near:]))
        return sums


def evaluate(source: Source, bundle: Bundle, whole: config.Config, split: SplitName | None) -> dict[str, Any]:
    """Metrics of a bundle on a split of the table, or on all of it. Needs a Ray session.

    Raises InputError when the columns do not fit the bundle or the split is empty.
    """
    schema = bundle.schema
    needed = {feature.name: feature.arrow_type for feature in schema.features}
    if schema.target.name in source.schema.names:
        needed[schema.target.name] = schema.target.arrow_type
    check_columns(source, needed)
    columns = list(needed)
    units = source.units(whole.explain.unit_rows)
    actors = whole.cluster.num_actors

    every = max(1, round(source.num_rows * bundle.settings.split.train / MANIFOLD_REFERENCE_ROWS))
    reference_unit = ReferenceUnit(SplitReader.of(source, whole.table, bundle.settings.split, "train"), schema, every)
    reference = concatenated(list(map_units(units, reference_unit, actors)), schema)
    evaluate_unit = EvaluateUnit(
        SplitReader.of(source, whole.table, bundle.settings.split, split),
        columns,
        ray.put(bundle),
        ray.put(reference.encoded) if len(reference) else None,
        bundle.desired_for(whole.explain.desired),
        max(1, MANIFOLD_ROWS // len(units)),
    )
    sums = EvaluationSums()
    for part in map_units(units, evaluate_unit, actors):
        sums.merge(part)
    if sums.rows == 0:
        raise InputError(
            f"{source.root}: no usable row in the {split or 'whole'} split ({sums.rejected} rejected)",
            "check the columns' values, or choose another --split",
        )
    return sums.summary()
