"""Repair, refinement and options: whatever the network and the rules, what is written is feasible and proven."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_cfnet.config import Explain, Model, Words
from ray_cfnet.config.ruletext import Relation
from ray_cfnet.errors import BundleError, ConfigError
from ray_cfnet.explain import refine, repair
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.explain.explanations import NO_FEASIBLE_CF, Explanations
from ray_cfnet.explain.options import changes
from ray_cfnet.model.bundle import Bundle, Settings, make_net
from ray_cfnet.model.metrics import distances, num_changed
from ray_cfnet.model.reference import PROTOTYPES, Reference
from ray_cfnet.tables.codec import Encoded, encode
from ray_cfnet.tables.constraints import project, violations
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, people, trained_bundle
from tests.unit.test_relations import tied_features

SCHEMA = trained_bundle().schema


def with_random_generator(seed: int) -> Bundle:
    """Most of its own counterfactuals are invalid, so that the search has to do."""
    bundle = copy.deepcopy(trained_bundle())
    torch.manual_seed(seed)
    torch.nn.init.normal_(bundle.net.generator_out.weight, std=0.5)
    return with_reference(bundle, encode(people(3_000, seed=5), SCHEMA)[0])


def with_reference(bundle: Bundle, rows: Encoded) -> Bundle:
    bundle.reference = Explainer(bundle, None).reference(rows)
    return bundle


def explained(bundle: Bundle, **settings) -> Explanations:
    rows, _ = encode(people(1_500, seed=7), bundle.schema)
    return Explainer(bundle, None, Explain(**settings)).explain(rows)


def proven(bundle: Bundle, found: Explanations, fcf: Encoded, told: np.ndarray) -> None:
    """By the plain network, with none of the code under test."""
    net, schema = bundle.net.eval(), bundle.schema
    units = np.empty((len(fcf), len(schema.continuous)))
    for column, feature in enumerate(schema.continuous):
        units[:, column] = (fcf.values[:, column] - feature.lower) / feature.span
    with torch.no_grad():
        x = torch.zeros(len(units), net.layout.width)
        x[:, : units.shape[1]] = torch.from_numpy(units)
        for column, start in enumerate(net.layout.block_starts):
            x[torch.arange(len(x)), start + torch.from_numpy(fcf.codes[:, column])] = 1.0
        classes = net.predict(net.encode_dense(x))[1].argmax(dim=1).numpy()
    assert (classes[told] == 1 - found.predicted[told]).all()
    assert not violations(found.rows.take(told), fcf.take(told), schema).any()


@pytest.mark.parametrize("seed", range(4))
def test_repair_finds_answers_that_the_network_did_not(seed: int) -> None:
    bundle = with_random_generator(seed)
    plain, repaired = explained(bundle, repair=False), explained(bundle)
    assert repaired.has_fcf.sum() >= plain.has_fcf.sum()
    assert repaired.has_fcf[plain.has_fcf].all()
    proven(bundle, repaired, repaired.fcf, repaired.has_fcf)


def test_repair_reaches_nearly_every_row_of_a_network_whose_own_answers_fail() -> None:
    shares = []
    for seed in range(8):
        bundle = with_random_generator(seed)
        plain, repaired = explained(bundle, repair=False), explained(bundle)
        if plain.has_fcf.mean() < 0.7 and len(set(plain.predicted)) == 2:
            shares.append((plain.has_fcf.mean(), repaired.has_fcf.mean()))
    assert len(shares) >= 2, "no such network among the seeds: the test shows nothing"
    assert all(after > 0.95 for _, after in shares), shares


def test_a_row_that_any_example_leads_to_the_class_has_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where none of the nearest ones does, which are tried first; without the search that follows examples."""
    monkeypatch.setattr(repair, "_CLIMBING_ROUNDS", 0)
    bundle = with_random_generator(1)
    features = tuple(replace(f, immutable=f.immutable or f.name == "income") for f in SCHEMA.features)
    bundle.schema = replace(SCHEMA, features=features)
    found = explained(bundle, refine="none")
    examples, classes = bundle.reference.prototypes, bundle.reference.classes
    explainer, led = Explainer(bundle, None), np.zeros((len(found.rows), len(examples)), dtype=bool)
    for number in range(len(examples)):
        example = examples.take(np.full(len(found.rows), number))
        way = project(found.rows, example, bundle.schema)
        led[:, number] = (explainer.predicted(way) != found.predicted) & (classes[number] != found.predicted)
    assert found.has_fcf[led.any(axis=1)].all()
    assert 0.1 < led.any(axis=1).mean() < 0.5, "the rules leave few ways"


