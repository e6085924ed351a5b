"""Rules in the configuration: contradictions are told at once, what holds reaches schema, rows and network."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_cfnet import config
from ray_cfnet.config.file import load_config
from ray_cfnet.config.ruletext import Relation
from ray_cfnet.errors import ConfigError, InputError
from ray_cfnet.model.card import model_card
from ray_cfnet.model.rules import SoftRules
from ray_cfnet.tables.codec import encode
from ray_cfnet.tables.constraints import permitted_changes
from ray_cfnet.tables.fit import TableStats, fit_schema
from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema
from tests.unit.helpers import CONFIG, people
from tests.unit.strategies import TARGET
from tests.unit.test_net import LAYOUT, make_net, one_hot, some_rows


def faults_of(tmp_path: Path, features: str, rules: str = "[]") -> list[str]:
    path = tmp_path / "config.yaml"
    path.write_text(f"table:\n  path: loans\n  target: decision\n  rules: {rules}\n  features:\n    {features}\n")
    try:
        load_config(path)
    except ConfigError as error:
        return [fault.rpartition(" (line")[0] for fault in error.faults]
    return []


@pytest.mark.parametrize(
    ("feature", "key", "said"),
    [
        ("kind: continuous, step: 1, decimals: 2", "decimals", "contradicts step"),
        ("kind: continuous, step: 1, allowed: [1, 2]", "allowed", "contradicts step"),
        ("kind: continuous, decimals: 1, allowed: [1, 2]", "allowed", "contradicts decimals"),
        ("kind: continuous, bounds: [0, 9], allowed: [10, 20]", "allowed", "every value lies outside of the bounds"),
        ("kind: continuous, max_change: 2, tolerance: 3", "max_change", "2 is less than the tolerance 3"),
        ("kind: continuous, max_change: 2, step: 5", "max_change", "2 is less than the step 5"),
        ("kind: continuous, max_change: 0.01, decimals: 1", "max_change", "0.01 is less than the step 0.1"),
        ("kind: continuous, bounds: [0, 9], tolerance: 10", "tolerance", "10 is wider than the bounds"),
        ("kind: continuous, bounds: [5, 5]", "bounds", "5 is the only value left"),
        (
            "kind: continuous, bounds: [0, 10], max_change: 20%, tolerance: 5",
            "max_change",
            "2 is less than the tolerance",
        ),
        ("kind: continuous, bounds: [0, 10], max_change: 20%, step: 5", "max_change", "2 is less than the step 5"),
        ("kind: continuous, bounds: [10, 50], allowed: [10], direction: increase", "allowed", "no value lies above"),
        ("kind: continuous, bounds: [10, 50], allowed: [50], direction: decrease", "allowed", "no value lies below"),
        ("kind: continuous, max_change: 0", "max_change", "0 is neither a number above 0 nor a percentage"),
        ("kind: continuous, max_change: -5%", "max_change", "'-5%' is neither a number"),
        ("kind: continuous, max_change: a lot", "max_change", "'a lot' is neither a number"),
        ("kind: continuous, max_change: 0%", "max_change", "'0%' is neither a number"),
        ("kind: continuous, max_change: [1]", "max_change", "[1] is neither a number"),
        ("kind: continuous, allowed: []", "allowed", "list should have at least 1 item"),
        ("kind: continuous, tolerance: 0", "tolerance", "greater than 0"),
        ("kind: continuous, decimals: -1", "decimals", "greater than or equal to 0"),
        ("kind: categorical, order: [a, b], allowed: [a, z]", "allowed", "'z' is not in the order"),
        (
            "kind: categorical, order: [a, b], forbidden_transitions: {a: [z]}",
            "forbidden_transitions.a",
            "'z' is not in the order",
        ),
        (
            "kind: categorical, forbidden_transitions: {a: [a, b]}",
            "forbidden_transitions.a",
            "'a' may always stay as it is",
        ),
        ("kind: categorical, allowed: []", "allowed", "list should have at least 1 item"),
        ("kind: categorical, max_change: 3", "max_change", "unknown key"),
    ],
)
def test_a_contradiction_is_told_with_its_key(tmp_path: Path, feature: str, key: str, said: str):
    [fault] = faults_of(tmp_path, f"x: {{{feature}}}")
    assert fault.startswith(f"table.features.x.{key}: ")
    assert said in fault


@pytest.mark.parametrize(
    "feature",
    [
        "kind: continuous, max_change: 10, tolerance: 2, direction: increase, bounds: [0, null]",
        "kind: continuous, max_change: 20%",
        "kind: continuous, max_change: 12.5 %",
        "kind: continuous, decimals: 2, max_change: 0.05",
        "kind: continuous, allowed: [1, 2.5], bounds: [0, 2]",
        "kind: continuous, immutable: true, max_change: 5",
        "kind: continuous, immutable: true, bounds: [5, 5]",
        "kind: categorical, allowed: [a, 1, true]",
        "kind: categorical, order: [a, b, c], direction: increase, forbidden_transitions: {a: [c]}",
        "kind: categorical, forbidden_transitions: {1: [2, 3]}",
    ],
)
def test_rules_that_go_together_are_accepted(tmp_path: Path, feature: str):
    assert faults_of(tmp_path, f"x: {{{feature}}}") == []


PAIR = "{a: {kind: continuous, bounds: [5, null]}, b: {kind: continuous, bounds: [0, 4], immutable: true}, " + (
    "c: {kind: categorical}, net income: {kind: continuous}}"
)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("a <= net incme", "unknown feature 'net incme', did you mean 'net income'?"),
        ("a <= a", "'a' is related to itself"),
        ("a <= c", "c is categorical, and only numbers can be compared"),
        ("a <= b", "a is at least 5, b at most 4: no row can keep it"),
        ("if a changes then b changes", "b is immutable, so a could never change"),
        ("a + b", "is no rule; write"),
    ],
)
def test_a_rule_that_cannot_hold_is_told_with_its_place(tmp_path: Path, rule: str, said: str):
    [fault] = faults_of(tmp_path, PAIR[1:-1].replace("}, ", "}\n    "), f'["a <= net income", "{rule}"]')
    assert fault.startswith("table.rules.1: ")
    assert said in fault


def test_a_chain_of_rules_that_no_row_can_keep_is_told(tmp_path: Path):
    [fault] = faults_of(tmp_path, PAIR[1:-1].replace("}, ", "}\n    "), '["net income <= b", "a <= net income"]')
    assert fault == "table.rules.0: net income is at least 5, b at most 4: no row can keep it"


def test_a_rule_said_twice_is_told(tmp_path: Path):
    [fault] = faults_of(tmp_path, PAIR[1:-1].replace("}, ", "}\n    "), '["a <= net income", "net income >= a"]')
    assert fault == "table.rules.1: says the same as rule 1; remove one"


def test_an_immutable_feature_may_need_an_immutable_one(tmp_path: Path):
    assert faults_of(tmp_path, PAIR[1:-1].replace("}, ", "}\n    "), '["if b changes then a changes"]') == []


def declared(rules: list[str] | None = None, **changes: dict) -> config.Table:
    table = CONFIG.table.model_dump(exclude_none=True)
    for name, change in changes.items():
        table["features"][name].update(change)
    return config.Table.model_validate({**table, "rules": rules or []})


def fitted(table: config.Table, rows: pa.Table | None = None, max_reject_fraction: float = 0.0) -> TableSchema:
    rows = people(500) if rows is None else rows
    stats = TableStats()
    stats.add(rows, table, "people.parquet")
    return fit_schema(table, rows.schema, stats, max_reject_fraction)


def test_declared_rules_reach_the_schema():
    schema = fitted(
        declared(
            ["age <= income", "if grade changes then age changes"],
            age={"max_change": 10, "tolerance": 2},
            rate={"decimals": 1, "max_change": "20%"},
            income={"step": None, "allowed": [60000, 50000]},
            housing={"allowed": ["own"], "forbidden_transitions": {"rent": ["own", "family"]}},
        )
    )
    age, income, rate = schema.continuous
    assert (age.max_change, age.max_change_percent, age.tolerance) == (10.0, None, 2.0)
    assert (rate.grid, rate.max_change, rate.max_change_percent) == (Grid(1, 1), None, 20.0)
    assert income.allowed == (50_000.0, 60_000.0)
    housing = schema.categorical[1]
    assert (housing.allowed, housing.forbidden) == (("own",), (("rent", "own"), ("rent", "family")))
    assert schema.rules == (Relation("at_most", "age", "income"), Relation("needs", "grade", "age"))
    assert TableSchema.from_json(schema.to_json()) == schema


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("housing", {"allowed": ["villa"]}, "allowed names 'villa', which is not one of its categories: 'family'"),
        ("housing", {"forbidden_transitions": {"rent": ["villa"]}}, "forbidden_transitions names 'villa'"),
        ("housing", {"forbidden_transitions": {1: ["rent"]}}, "forbidden_transitions names 1"),
        ("gender", {"immutable": False, "forbidden_transitions": {"f": ["m"], "m": ["f"]}}, "leave no change at all"),
        ("age", {"max_change": 0.5}, "max_change 0.5 is less than its step 1"),
        ("age", {"decimals": 1}, "step 0.1 is finer than a column of type int32 can hold"),
        ("age", {"allowed": [20, 3_000_000_000]}, "a column of type int32 cannot hold the allowed 3e+09"),
        ("age", {"allowed": [20.5]}, "a column of type int32 cannot hold the allowed 20.5"),
    ],
)
def test_rules_that_the_rows_contradict_are_told_when_the_schema_is_fitted(name: str, change: dict, said: str):
    with pytest.raises(InputError, match="cannot be trained on") as error:
        fitted(declared(**{name: change}))
    assert f"column {name}: " in str(error.value)
    assert said in str(error.value)


def test_rows_that_break_a_rule_themselves_are_rejected_after_what_is_missing():
    schema = fitted(declared(["age <= rate"]), max_reject_fraction=1.0)
    rows = people(4)
    rows = rows.set_column(1, "age", pa.array([20, 30, None, 40], pa.int32()))
    rows = rows.set_column(3, "rate", pa.array([30.0, 25.0, 1.0, float("nan")]))
    _, rejects = encode(rows, schema)
    assert rejects.counts() == {"null": 1, "nan": 1, "breaks_rule": 1}
    assert rejects.good.tolist() == [True, False, False, False]
    assert schema.feature_names[rejects.feature[1]] == "age"


def test_training_rows_that_break_a_rule_count_as_rows_to_leave_out():
    table = declared(["rate <= age"])
    rows = people(100).set_column(3, "rate", pa.array([99.5] + [2.5, 1.0] * 49 + [3.5]))
    with pytest.raises(InputError, match="column rate has 1 x breaks_rule in 100 training rows"):
        fitted(table, rows)
    assert fitted(table, rows, 0.01).rules


def test_a_schema_without_the_later_rules_is_written_as_before():
    plain = TableSchema(
        (Continuous("a", "int64", 0.0, 9.0, Grid(1, 0)), Categorical("c", "string", ("x", "y"))), TARGET
    )
    data = json.loads(plain.to_json())
    assert set(data) == {"version", "features", "target", "keys"}
    assert not {"max_change", "allowed", "tolerance", "forbidden"} & {key for item in data["features"] for key in item}
    limited = dataclasses.replace(
        plain, features=(dataclasses.replace(plain.features[0], tolerance=1.0), plain.features[1])
    )
    assert limited.fingerprint != plain.fingerprint


def test_the_model_card_tells_every_rule():
    schema = fitted(
        declared(
            ["age <= income"],
            age={"max_change": 10, "tolerance": 2},
            rate={"max_change": "20%"},
            housing={"allowed": ["own"], "forbidden_transitions": {"rent": ["family"]}},
        )
    )
    card = model_card(schema, {"split": {"method": "random"}, "desired": "opposite"}, {})
    for said in (
        "by 10 at most, by 2 at least",
        "by 20 % at most",
        "to own only, not rent -> family",
        "age <= income",
    ):
        assert said in card


def soft_schema(*rules: Relation, **options: dict) -> TableSchema:
    return TableSchema(
        (
            Continuous("a", "double", -1.0, 3.0, None, **options.get("a", {})),
            Continuous("b", "double", 0.0, 2.0, None, **options.get("b", {})),
            Categorical("c", "string", ("x", "y", "z"), **options.get("c", {})),
            Categorical("d", "string", ("no", "yes"), **options.get("d", {})),
        ),
        TARGET,
        (),
        rules,
    )


def softly_projected(schema: TableSchema) -> tuple[np.ndarray, np.ndarray, torch.Tensor, torch.Tensor]:
    """(raw numbers of the rows, of their soft counterfactuals, the rows' codes, weights of the categories)."""
    rows = some_rows(300)
    x = one_hot(rows)
    raw = 3 * torch.randn(300, LAYOUT.width, generator=torch.Generator().manual_seed(2))
    projected = SoftRules(schema, LAYOUT).project(x, rows.codes, raw, make_net().soft(raw))
    spans, lower = (np.array([getattr(f, name) for f in schema.continuous]) for name in ("span", "lower"))
    before, after = (side[:, :2].numpy() * spans + lower for side in (x, projected))
    return before, after, rows.codes, projected[:, 2:]


def test_soft_numbers_stay_within_their_largest_change():
    schema = soft_schema(a={"max_change_percent": 30.0}, b={"max_change": 0.25, "direction": "increase"})
    before, after, _, _ = softly_projected(schema)
    change = after - before
    assert (np.abs(change[:, 0]) <= 0.3 * np.abs(before[:, 0]) + 1e-5).all()
    assert (change[:, 1] >= -1e-6).all()
    assert (change[:, 1] <= 0.25 + 1e-5).all()
    assert (np.abs(change) > 0.2).any(axis=0).all(), "no row met its limit: the test shows nothing"


def test_soft_numbers_stay_between_the_row_and_what_is_listed():
    before, after, _, _ = softly_projected(soft_schema(a={"allowed": (0.5, 1.5)}))
    assert (after[:, 0] >= np.minimum(before[:, 0], 0.5) - 1e-5).all()
    assert (after[:, 0] <= np.maximum(before[:, 0], 1.5) + 1e-5).all()


def test_soft_categories_have_no_weight_where_they_may_not_go():
    schema = soft_schema(c={"allowed": ("x", "z"), "forbidden": (("x", "z"),)})
    _, _, codes, weights = softly_projected(schema)
    permitted = torch.from_numpy(permitted_changes(schema.categorical[0]))[codes[:, 0]]
    assert (weights[:, :3][~permitted] == 0).all()
    assert (weights[:, :3][permitted] > 0).all()
    torch.testing.assert_close(weights[:, :3].sum(1), torch.ones(300))


def test_soft_numbers_keep_their_order_as_far_as_their_ranges_let_them():
    order = Relation("at_most", "a", "b")
    _, free, _, _ = softly_projected(soft_schema())
    assert (free[:, 0] > free[:, 1]).any()
    _, after, _, _ = softly_projected(soft_schema(order))
    assert (after[:, 0] <= after[:, 1] + 1e-5).all()
    before, after, _, _ = softly_projected(soft_schema(order, a={"immutable": True}, b={"bounds": (None, 2.0)}))
    np.testing.assert_allclose(after[:, 0], before[:, 0], atol=1e-5)
    assert (after[:, 1] >= np.minimum(after[:, 0], 2.0) - 1e-5).all()
