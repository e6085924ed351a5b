"""The full evaluation of rows: any cut merges to the whole, and figures are those of a loop."""

import io
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ray_cfnet.cli.display import show_evaluated
from ray_cfnet.errors import ConfigError
from ray_cfnet.explain.evaluation import Measures, evaluated, summed
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.metrics import EvaluationSums
from ray_cfnet.model.paper import FIGURES, paper_figures
from ray_cfnet.model.robustness import StabilitySums
from ray_cfnet.model.trivial import TrivialAnswers
from ray_cfnet.tables.codec import Encoded, encode
from tests.unit.helpers import people, untrained_bundle

BUNDLE = untrained_bundle()
ROWS = encode(people(150, 5), BUNDLE.schema)[0]
LABELS = np.arange(150) % 2
EXPLAINERS = {desired: Explainer(BUNDLE, desired) for desired in (None, 1)}


def trivial_answers(explainer: Explainer) -> TrivialAnswers:
    reference = encode(people(200, 6), BUNDLE.schema)[0]
    predicted = explainer.predicted(reference)
    return TrivialAnswers(reference, predicted, explainer.wanted(predicted), BUNDLE.schema)


TRIVIAL = {desired: trivial_answers(explainer) for desired, explainer in EXPLAINERS.items()}


def measured(desired: int | None, cut: slice) -> tuple[EvaluationSums, Measures]:
    explainer = EXPLAINERS[desired]
    found = explainer.explain(ROWS.take(cut))
    measures = Measures(2.0, StabilitySums([0.0, 0.1]))
    measures.add(explainer, found)
    measures.attack(explainer, found.rows)
    measures.compare(explainer, TRIVIAL[desired], found.rows, found.predicted)
    return summed(found, LABELS[cut], BUNDLE.schema), measures


def flat(summary: dict) -> dict[str, object]:
    items: dict[str, object] = {}
    for key, value in summary.items():
        value = dict(enumerate(value)) if isinstance(value, list) else value
        items |= {f"{key}.{k}": v for k, v in flat(value).items()} if isinstance(value, dict) else {key: value}
    return items


@pytest.mark.parametrize("desired", [None, 1])
@given(cuts=st.lists(st.integers(0, 150), max_size=3))
@settings(max_examples=10, deadline=None)
def test_any_cut_merges_to_the_summary_of_the_whole(desired: int | None, cuts: list[int]) -> None:
    sums, measures = EvaluationSums(), Measures(2.0, StabilitySums([0.0, 0.1]))
    bounds = [0, *sorted(cuts), 150]
    for start, stop in pairwise(bounds):
        part, part_measures = measured(desired, slice(start, stop))
        sums.merge(part)
        measures.merge(part_measures)
    whole, whole_measures = measured(desired, slice(0, 150))
    found, expected = measures.summary(sums, BUNDLE.schema), whole_measures.summary(whole, BUNDLE.schema)
    assert flat(found) == pytest.approx(flat(expected))


def test_the_basic_keys_stay_what_training_validates_with() -> None:
    sums, measures = measured(1, slice(0, 150))
    basic = evaluated(EXPLAINERS[1], ROWS, LABELS).summary()
    full = measures.summary(sums, BUNDLE.schema)
    assert basic.keys() <= full.keys()
    assert flat(basic).items() <= flat(full).items()


@pytest.mark.parametrize("desired", [None, 1])
def test_second_order_and_distinct_are_those_of_a_loop_over_rows(desired: int | None) -> None:
    explainer = EXPLAINERS[desired]
    found = explainer.explain(ROWS)
    sums, measures = measured(desired, slice(0, 150))
    summary = measures.summary(sums, BUNDLE.schema)
    for key, cf, asked, told in (
        ("cf", found.cf, range(150), range(150)),
        ("fcf", found.fcf, np.flatnonzero(found.wants_fcf), np.flatnonzero(found.has_fcf)),
    ):
        valid = changed = 0
        for i in told:
            kept = [
                x if abs(x - y) <= 2 + 1e-9 else y
                for x, y in zip(ROWS.values[i].tolist(), cf.values[i].tolist(), strict=True)
            ]
            # Alone in its batch: no vectorised code in common.
            row = Encoded(np.array([kept]), cf.codes[i][None])
            target = desired if desired is not None else 1 - found.predicted[i]
            valid += int(explainer.predicted(row)[0] == target)
            changed += sum(x != y for x, y in zip(ROWS.values[i].tolist(), kept, strict=True))
            changed += int((ROWS.codes[i] != cf.codes[i]).sum())
        second = summary[key]["second_order"]
        assert second["validity"] == pytest.approx(valid / len(asked))
        assert second["num_changed"] == pytest.approx(changed / len(told))
        answers = {(*cf.values[i].tolist(), *cf.codes[i].tolist()) for i in told}
        rows = {(*ROWS.values[i].tolist(), *ROWS.codes[i].tolist()) for i in told}
        assert summary[key]["distinct"] == pytest.approx(len(answers) / len(rows))


def test_trivial_answers_are_valid_by_making() -> None:
    sums, measures = measured(None, slice(0, 150))
    trivial = measures.summary(sums, BUNDLE.schema)["trivial"]
    assert trivial["rows"] == 150
    assert trivial["constant"]["validity"] == trivial["nearest"]["validity"] == 1.0
    assert trivial["nearest"]["proximity"] <= trivial["constant"]["proximity"]


def test_every_figure_of_the_paper_meets_one_of_ours() -> None:
    sums, measures = measured(None, slice(0, 150))
    ours = flat(measures.summary(sums, BUNDLE.schema))
    for name in FIGURES:
        theirs = flat({key: value for key, value in paper_figures(name).items() if key not in ("dataset", "tables")})
        assert theirs.keys() - {"base_accuracy"} <= ours.keys()


def test_the_papers_sparsity_is_its_second_order_sparsity() -> None:
    for name in ("adult", "heloc", "oulad", "titanic", "cancer"):
        cf = FIGURES[name]["cf"]
        assert cf["sparsity"] == pytest.approx(cf["second_order"]["sparsity"], abs=0.00051)  # three digits


@pytest.mark.parametrize("name", [None, "loans"])
def test_a_table_that_the_paper_does_not_have_is_refused_with_those_it_has(name: str | None) -> None:
    with pytest.raises(ConfigError, match="adult, cancer, covertype, credit, german, heloc, oulad, student, titanic"):
        paper_figures(name)


def test_people_get_all_of_it_on_one_screen() -> None:
    sums, measures = measured(None, slice(0, 150))
    out = io.StringIO()
    show_evaluated(
        Console(file=out, width=80), {**measures.summary(sums, BUNDLE.schema), "paper": paper_figures("adult")}
    )
    lines = out.getvalue().splitlines()
    assert len(lines) <= 35
    assert "…" not in out.getvalue()
    for word in ("trivial: nearest row", "PGD", "second-order validity", "0.995", "Table 3", "distinct"):
        assert word in out.getvalue()