@pytest.mark.parametrize("needed", ["age", "housing"])
def test_changes_take_along_what_they_need(needed: str) -> None:
    """Where no example shows how: all of them are younger, and age only grows; and all have the rows' housing."""
    bundle = with_random_generator(1)
    features = tuple(replace(f, immutable=f.name not in ("age", "grade", "housing")) for f in SCHEMA.features)
    rules = tuple(Relation("needs", name, needed) for name in ("age", "grade", "housing") if name != needed)
    bundle.schema = replace(SCHEMA, features=features, rules=rules)
    rows, _ = encode(people(5_000, seed=5), SCHEMA)
    rows = rows.take(rows.codes[:, 1] == 0)
    bundle = with_reference(bundle, rows.take(rows.values[:, 0] < 40))
    rows = rows.take(np.flatnonzero(rows.values[:, 0] >= 40)[:400])
    explainer = Explainer(bundle, 1, Explain())
    found = explainer.explain(rows)
    assert found.has_fcf.sum() > 20
    stuck = np.flatnonzero(found.status == NO_FEASIBLE_CF)
    ways = list(itertools.product(range(40, 82), range(3), range(3)))
    each = np.repeat(stuck, len(ways))
    own, tried = rows.take(each), rows.take(each)
    tried.values[:, 0], tried.codes[:, 0], tried.codes[:, 1] = np.tile(ways, (len(stuck), 1)).T
    could = (explainer.predicted(tried) == 1) & ~violations(own, tried, bundle.schema)
    assert len(np.unique(each[could])) <= 0.01 * found.has_fcf.sum()


def test_rows_without_a_way_say_which_rules_moved_what_the_network_proposed() -> None:
    """Where there are no examples to look at."""
    bundle = with_random_generator(0)
    found = explained(bundle, repair=False)
    stuck = found.status == 2
    assert stuck.sum() > 20
    moved = {}
    for position, feature in enumerate(SCHEMA.features):
        kind = "values" if feature.kind == "continuous" else "codes"
        column = (SCHEMA.continuous if kind == "values" else SCHEMA.categorical).index(feature)
        moved[position] = getattr(found.cf, kind)[:, column] != getattr(found.fcf, kind)[:, column]
    for row in np.flatnonzero(stuck)[:50]:
        named = [position for position in found.binding[row].tolist() if position >= 0]
        assert len(set(named)) == len(named)
        assert all(moved[position][row] for position in named)
        assert bool(named) == any(mask[row] for mask in moved.values())
    assert (found.binding[~stuck] == -1).all()


@pytest.mark.parametrize("generator_kind", ["plain", "gated"])
def test_rows_without_a_way_name_first_what_decides_the_class(generator_kind: str) -> None:
    """Income decides here, and may not change: whatever the generator proposes or leaves alone."""
    fixed = ("age", "income", "rate", "gender")
    features = tuple(replace(f, immutable=f.immutable or f.name in fixed) for f in SCHEMA.features)
    bundle = copy.deepcopy(trained_bundle())
    if generator_kind == "gated":
        torch.manual_seed(0)
        net = make_net(SCHEMA, CONFIG.model.model_copy(update={"generator_kind": "gated"})).eval()
        net.load_state_dict(bundle.net.state_dict() | {k: v for k, v in net.state_dict().items() if "generator" in k})
        torch.nn.init.constant_(net.generator_out.bias, -9.0)  # every gate is closed: nothing is proposed
        bundle.net = net
    bundle.schema = replace(SCHEMA, features=features)
    bundle = with_reference(bundle, encode(people(3_000, seed=5), SCHEMA)[0])
    found = explained(bundle)
    stuck = found.status == 2
    assert stuck.sum() > 200
    names = [feature.name for feature in features]
    first = [names[position] for position in found.binding[stuck, 0]]
    assert first.count("income") > 0.9 * len(first)
    assert (found.binding[~stuck] == -1).all()


