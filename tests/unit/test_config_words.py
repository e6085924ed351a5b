"""The section `words` of a configuration: its faults are named with their keys."""

from pathlib import Path

import pytest

from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from tests.unit.test_config_file import GOOD, config_file, faults_in, load_text  # noqa: F401


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            "{to_reach: 'To {desird}: {changes}'}",
            "words.to_reach: unknown placeholder {desird}; known here: {des",
        ),
        ("{to_reach: 'To get {desired}.'}", "words.to_reach: needs {changes} once"),
        ("{none_because: 'no {features} {features}'}", "words.none_because: needs {features} once"),
        ("{already: 'fine {'}", "words.already: single '{' encountered"),
        ("{already: '{desired!r}'}", "words.already: {desired} takes no layout of its own"),
        ("{features: {age: {increase: 'to {new:.2f}'}}}", "words.features.age.increase: {new} takes no layout"),
        ("{features: {age: {increase: 'to {newer}'}}}", "words.features.age.increase: unknown placeholder {newer}"),
        ("{features: {town: {change: 'by {change}'}}}", "words.features.town.change: unknown placeholder {change}"),
        ("{features: {town: {increase: x}}}", "words.features.town.increase: is for continuous features"),
        ("{features: {age: {labels: {1: x}}}}", "words.features.age.labels: is for categorical features"),
        ("{features: {agee: {name: x}}}", "words.features.agee: no such feature; the table has age, town"),
        ("{features: {age: {nam: x}}}", "words.features.age.nam: unknown key; did you mean name?"),
        ("{classes: {1: [x]}}", "words.classes: input should be a valid string"),
        ("{ands: x}", "words.ands: unknown key; did you mean and?"),
    ],
)
def test_a_wrong_text_is_named_with_its_key(config_file: Path, words: str, fault: str) -> None:  # noqa: F811
    [found] = faults_in(config_file, f"{GOOD}words: {words}\n")
    assert found.startswith(fault)
    assert found.endswith("(line 9)")


def test_keys_of_labels_are_read_as_they_are_written(config_file: Path) -> None:  # noqa: F811
    text = f"{GOOD}words: {{and: ' und ', classes: {{0: good, true: yes it is}}}}\n"
    words = load_text(config_file, text).words
    assert words.classes == {"0": "good", "true": "yes it is"}
    assert words.and_ == " und "


def test_words_survive_being_written_and_read_again(config_file: Path) -> None:  # noqa: F811
    loaded = load_config(config_file, ["words={and: ' und ', classes: {1: good}}"])
    assert Config.model_validate(loaded.model_dump(mode="json")) == loaded
