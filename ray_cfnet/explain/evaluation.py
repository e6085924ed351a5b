"""How good the explanations of some rows are: what `evaluate` sums up and training validates with."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ray_cfnet.explain.explainer import Explainer, tensors
from ray_cfnet.explain.explanations import Explanations
from ray_cfnet.model.distinct import DistinctAnswers
from ray_cfnet.model.metrics import ChangeSums, EvaluationSums, Manifold, encoded_width, second_order
from ray_cfnet.model.robustness import StabilitySums
from ray_cfnet.model.trivial import TrivialAnswers
from ray_cfnet.tables.codec import CodeArray, Encoded
from ray_cfnet.tables.schema import TableSchema


def evaluated(
    explainer: Explainer, rows: Encoded, labels: CodeArray, manifold: Manifold | None = None
) -> EvaluationSums:
    """Sums over rows and their class indices (-1: no label); manifold distances only if it is given."""
    return summed(explainer.explain(rows), labels, explainer.schema, manifold)


def summed(
    found: Explanations, labels: CodeArray, schema: TableSchema, manifold: Manifold | None = None
) -> EvaluationSums:
    """The same of rows that are explained already."""
    rows, known = found.rows, labels >= 0
    sums = EvaluationSums(
        rows=len(rows), labelled=int(known.sum()), correct=int((found.predicted == labels)[known].sum())
    )
    if manifold is not None and len(rows):
        sums.own_manifold, sums.own_manifold_rows = float(manifold.distances(rows).sum()), len(rows)
    everyone = found.status >= 0
    sums.cf.add(rows, found.cf, found.cf_valid, everyone, schema, manifold)
    wanted = found.wants_fcf
    sums.fcf.add(
        rows.take(wanted), found.fcf.take(wanted), found.fcf_valid[wanted], found.has_fcf[wanted], schema, manifold
    )
    return sums


@dataclass
class AnswerMeasures:
    """What `evaluate` asks of cf and of fcf beyond the basic sums."""

    second_order: ChangeSums = field(default_factory=ChangeSums)
    distinct: DistinctAnswers = field(default_factory=DistinctAnswers)

    def merge(self, other: "AnswerMeasures") -> None:
        self.second_order.merge(other.second_order)
        self.distinct.merge(other.distinct)

    def summary(self, schema: TableSchema) -> dict[str, Any]:
        return {"distinct": self.distinct.share, "second_order": self.second_order.summary(schema)}


@dataclass
class Measures:
    """Everything `evaluate` reports beyond the basic sums. Training leaves it out: it costs, and has a clock."""

    threshold: float
    stability: StabilitySums
    seconds: float = 0.0
    cf: AnswerMeasures = field(default_factory=AnswerMeasures)
    fcf: AnswerMeasures = field(default_factory=AnswerMeasures)
    constant: ChangeSums = field(default_factory=ChangeSums)
    nearest: ChangeSums = field(default_factory=ChangeSums)

    def add(self, explainer: Explainer, found: Explanations) -> None:
        """Second order and distinct answers of explained rows."""
        schema, desired = explainer.schema, explainer.wanted(found.predicted)
        everyone, wants = np.ones(len(found.rows), dtype=bool), found.wants_fcf
        for measures, cf, asked, given in (
            (self.cf, found.cf, everyone, everyone),
            (self.fcf, found.fcf, wants, found.has_fcf),
        ):
            rows, cf, given = found.rows.take(asked), cf.take(asked), given[asked]
            kept = second_order(rows, cf, self.threshold)
            measures.second_order.add(rows, kept, explainer.predicted(kept) == desired[asked], given, schema)
            measures.distinct.add(rows.take(given), cf.take(given))

    def attack(self, explainer: Explainer, rows: Encoded) -> None:
        """The stability of the predictor on rows."""
        self.stability.add(explainer.net, tensors(rows, explainer.schema, explainer.device))

    def compare(self, explainer: Explainer, trivial: TrivialAnswers, rows: Encoded, predicted: CodeArray) -> None:
        """What the trivial answers would be worth for rows."""
        desired = explainer.wanted(predicted)
        for sums, (answers, given) in (
            (self.constant, trivial.constant(predicted)),
            (self.nearest, trivial.nearest(rows, desired)),
        ):
            sums.add(rows, answers, explainer.predicted(answers) == desired, given, explainer.schema)

    def merge(self, other: "Measures") -> None:
        self.seconds += other.seconds
        for name in ("stability", "cf", "fcf", "constant", "nearest"):
            getattr(self, name).merge(getattr(other, name))

    def summary(self, basic: EvaluationSums, schema: TableSchema) -> dict[str, Any]:
        """The basic summary with all keys added."""
        summary = basic.summary()
        for name, measures in (("cf", self.cf), ("fcf", self.fcf)):
            proximity = summary[name]["proximity"]
            summary[name]["l1"] = None if proximity is None else proximity * encoded_width(schema)
            summary[name] |= measures.summary(schema)
        return {
            **summary,
            "second_order_threshold": self.threshold,
            "ms_per_row": 1000 * self.seconds / basic.rows if basic.rows else None,
            "stability": self.stability.summary(),
            "trivial": {
                "rows": self.constant.asked,
                "constant": self.constant.summary(schema),
                "nearest": self.nearest.summary(schema),
            },
        }