@pytest.mark.parametrize("refine", ["sparse", "none"])
def test_options_change_different_features_and_the_first_is_the_nearest(refine: str) -> None:
    bundle = with_random_generator(1)
    found = explained(bundle, num_options=3, refine=refine)
    assert len(found.options) == 2
    told = found.has_fcf
    assert told.sum() > 300
    earlier, earlier_exists, last = [found.fcf], [told], distances(found.rows, found.fcf, SCHEMA)
    for option in found.options:
        assert not option.exists[~told].any()
        proven(bundle, found, option.fcf, option.exists)
        far = distances(found.rows, option.fcf, SCHEMA)
        assert (far[option.exists] >= last[option.exists] - 1e-12).all()
        own = changes(found.rows, option.fcf)
        for other, exists in zip(earlier, earlier_exists, strict=True):
            both = option.exists & exists
            assert (own != changes(found.rows, other))[both].any(axis=1).all()
        earlier, earlier_exists, last = [*earlier, option.fcf], [*earlier_exists, option.exists], far
    assert found.options[0].exists[told].mean() > 0.2
    columns = Explainer(bundle, None, Explain(num_options=3)).explain_table(people(50), "run")[0].column_names
    assert {"fcf2_income", "fcf3_income", "fcf2_valid", "fcf3_distance"} <= set(columns)


def test_only_some_rows_are_explained_and_the_others_passed_through() -> None:
    bundle = with_random_generator(0)
    table = people(1_000, seed=3)
    whole = Explainer(bundle, None, Explain(), Words()).explain_table(table, "run")[0]
    some = Explainer(bundle, None, Explain(only="pred_label=0"), Words()).explain_table(table, "run")[0]
    assert some.column("pred_label").equals(whole.column("pred_label"))
    chosen = 0
    for row, expected in zip(some.to_pylist(), whole.to_pylist(), strict=True):
        if row["pred_label"] == 0:
            assert row == pytest.approx(expected)  # a batch of other rows may round the last digit otherwise
            chosen += 1
            continue
        assert row["row_status"] == "not_selected"
        made = [name for name in row if name.startswith(("cf_", "fcf_", "reason_")) or name == "explanation"]
        assert all(row[name] is None for name in made)
        assert all(row[name] == expected[name] for name in (*table.column_names, "pred_proba"))
    assert 0 < chosen < 1_000


@pytest.mark.parametrize("only", ["pred_label=7", "refused", "income=0", "pred_label"])
def test_a_class_that_is_none_is_refused(only: str) -> None:
    with pytest.raises(ConfigError, match="pred_label=0 or pred_label=1"):
        Explainer(with_random_generator(0), None, Explain(only=only))


