"""How good the explanations of some rows are: what `evaluate` sums up and training validates with."""

from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.metrics import EvaluationSums, Manifold
from ray_cfnet.tables.codec import CodeArray, Encoded


def evaluated(
    explainer: Explainer, rows: Encoded, labels: CodeArray, manifold: Manifold | None = None
) -> EvaluationSums:
    """Sums over rows and their class indices (-1: no label); manifold distances only if it is given."""
    found, schema = explainer.explain(rows), explainer.schema
    known = labels >= 0
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
