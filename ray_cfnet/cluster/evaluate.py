"""Evaluation over a table: every actor measures its units, the sums are merged here."""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import ray
import torch

from ray_cfnet import config
from ray_cfnet.cluster.ingest import LabelledRows, SplitReader, concatenated, labelled_rows
from ray_cfnet.cluster.units import map_units
from ray_cfnet.errors import InputError
from ray_cfnet.explain.evaluation import Measures, summed
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.metrics import EvaluationSums, Manifold
from ray_cfnet.model.robustness import StabilitySums
from ray_cfnet.model.trivial import TrivialAnswers
from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.drift import check_columns
from ray_cfnet.tables.plan import Source, Unit
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.split import SpacedRows, SplitName, expected_rows

MANIFOLD_REFERENCE_ROWS = 50_000
MANIFOLD_ROWS = 20_000
"""Nearest-row distances are exact up to these sizes; beyond, evenly spaced rows stand for the rest."""
TRIVIAL_ROWS = 5_000
"""Of so many evenly spaced rows, those that want another class are given the trivial answers too."""


@dataclass(frozen=True)
class ReferenceUnit:
    """Evenly spaced usable training rows of a unit, with the unit's number."""

    reader: SplitReader
    schema: TableSchema
    every: int

    def __call__(self, unit: Unit) -> tuple[int, LabelledRows]:
        parts = []
        for _, rows in self.reader.read(unit, self.schema.feature_names):
            spaced = rows.take(np.arange(0, len(rows), self.every)) if self.every > 1 else rows
            parts.append(labelled_rows(spaced, self.schema))
        return unit.number, concatenated(parts, self.schema)


@dataclass(frozen=True)
class EvaluateUnit:
    """The sums over a unit's rows of a split, with the unit's number. What is costly is made once an actor."""

    reader: SplitReader
    columns: list[str]
    bundle: ray.ObjectRef
    reference: ray.ObjectRef | None
    desired: int | None
    rows_before: list[int]
    """Rows of the split before each unit, and at the end all of them; about, if the split is random."""
    settings: config.Evaluate | None
    """None: only the basic sums."""
    written: config.Explain | None
    """How explain would write; None: what the network gives, not refined."""

    @cached_property
    def explainer(self) -> Explainer:
        torch.set_num_threads(1)
        bundle = ray.get(self.bundle)
        return Explainer(bundle, self.desired, self.written)

    @cached_property
    def manifold(self) -> Manifold | None:
        return None if self.reference is None else Manifold(ray.get(self.reference), self.explainer.schema)

    @cached_property
    def trivial(self) -> TrivialAnswers | None:
        if self.reference is None:
            return None
        reference = ray.get(self.reference)
        predicted = self.explainer.predicted(reference)
        return TrivialAnswers(reference, predicted, self.explainer.wanted(predicted), self.explainer.schema)

    def spaced(self, unit: Unit, limit: int) -> SpacedRows:
        """This unit's share of `limit` rows spread over the whole split."""
        before, after, total = self.rows_before[unit.number], self.rows_before[unit.number + 1], self.rows_before[-1]
        share = limit * after // total - limit * before // total if total else 0
        return SpacedRows(after - before, share)

    def __call__(self, unit: Unit) -> tuple[int, EvaluationSums, Measures | None]:
        explainer, settings, sums = self.explainer, self.settings, EvaluationSums()
        near, asked = self.spaced(unit, MANIFOLD_ROWS), self.spaced(unit, TRIVIAL_ROWS)
        if settings is not None:
            measures = Measures(settings.second_order_threshold, StabilitySums(settings.epsilons))
            attacked = self.spaced(unit, settings.robustness_rows)
        for _, table in self.reader.read(unit, self.columns):
            rows = labelled_rows(table, explainer.schema)
            sums.rejected += rows.rejected
            if len(rows) == 0:
                continue
            started = time.perf_counter()
            found = explainer.explain(rows.encoded)
            seconds = time.perf_counter() - started
            # Distances to the nearest training row are dear: some rows stand for all.
            is_near = near.next(len(rows))
            sums.merge(summed(found.take(is_near), rows.labels[is_near], explainer.schema, self.manifold))
            sums.merge(summed(found.take(~is_near), rows.labels[~is_near], explainer.schema))
            if settings is not None:
                measures.seconds += seconds
                measures.add(explainer, found)
                measures.attack(explainer, rows.encoded.take(attacked.next(len(rows))))
                asking = found.take(asked.next(len(rows)) & found.wants_fcf)
                if self.trivial is not None:
                    measures.compare(explainer, self.trivial, asking.rows, asking.predicted)
        return unit.number, sums, measures if settings is not None else None