@pytest.mark.parametrize("shrinks", [False, True])
def test_plausible_answers_are_no_rarer_than_asked_or_than_their_candidate(
    shrinks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shrinks:
        monkeypatch.setattr(refine, "_SHRINKING_TRIALS", 0)
    bundle = with_random_generator(1)
    assert bundle.reference is not None
    usual = bundle.reference.usual
    candidates, few, plausible = (
        explained(bundle, **settings) for settings in ({"refine": "none"}, {}, {"plausibility": 0.3})
    )
    told = few.has_fcf & plausible.has_fcf & candidates.has_fcf

    def likely(found: Explanations) -> np.ndarray:
        return usual.log_probability(usual.bins(found.fcf.take(told)))

    own = usual.log_probability(usual.bins(few.rows.take(told)))
    least = np.minimum(np.minimum(likely(candidates), own), usual.limit(0.3))
    enough = [(likely(found) >= least - 1e-4).mean() for found in (few, plausible)]
    assert enough[1] >= (0.8 if shrinks else 1.0), "what lies between two usual values may be rare"
    assert enough[1] > enough[0]
    assert (likely(few) < least).any(), "nothing to steer: the test shows nothing"
    assert likely(plausible).mean() > likely(few).mean()


def test_of_plausible_answers_no_change_could_go_back_alone() -> None:
    bundle = with_random_generator(1)
    assert bundle.reference is not None
    usual = bundle.reference.usual
    explainer = Explainer(bundle, None, Explain(plausibility=0.3))
    found = explained(bundle, plausibility=0.3)
    rows, answers = found.rows.take(found.has_fcf), found.fcf.take(found.has_fcf)
    wanted = explainer.wanted(found.predicted[found.has_fcf])
    enough = np.minimum(usual.log_probability(usual.bins(rows)), usual.limit(0.3))
    num_changes = 0
    for position in range(len(SCHEMA.features)):
        without = Encoded(answers.values.copy(order="F"), answers.codes.copy(order="F"))
        without.column(position)[:] = rows.column(position)
        changed = answers.column(position) != rows.column(position)
        valid, probability = explainer._proof(without, wanted)
        num_changes += changed.sum()
        needless = changed & valid & (probability > 0.5001) & (usual.log_probability(usual.bins(without)) >= enough)
        assert not needless.any()
    assert num_changes > 500


def test_a_bundle_without_reference_still_explains_but_cannot_do_what_needs_one() -> None:
    bundle = with_random_generator(0)
    bundle.reference = None
    assert explained(bundle).has_fcf.any()
    for chosen in ({"plausibility": 0.1}, {"num_options": 2}):
        with pytest.raises(BundleError, match="train it again"):
            explained(bundle, **chosen)


@settings(max_examples=60, deadline=None)
@given(case=tied_features(), seed=st.integers(0, 50), plausibility=st.sampled_from([0.0, 0.2]))
def test_whatever_the_rules_nothing_written_breaks_them(case, seed: int, plausibility: float) -> None:
    schema, rows, candidates = case
    examples = Encoded(np.tile(rows.values, (9, 1)), np.tile(rows.codes, (9, 1)))
    examples.values[len(rows) :] += np.random.default_rng(seed).integers(-9, 9, (8 * len(rows), 3))
    torch.manual_seed(seed)
    net = make_net(schema, CONFIG.model).eval()
    bundle = with_reference(Bundle(net, schema, Settings.of(CONFIG), {}), examples)
    chosen = Explain(plausibility=plausibility, num_options=2)
    explainer = Explainer(bundle, None, chosen)
    found = explainer.explain(rows)
    proven(bundle, found, found.fcf, found.has_fcf)
    proven(bundle, found, found.options[0].fcf, found.options[0].exists)
    feasible = project(rows, candidates, schema)
    desired = explainer.predicted(feasible)
    asking = explainer.predicted(rows) != desired
    assert explainer._refiner is not None
    refined = explainer._refiner.refined(rows.take(asking), feasible.take(asking), desired[asking])
    assert not violations(rows.take(asking), refined, schema).any()
    assert (num_changed(rows.take(asking), refined) <= num_changed(rows.take(asking), feasible.take(asking))).all()


def test_a_reference_is_saved_and_loaded(tmp_path) -> None:
    bundle = with_random_generator(2)
    loaded = Bundle.load(bundle.save(Location.of(tmp_path)))
    assert loaded.id == bundle.id
    mine, theirs = bundle.reference, loaded.reference
    assert mine is not None
    assert theirs is not None
    np.testing.assert_array_equal(mine.prototypes.values, theirs.prototypes.values)
    np.testing.assert_array_equal(mine.prototypes.codes, theirs.prototypes.codes)
    np.testing.assert_array_equal(mine.usual.tables, theirs.usual.tables)
    for label in (0, 1):
        assert 0 < len(theirs.of_class(label)) <= PROTOTYPES
        assert (Explainer(bundle, None).predicted(theirs.of_class(label)) == label).all()
    before, after = explained(bundle), explained(loaded)
    np.testing.assert_array_equal(before.fcf.values, after.fcf.values)


def test_prototypes_are_rows_of_the_table() -> None:
    rows, _ = encode(people(3_000, seed=5), SCHEMA)
    reference = with_random_generator(0).reference
    assert isinstance(reference, Reference)
    known = {(*values, *codes) for values, codes in zip(rows.values.tolist(), rows.codes.tolist(), strict=True)}
    for values, codes in zip(reference.prototypes.values.tolist(), reference.prototypes.codes.tolist(), strict=True):
        assert (*values, *codes) in known


@pytest.mark.parametrize("switches", [{}, {"separate": True}, {"pass_prediction": False}], ids=str)
def test_a_gated_generator_keeps_what_its_gates_keep(switches: dict) -> None:
    torch.manual_seed(3)
    model = Model(encoder=[9, 5], predictor=[4], generator=[7], generator_kind="gated", **switches)
    net = make_net(SCHEMA, model).eval()
    bundle = Bundle(net, SCHEMA, Settings.of(CONFIG), {})
    explainer = Explainer(bundle, None)
    given = encode(people(500), SCHEMA)[0]
    given.values[::3] += 1_000.123  # off the grid, and outside the training range
    found = explainer.explain(given)
    rows = explainer._tensors(found.rows)
    with torch.no_grad():
        z = net.encode(rows)
        raw = net.generate(net.predict(z)[0], net.generator_latent(rows, z), rows)
        _, hard = net(rows)
    gates = raw[:, net.layout.width :] > 0
    count = len(SCHEMA.continuous)
    assert gates.float().mean(dim=0).min() < 1
    assert gates.any()
    np.testing.assert_array_equal(hard.codes.numpy(), found.cf.codes)
    kept = ~gates[:, :count].numpy()
    np.testing.assert_array_equal(found.cf.values[kept], found.rows.values[kept])
    assert (found.cf.codes == found.rows.codes)[~gates[:, count:].numpy()].all()
    soft = net.gates(raw)
    assert soft is not None
    np.testing.assert_allclose(soft[:, :count].detach().numpy(), gates[:, :count].float().numpy(), atol=1e-6)


@pytest.mark.parametrize("chosen", [{}, {"margin": 0.2}, {"plausibility": 0.3}, {"margin": 0.1, "plausibility": 0.05}])
def test_a_refined_number_lies_between_the_row_and_its_candidate(chosen: dict) -> None:
    """Also where a candidate misses the margin, or a change is kept that is not needed for the class."""
    for seed in range(6):
        bundle = with_random_generator(seed)
        candidates, refined = (
            explained(bundle, repair=False, **settings)
            for settings in ({"refine": "none"}, {"refine": "sparse", **chosen})
        )
        np.testing.assert_array_equal(candidates.has_fcf, refined.has_fcf)
        told = refined.has_fcf
        moved, most = (found.fcf.values[told] - found.rows.values[told] for found in (refined, candidates))
        assert (moved * most >= 0).all()
        assert (np.abs(moved) <= np.abs(most) + 1e-9).all()


def test_options_keep_the_margin_and_need_no_repair() -> None:
    bundle = with_random_generator(1)
    one, several = (explained(bundle, margin=0.2, num_options=count) for count in (1, 3))
    sure = one.fcf_probability >= 0.7 - 1e-6
    assert (one.has_fcf & sure).sum() > 300
    assert (several.fcf_probability[one.has_fcf & sure] >= 0.7 - 1e-6).all()
    without = explained(bundle, repair=False, num_options=2)
    assert without.options[0].exists.any()
    np.testing.assert_array_equal(without.has_fcf, explained(bundle, repair=False).has_fcf)


def test_with_a_margin_the_search_goes_on_from_answers_that_miss_it() -> None:
    bundle = with_random_generator(4)
    left, searched = (explained(bundle, margin=0.2, repair=repair) for repair in (False, True))
    missed = left.has_fcf & (left.fcf_probability < 0.7)
    assert missed.sum() > 50
    assert searched.has_fcf[left.has_fcf].all(), "an answer below the margin is still an answer"
    assert (searched.fcf_probability[missed] >= 0.7).mean() > 0.8
    assert (searched.fcf_probability[left.has_fcf & ~missed] >= 0.7 - 1e-6).all()
    proven(bundle, searched, searched.fcf, searched.has_fcf)


def tied(bundle: Bundle, *rules: Relation) -> Bundle:
    bundle.schema = replace(bundle.schema, rules=rules)
    return bundle


@pytest.mark.parametrize("plausibility", [0.0, 0.2])
def test_features_that_rules_tie_go_back_together_and_shrink_as_far_as_the_rules_let_them(plausibility: float) -> None:
    """Income changes with the rate: neither is left where both could have stayed."""
    bundle = tied(copy.deepcopy(trained_bundle()), Relation("needs", "income", "rate"))
    bundle = with_reference(bundle, encode(people(3_000, seed=5), SCHEMA)[0])
    candidates, refined = (
        explained(bundle, repair=False, refine=refine, plausibility=plausibility) for refine in ("none", "sparse")
    )
    told = refined.has_fcf
    proven(bundle, refined, refined.fcf, told)
    numbers = [SCHEMA.position(name) for name in ("income", "rate")]
    rows, answers = refined.rows.take(told), refined.fcf.take(told)
    moved = (answers.values != rows.values)[:, numbers]
    assert moved.all(axis=1).sum() > 100
    back = Encoded(answers.values.copy(order="F"), answers.codes.copy(order="F"))
    back.values[:, numbers] = rows.values[:, numbers]
    if not plausibility:  # what is usual may be kept without need
        explainer = Explainer(bundle, None)
        could = moved.any(axis=1) & (explainer.predicted(back) == explainer.wanted(refined.predicted[told]))
        assert could.sum() <= 0.02 * moved.any(axis=1).sum()
    shrunk = (answers.values != candidates.fcf.values[told])[:, numbers] & moved
    assert shrunk.any(axis=1).sum() > 30


@pytest.mark.parametrize("kept", [["age", "income", "rate"], ["grade", "housing"], ["income"]], ids=" ".join)
@pytest.mark.parametrize("encoder", [[9], [9, 5]], ids=str)
@pytest.mark.parametrize("plausibility", [0.0, 0.2])
def test_tables_of_numbers_or_categories_alone_are_refined_too(
    kept: list[str], encoder: list[int], plausibility: float
) -> None:
    schema = replace(SCHEMA, features=tuple(feature for feature in SCHEMA.features if feature.name in kept))
    refined_rows = 0
    for seed in range(4):
        torch.manual_seed(seed)
        net = make_net(schema, Model(encoder=encoder, predictor=[4], generator=[7])).eval()
        bundle = Bundle(net, schema, Settings.of(CONFIG), {})
        bundle = with_reference(bundle, encode(people(500, seed=5), schema)[0])
        plain, refined = (
            explained(bundle, refine=refine, plausibility=plausibility * (refine == "sparse"))
            for refine in ("none", "sparse")
        )
        np.testing.assert_array_equal(plain.has_fcf, refined.has_fcf)
        told = refined.has_fcf
        proven(bundle, refined, refined.fcf, told)
        rows = refined.rows.take(told)
        before, after = (distances(rows, found.fcf.take(told), schema) for found in (plain, refined))
        assert (after <= before + 1e-9).all()
        refined_rows += told.sum()
    assert refined_rows > 100


RULES = {
    "a rule that nothing breaks": [Relation("at_most", "age", "income")],
    "one that needs another": [Relation("needs", "housing", "income")],
    "two orders": [Relation("at_most", "age", "income"), Relation("at_most", "rate", "income")],
    "all of them": [Relation("needs", "housing", "income"), Relation("needs", "grade", "income"),
                    Relation("at_most", "rate", "income")],
}  # fmt: skip


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_of_tied_features_no_change_is_left_that_could_go_back_alone(rules: list[Relation]) -> None:
    bundle = tied(copy.deepcopy(trained_bundle()), *rules)
    bundle = with_reference(bundle, encode(people(3_000, seed=5), SCHEMA)[0])
    found = explained(bundle)
    proven(bundle, found, found.fcf, found.has_fcf)
    rows, answers = found.rows.take(found.has_fcf), found.fcf.take(found.has_fcf)
    explainer = Explainer(bundle, None)
    wanted = explainer.wanted(found.predicted[found.has_fcf])
    could, changes = 0, 0
    for position in range(len(SCHEMA.features)):
        trial = Encoded(answers.values.copy(order="F"), answers.codes.copy(order="F"))
        trial.column(position)[:] = rows.column(position)
        changed = rows.column(position) != answers.column(position)
        allowed = ~violations(rows, trial, bundle.schema)
        changes += changed.sum()
        could += (changed & allowed & (explainer.predicted(trial) == wanted)).sum()
    assert changes > 500
    assert could <= 0.02 * changes


def test_answers_that_miss_the_margin_are_refined_as_far_as_they_stay_as_sure() -> None:
    bundle = with_random_generator(2)
    plain, refined = (explained(bundle, margin=0.4, refine=refine) for refine in ("none", "sparse"))
    missed = plain.has_fcf & (plain.fcf_probability < 0.9)
    assert missed.sum() > 300
    rows = plain.rows.take(missed)
    before, after = (num_changed(rows, found.fcf.take(missed)) for found in (plain, refined))
    assert (after <= before).all()
    assert after.mean() < 0.8 * before.mean()
    assert (refined.fcf_probability[missed] >= plain.fcf_probability[missed] - 1e-4).all()
    proven(bundle, refined, refined.fcf, refined.has_fcf)
