"""Reasons and sentences, compared with a computation row by row that shares nothing with the code."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ray_cfnet.config import Words
from ray_cfnet.errors import ConfigError
from ray_cfnet.explain import words as words_module
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.explain.words import Wording
from ray_cfnet.tables.codec import Encoded
from ray_cfnet.tables.schema import Categorical, Continuous, Grid, TableSchema, Target
from tests.unit.helpers import people, untrained_bundle

SCHEMA = TableSchema(
    (
        Continuous("income", "int64", 0.0, 100_000.0, Grid(100, 0), bounds=(0.0, None)),
        Categorical("education", "string", ("HS", "Bachelors", "Masters"), True, "increase"),
        Continuous("balance", "double", -5_000.0, 5_000.0, Grid(1, 2)),
        Continuous("rate", "double", 0.0, 1.0, Grid(1, 3)),
        Categorical("member", "bool", (False, True)),
        Continuous("score", "double", 0.0, 1.0, None, "decrease"),
        Categorical("gender", "string", ("f", "m"), immutable=True),
    ),
    Target("decision", "int64", (0, 1)),
)
PLAIN: dict[str, Any] = {}
RICH: dict[str, Any] = {
    "to_reach": "{desired} needs ({changes}) {{and patience}} for {desired}",
    "already": "fine: {desired}",
    "none": "never {desired}",
    "none_because": "{features} forbid {desired}!",
    "comma": "; ",
    "and": " & ",
    "more": "{count} others",
    "one_more": "another",
    "classes": {1: "a loan", 0: "no loan"},
    "features": {
        "income": {"name": "your income", "increase": "earn {change} more", "decrease": "earn less", "unit": "€"},
        "education": {"change": "{new}, not {old}", "labels": {"HS": "high school"}},
        "balance": {"format": "money", "unit": "$"},
        "rate": {"format": "percent", "increase": "+{change} ({old} to {new}) of {name}"},
        "member": {"name": "membership", "labels": {True: "yes", False: "no"}},
        "score": {"decimals": 1, "unit": "points"},
    },
}


def random_rows(num_rows: int, seed: int) -> tuple[Encoded, Encoded]:
    """Rows, and counterfactuals that change every second feature or so."""
    rng = np.random.default_rng(seed)

    def rows() -> Encoded:
        numbers = [
            rng.integers(0, 1_000, num_rows) * 100.0,
            rng.integers(-500_000, 500_000, num_rows) / 100,
            rng.integers(0, 1_000, num_rows) / 1_000,
            rng.random(num_rows),
        ]
        codes = [rng.integers(0, count, num_rows) for count in (3, 2, 2)]
        return Encoded(np.array(numbers).T, np.array(codes).T)

    before, after = rows(), rows()
    after.values[:] = np.where(rng.random(after.values.shape) < 0.5, before.values, after.values)
    after.codes[:] = np.where(rng.random(after.codes.shape) < 0.5, before.codes, after.codes)
    return before, after


def value_of(rows: Encoded, row: int, name: str) -> Any:
    numbers, categories = [[f.name for f in part] for part in (SCHEMA.continuous, SCHEMA.categorical)]
    if name in numbers:
        return float(rows.values[row, numbers.index(name)])
    feature = SCHEMA.categorical[categories.index(name)]
    return feature.categories[rows.codes[row, categories.index(name)]]


def shown(name: str, value: Any, texts: dict[str, Any], apart: float | None = None) -> str:
    """`apart`: how far the two values lie from each other that would read alike."""
    if isinstance(value, str | bool):
        return texts.get("labels", {}).get(value, str(value).lower() if isinstance(value, bool) else value)
    decimals = {"income": 0, "balance": 2, "rate": 3, "score": 4}[name]
    if texts.get("format") == "percent":
        return f"{value * 100:,.1f}%" if apart is None else f"{to_differ(value * 100, apart * 100)}%"
    number = f"{abs(value):,.{texts.get('decimals', decimals)}f}" if apart is None else to_differ(abs(value), apart)
    if texts.get("format") == "money":
        number = texts["unit"] + number
    elif texts.get("unit"):
        number += (" " if texts["unit"].isalpha() else "") + texts["unit"]
    return ("-" if value < 0 else "") + number


def to_differ(value: float, apart: float) -> str:
    digits = math.ceil(-math.log10(apart)) + 1
    return f"{value:,.{digits}f}"


def expected_row(
    before: Encoded, after: Encoded, row: int, words: dict[str, Any], desired: int, importance: np.ndarray | None
) -> tuple[list[str | None], str]:
    said = Words.model_validate(words)
    changes = []
    for position, feature in enumerate(SCHEMA.features):
        old, new = value_of(before, row, feature.name), value_of(after, row, feature.name)
        if old == new:
            continue
        texts = words.get("features", {}).get(feature.name, {})
        way, share = "change", 1.0
        if isinstance(feature, Continuous):
            way, share = "increase" if new > old else "decrease", abs(new - old) / (feature.upper - feature.lower)
        values = {"name": texts.get("name", feature.name), "old": shown(feature.name, old, texts)}
        values["new"] = shown(feature.name, new, texts)
        if way != "change" and values["old"] == values["new"]:
            values |= {"old": shown(feature.name, old, texts, abs(new - old))}
            values |= {"new": shown(feature.name, new, texts, abs(new - old))}
            values |= {"change": shown(feature.name, abs(new - old), texts, abs(new - old))}
        elif way != "change":
            values["change"] = shown(feature.name, abs(new - old), texts)
        phrase = (texts.get(way) or getattr(said, way)).format(**values)
        if importance is not None:
            share = importance[row, position]
        changes.append((-np.float32(share), position, f"{feature.name}:{way}", phrase))
    changes.sort()
    reasons: list[str | None] = [code for _, _, code, _ in changes[:4]]
    phrases = [phrase for _, _, _, phrase in changes[:4]]
    more = len(changes) - 4
    if more > 0:
        phrases.append(said.one_more if more == 1 else said.more.format(count=more))
    listed = said.comma.join(phrases[:-1]) + (said.and_ if len(phrases) > 1 else "") + phrases[-1]
    label = words.get("classes", {}).get(desired, str(desired))
    return reasons + [None] * (4 - len(reasons)), said.to_reach.format(desired=label, changes=listed)


def told_rows(before: Encoded, after: Encoded) -> np.ndarray:
    return (before.values != after.values).any(1) | (before.codes != after.codes).any(1)


def columns(*arguments: Any, words: dict[str, Any], **options: Any) -> list[tuple[list[str | None], str]]:
    made = Wording(Words.model_validate(words), SCHEMA).columns(*arguments, **options)
    assert list(made) == ["reason_1", "reason_2", "reason_3", "reason_4", "explanation"]
    for column in made.values():
        column.validate(full=True)
    codes = made["reason_1"].chunk(0).dictionary.to_pylist()
    assert len(set(codes)) == len(codes)
    *reasons, explanations = (column.to_pylist() for column in made.values())
    return [(list(codes), text) for *codes, text in zip(*reasons, explanations, strict=True)]


@pytest.mark.parametrize("words", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("ordered_by", ["share", "importance"])
def test_every_row_reads_as_if_written_one_by_one(
    words: dict[str, Any], ordered_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "_BLOCK_ROWS", 700)  # several blocks, the last one short
    before, after = random_rows(1_500, seed=3)
    told = told_rows(before, after)
    told[::7] = False
    wants = told | (np.arange(1_500) % 2 == 0)
    desired = np.arange(1_500) % 3 % 2
    importance = np.random.default_rng(1).random((1_500, 7)) if ordered_by == "importance" else None
    made = columns(before, after, told, wants, desired, words=words, importance=importance)
    said = Words.model_validate(words)
    for row, (reasons, explanation) in enumerate(made):
        if told[row]:
            want = expected_row(before, after, row, words, int(desired[row]), importance)
            assert (reasons, explanation) == want
            continue
        label = words.get("classes", {}).get(int(desired[row]), str(desired[row]))
        template = said.none if wants[row] else said.already
        assert (reasons, explanation) == ([None] * 4, template.format(desired=label))
    assert {len([code for code in reasons if code]) for reasons, _ in made} == {0, 1, 2, 3, 4}
    assert any("other" in text or "smaller" in text for _, text in made)


def one_change(**changed: tuple[float, float]) -> tuple[Encoded, Encoded]:
    before = Encoded(np.array([[2_000.0, 10.0, 0.1, 0.5]]), np.array([[0, 0, 0]]))
    after = Encoded(before.values.copy(), before.codes.copy())
    for name, (old, new) in changed.items():
        feature = next(feature for feature in SCHEMA.features if feature.name == name)
        number = isinstance(feature, Continuous)
        part, peers = ("values", SCHEMA.continuous) if number else ("codes", SCHEMA.categorical)
        getattr(before, part)[0, peers.index(feature)] = old  # type: ignore[attr-defined]
        getattr(after, part)[0, peers.index(feature)] = new  # type: ignore[attr-defined]
    return before, after


ONE = np.array([True])


def test_without_configuration_the_sentence_is_plain_english() -> None:
    rows = one_change(income=(2_000, 3_500), education=(0, 1))
    assert columns(*rows, ONE, ONE, np.array([1]), words=PLAIN) == [
        (
            ["education:change", "income:increase", None, None],
            "To get 1: change education from HS to Bachelors and raise income from 2,000 to 3,500.",
        )
    ]


def test_a_change_that_would_read_as_none_is_told_exactly() -> None:
    rows = one_change(income=(2_000.25, 2_000), balance=(1_234.5678, 1_234.5701))
    [(_, sentence)] = columns(*rows, ONE, ONE, np.array([1]), words=PLAIN)
    told = "lower income from 2,000.25 to 2,000.00 and raise balance from 1,234.5678 to 1,234.5701"
    assert sentence == f"To get 1: {told}."


def test_a_percentage_is_told_exactly_where_its_own_rounding_would_hide_the_change() -> None:
    words = {"features": {"rate": {"format": "percent"}}}
    [(_, sentence)] = columns(*one_change(rate=(0.0055, 0.005)), ONE, ONE, np.array([1]), words=words)
    assert sentence == "To get 1: lower rate from 0.550% to 0.500%."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((3, 2), "close 1 open loan"),
        ((3, 1), "close 2 open loans"),
        ((0, 1), "go from 0 open loans to 1 open loan"),
        ((0, 11), "go from 0 open loans to 11 open loans"),
        ((1, 1.25), "go from 1.00 open loans to 1.25 open loans"),
    ],
)
def test_one_of_something_has_a_word_of_its_own(change: tuple[float, float], said: str) -> None:
    texts = {"unit": "open loans", "unit_one": "open loan", "decrease": "close {change}"}
    words = {"features": {"income": {**texts, "increase": "go from {old} to {new}"}}}
    [(_, sentence)] = columns(*one_change(income=change), ONE, ONE, np.array([1]), words=words)
    assert sentence == f"To get 1: {said}."


def test_binding_rules_are_named_as_codes_and_in_the_sentence() -> None:
    before, after = random_rows(3, seed=0)
    binding = np.array([[6, 1, 0, 5], [3, -1, -1, -1], [6, -1, -1, -1]])
    told, wants = np.array([False, False, False]), np.array([True, True, False])
    made = columns(before, after, told, wants, np.ones(3, dtype=np.int64), words=PLAIN, binding=binding)
    sentence = "No way to 1 was found within the rules; in the way: "
    assert made == [
        (
            ["gender:immutable", "education:only_increase", "income:bounds", "score:only_decrease"],
            f"{sentence}gender, education, income and score.",
        ),
        (["rate:step", None, None, None], f"{sentence}rate."),
        ([None] * 4, "Nothing has to change: 1 is predicted already."),
    ]


def test_binding_rules_do_not_touch_rows_that_have_a_way() -> None:
    before, after = random_rows(200, seed=5)
    told = told_rows(before, after)
    desired = np.ones(200, dtype=np.int64)
    binding = np.full((200, 4), 2)
    plain = columns(before, after, told, ~told | told, desired, words=PLAIN)
    bound = columns(before, after, told, ~told | told, desired, words=PLAIN, binding=binding)
    assert [row for row, way in zip(bound, told, strict=True) if way] == [
        row for row, way in zip(plain, told, strict=True) if way
    ]


def test_what_has_no_importance_comes_last_whatever_its_sign() -> None:
    rows = one_change(income=(2_000, 3_500), education=(0, 1), balance=(5, 1), rate=(0.1, 0.2))
    importance = np.array([[-0.0, -3.0, 0.5, 0.0, 0.0, 0.0, 0.0]])
    [(reasons, _)] = columns(*rows, ONE, ONE, np.array([1]), words=PLAIN, importance=importance)
    assert reasons == ["balance:decrease", "income:increase", "education:change", "rate:increase"]


def test_a_class_that_the_target_does_not_have_is_a_fault() -> None:
    with pytest.raises(ConfigError, match=r"words\.classes"):
        Wording(Words.model_validate({"classes": {"approved": "a loan"}}), SCHEMA)


def test_no_rows_give_empty_columns() -> None:
    none = np.empty(0, dtype=bool)
    assert columns(*random_rows(0, 0), none, none, np.empty(0, dtype=np.int64), words=PLAIN) == []


def test_the_explained_table_tells_what_its_own_columns_say() -> None:
    bundle = untrained_bundle()
    table, _, _ = Explainer(bundle, 1, words=Words()).explain_table(people(800, seed=7), "run")
    assert {"ok", "already_desired"} <= set(table.column("row_status").to_pylist())
    for row in table.to_pylist():
        reasons = [row[f"reason_{place}"] for place in (1, 2, 3, 4)]
        if row["row_status"] != "ok":
            already = row["row_status"] == "already_desired"
            in_the_way = [code for code in reasons if code]
            assert not (already and in_the_way)
            rules = {"gender:immutable", "age:only_increase+bounds", "grade:only_increase"}
            assert set(in_the_way) <= rules | {"income:step", "rate:step", "housing:step"}
            assert all(code.split(":")[0] in row["explanation"] for code in in_the_way)
            assert row["explanation"].startswith("Nothing" if already else "No way")
            continue
        changed = {name for name in bundle.schema.feature_names if row[name] != row[f"fcf_{name}"]}
        assert len([code for code in reasons if code]) == min(4, len(changed))
        assert {code.split(":")[0] for code in reasons if code} <= changed
        first = reasons[0].split(":")[0]
        layout = {"rate": ",.2f", "age": ",", "income": ","}.get(first, "")
        old, new = (format(row[name], layout) for name in (first, f"fcf_{first}"))
        assert f"{first} from {old} to {new}" in row["explanation"]


def test_without_words_the_columns_are_there_and_null() -> None:
    table = Explainer(untrained_bundle(), None).explain_table(people(20), "run")[0]
    for name in ("reason_1", "reason_4", "explanation"):
        assert table.column(name).type == pa.string()
        assert table.column(name).null_count == 20