def reference_rows(source: Source, bundle: Bundle, whole: config.Config) -> Encoded:
    """Training rows, all or evenly spaced ones, that stand for what is usual. Needs a Ray session."""
    cut, schema = bundle.settings.split, bundle.schema
    every = max(1, round(source.num_rows * cut.train / MANIFOLD_REFERENCE_ROWS))
    unit = ReferenceUnit(SplitReader.of(source, whole.table, cut, "train"), schema, every)
    # Units get ready in any order; by number, the same table always gives the same figures to the last digit.
    parts = sorted(map_units(source.units(whole.explain.unit_rows), unit, whole.cluster), key=lambda part: part[0])
    return concatenated([rows for _, rows in parts], schema).encoded


def evaluate(
    source: Source,
    bundle: Bundle,
    whole: config.Config,
    split: SplitName | None,
    everything: bool = False,
    reference: Encoded | None = None,
) -> dict[str, Any]:
    """Metrics of a bundle on a split of the table, or on all of it. Needs a Ray session.

    Basic ones, which depend on nothing but rows and bundle, or `everything`; `reference` rows are read if they are not
    given. Raises InputError when the columns do not fit the bundle or the split is empty.
    """
    schema = bundle.schema
    needed = {feature.name: feature.arrow_type for feature in schema.features}
    if schema.target.name in source.schema.names:
        needed[schema.target.name] = schema.target.arrow_type
    check_columns(source, needed, narrower=True)  # as explain
    schema = schema.held_by(source.schema)
    bundle = replace(bundle, schema=schema)
    columns = list(needed)
    units = source.units(whole.explain.unit_rows)
    cut = bundle.settings.split  # the rows it was trained on are known to the bundle alone
    if reference is None:
        reference = reference_rows(source, bundle, whole)
    evaluate_unit = EvaluateUnit(
        SplitReader.of(source, whole.table, cut, split),
        columns,
        ray.put(bundle),
        ray.put(reference) if len(reference) else None,
        bundle.desired_for(whole.explain.desired),
        list(accumulate((_rows_of(unit, cut, split, source.num_rows) for unit in units), initial=0)),
        whole.evaluate if everything else None,
        whole.explain.model_copy(update={"only": "all"}) if everything else None,
    )
    parts: list[tuple[int, EvaluationSums]] = []
    measures = Measures(whole.evaluate.second_order_threshold, StabilitySums(whole.evaluate.epsilons))
    for number, part, part_measures in map_units(units, evaluate_unit, whole.cluster):
        parts.append((number, part))
        if part_measures is not None:
            measures.merge(part_measures)  # at once: its sketches are too large to keep for every unit
    sums = EvaluationSums()
    for _, part in sorted(parts, key=lambda part: part[0]):
        sums.merge(part)
    if sums.rows == 0:
        raise InputError(
            f"{source.root}: no usable row in the {split or 'whole'} split ({sums.rejected} rejected)",
            "check the columns' values, or choose another --split",
        )
    return measures.summary(sums, schema) if everything else sums.summary()


def _rows_of(unit: Unit, split: config.Split, name: SplitName | None, table_rows: int) -> int:
    if name is None:
        return unit.num_rows
    return sum(expected_rows(name, split, piece.first_row, piece.num_rows, table_rows) for piece in unit.pieces)
