from pathlib import Path

import pytest

from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.errors import ConfigError

CONF = sorted((Path(__file__).parents[2] / "conf").glob("*.yaml"))

GOOD = """\
table:
  path: loans
  target: decision
  features:
    age: {kind: continuous, bounds: [17, 90]}
    town: {kind: categorical}
training:
  epochs: 5
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


def load_text(config_file: Path, text: str, *overrides: str) -> Config:
    config_file.write_text(text)
    return load_config(config_file, list(overrides))


def faults_in(config_file: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        load_text(config_file, text, *overrides)
    assert error.value.source == str(config_file)
    return error.value.faults


def fault_in(config_file: Path, text: str, *overrides: str) -> str:
    [fault] = faults_in(config_file, text, *overrides)
    return fault


@pytest.mark.parametrize("path", CONF, ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path):
    assert load_config(path).table.features


def test_there_are_shipped_configurations():
    assert len(CONF) >= 3


def test_a_good_file_gives_its_values_and_the_defaults(config_file: Path):
    config = load_config(config_file)
    assert config.table.features["age"].bounds == (17.0, 90.0)
    assert config.training.epochs == 5
    assert config.training.batch_size == 128
    assert config.split.method == "sequential"


def test_bounds_in_the_wrong_order_are_named_with_path_and_line(config_file: Path):
    fault = fault_in(config_file, GOOD.replace("[17, 90]", "[90, 17]"))
    assert fault == "table.features.age.bounds: lower 90 > upper 17 (line 5)"


def test_every_fault_comes_at_once(config_file: Path):
    text = """\
table:
  path: loans
  features:
    age: {kind: continuous, bounds: [90, 17]}
    town: {kind: categorcal}
    size: {kind: categorical, order: [s]}
    rate: {kind: continuous, step: -1}
training:
  epoch: 5
  learning_rate: fast
split: {train: 0.9, validation: 0.3, test: 0.2}
colour: red
"""
    faults = faults_in(config_file, text)
    paths = [fault.split(":")[0] for fault in faults]
    assert sorted(paths) == [
        "colour",
        "split.train",
        "table.features.age.bounds",
        "table.features.rate.step",
        "table.features.size.order",
        "table.features.town",
        "table.target",
        "training.epoch",
        "training.learning_rate",
    ]


def test_the_error_reads_as_one_line_per_fault(config_file: Path):
    with pytest.raises(ConfigError) as error:
        load_text(config_file, GOOD.replace("[17, 90]", "[90, 17]").replace("epochs: 5", "epochs: 0"))
    first, *lines = str(error.value).splitlines()
    assert first == f"{config_file}: 2 faults"
    assert len(lines) == 2


def test_faults_between_fields_come_with_faults_of_fields(config_file: Path):
    text = GOOD.replace("target: decision", "target: town").replace("[17, 90]", "[90, 17]")
    paths = [fault.split(":")[0] for fault in faults_in(config_file, text)]
    assert sorted(paths) == ["table.features.age.bounds", "table.target"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("training:", "trainig:", "trainig: unknown key; did you mean training?"),
        ("epochs:", "epoch:", "training.epoch: unknown key; did you mean epochs?"),
        ("  path: loans", "  path: loans\n  key: [id]", "table.key: unknown key; did you mean keys?"),
        ("bounds:", "bound:", "table.features.age.bound: unknown key; did you mean bounds?"),
        (
            "  target:",
            "  sample: {name: loans, row: 200}\n  target:",
            "table.sample.row: unknown key; did you mean rows?",
        ),
        (
            "town: {kind: categorical}",
            "town: {kind: categorical, imutable: true}",
            "table.features.town.imutable: unknown key; did you mean immutable?",
        ),
    ],
    ids=["top", "section", "table", "feature", "sample", "category"],
)
def test_an_unknown_key_comes_with_the_nearest_name_at_every_level(
    config_file: Path, old: str, new: str, expected: str
):
    assert fault_in(config_file, GOOD.replace(old, new)).startswith(expected)


def test_an_unknown_key_unlike_any_other_comes_with_the_known_ones(config_file: Path):
    fault = fault_in(config_file, GOOD + "zzz: 1\n")
    assert fault.startswith("zzz: unknown key; known here: table, split, model")


def test_a_key_written_twice_is_refused_with_both_lines(config_file: Path):
    fault = fault_in(config_file, GOOD + "  epochs: 6\n")
    assert "key 'epochs' is written twice (lines 8 and 9)" in fault


def test_a_feature_written_twice_is_refused(config_file: Path):
    text = GOOD.replace("    town:", "    age: {kind: continuous}\n    town:")
    assert "key 'age' is written twice (lines 5 and 6)" in fault_in(config_file, text)


def test_a_feature_without_kind_says_what_to_write(config_file: Path):
    fault = fault_in(config_file, GOOD.replace("{kind: categorical}", "{immutable: true}"))
    assert fault.startswith("table.features.town: kind is missing; write kind: continuous or kind: categorical")


def test_an_unknown_kind_comes_with_the_nearest_one(config_file: Path):
    fault = fault_in(config_file, GOOD.replace("kind: categorical", "kind: categorcal"))
    assert fault.startswith("table.features.town: unknown kind 'categorcal'; did you mean categorical?")


@pytest.mark.parametrize("feature", ["", "continuous", "[1, 2]"])
def test_a_feature_that_is_no_mapping_is_named(config_file: Path, feature: str):
    fault = fault_in(config_file, GOOD.replace("{kind: categorical}", feature))
    assert fault.startswith("table.features.town: ")


@pytest.mark.parametrize("name", ["continuous", "categorical", "int", "bounds"])
def test_a_feature_may_have_any_name_and_keeps_it_in_faults(config_file: Path, name: str):
    text = GOOD.replace("age:", f'"{name}":').replace("[17, 90]", "[90, 17]")
    assert fault_in(config_file, text).startswith(f"table.features.{name}.bounds: lower 90 > upper 17")


def test_a_target_among_the_features_is_refused(config_file: Path):
    fault = fault_in(config_file, GOOD.replace("target: decision", "target: age"))
    assert "'age' is also listed under features" in fault


def test_a_direction_without_an_order_is_refused(config_file: Path):
    fault = fault_in(config_file, GOOD.replace("{kind: categorical}", "{kind: categorical, direction: increase}"))
    assert fault.startswith("table.features.town.direction: increase needs an order")


def test_a_category_listed_twice_in_an_order_is_named(config_file: Path):
    fault = fault_in(config_file, GOOD.replace("{kind: categorical}", "{kind: categorical, order: [a, b, a]}"))
    assert fault.startswith("table.features.town.order: listed twice: a")


def test_braces_in_a_value_are_shown_as_they_are(config_file: Path):
    text = GOOD.replace("target: decision", 'target: "{age}"').replace("age:", '"{age}":')
    assert "'{age}' is also listed under features" in fault_in(config_file, text)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("explain: {desired: 1.5}", "explain.desired"),
        ("explain: {desired: [a]}", "explain.desired"),
        ("cluster: {num_actors: 0}", "cluster.num_actors"),
        ("cluster: {num_actors: many}", "cluster.num_actors"),
    ],
)
def test_a_value_that_fits_none_of_several_types_is_one_fault_at_its_path(config_file: Path, line: str, path: str):
    assert fault_in(config_file, f"{GOOD}{line}\n").split(":")[0] == path


def test_a_category_of_the_wrong_type_is_one_fault_at_its_path(config_file: Path):
    fault = fault_in(config_file, GOOD.replace("{kind: categorical}", "{kind: categorical, order: [1, 2.5]}"))
    assert fault.split(":")[0] == "table.features.town.order.1"


@pytest.mark.parametrize("value", [".inf", ".nan"])
def test_bounds_must_be_finite(config_file: Path, value: str):
    fault = fault_in(config_file, GOOD.replace("[17, 90]", f"[17, {value}]"))
    assert fault.startswith("table.features.age.bounds.1: ")


def test_a_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: 1 fault\n  no such file"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_directory_is_no_configuration(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_file_that_is_not_text_is_refused(config_file: Path):
    config_file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(config_file)


def test_an_empty_file_says_what_is_missing(config_file: Path):
    assert fault_in(config_file, "") == "table: missing, and there is no default"


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n", "42\n"])
def test_a_file_that_is_no_mapping_is_refused(config_file: Path, text: str):
    assert fault_in(config_file, text).startswith("must be a mapping")


@pytest.mark.parametrize(
    "text",
    ["table: [1, 2\n", "table: {path: 'x\n", "\ttable: x\n", "a: b: c\n", "a: !!python/none x\n", "a: 1\n---\nb: 2\n"],
)
def test_broken_yaml_is_refused_with_its_line(config_file: Path, text: str):
    fault = fault_in(config_file, text)
    assert fault.startswith("not valid YAML: line ")


@pytest.mark.parametrize("text", ["table: {path: {{ path }}}\n", "[a, b]: 1\n", "? {a: b}\n: 1\n"])
def test_a_key_that_is_a_list_or_mapping_is_refused_as_broken_yaml(config_file: Path, text: str):
    assert fault_in(config_file, text).startswith("not valid YAML: line 1")


def test_merge_keys_share_settings_between_features(config_file: Path):
    text = GOOD.replace("age: {", "age: &number {").replace("town: {kind: categorical}", "rate: {<<: *number, step: 1}")
    config = load_text(config_file, text)
    assert config.table.features["rate"].bounds == (17.0, 90.0)


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("training.epochs=7", lambda config: config.training.epochs == 7),
        ("training.learning_rate=1e-3", lambda config: config.training.learning_rate == 0.001),
        ("model.encoder=[8, 4]", lambda config: config.model.encoder == [8, 4]),
        ("cluster.use_gpu=true", lambda config: config.cluster.use_gpu is True),
        ("table.path=s3://bucket/a=b", lambda config: config.table.path == "s3://bucket/a=b"),
        ("table.features.age.bounds=[0, null]", lambda config: config.table.features["age"].bounds == (0.0, None)),
        ("table.features.rate={kind: continuous}", lambda config: "rate" in config.table.features),
        ("explain.desired='1'", lambda config: config.explain.desired == "1"),
        ("explain.desired=1", lambda config: config.explain.desired == 1),
        ("table.sample.name=loans", lambda config: config.table.sample.name == "loans"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_override_wins_with_the_type_that_yaml_gives_it(config_file: Path, override: str, read):
    assert read(load_config(config_file, [override]))


def test_the_last_of_two_overrides_wins(config_file: Path):
    assert load_config(config_file, ["training.epochs=7", "training.epochs=8"]).training.epochs == 8


@pytest.mark.parametrize("override", ["training.epochs", "=5", "training..epochs=5", ".epochs=5", "training.=5", ""])
def test_an_override_of_the_wrong_form_says_how_to_write_it(config_file: Path, override: str):
    assert fault_in(config_file, GOOD, override) == f"--set {override}: write it as --set section.key=value"


def test_an_override_whose_value_is_broken_yaml_is_named(config_file: Path):
    assert fault_in(config_file, GOOD, "model.encoder=[8, 4").startswith("--set model.encoder=[8, 4: ")


def test_an_override_below_a_plain_value_is_refused(config_file: Path):
    assert fault_in(config_file, GOOD, "training.epochs.x=1") == "--set training.epochs.x=1: epochs is not a section"


def test_all_faulty_overrides_come_at_once(config_file: Path):
    assert len(faults_in(config_file, GOOD, "epochs", "training.epochs=3", "=1", "a=[")) == 3


def test_an_override_is_checked_like_the_file(config_file: Path):
    assert fault_in(config_file, GOOD, "table.features.age.bounds=[90, 17]").startswith(
        "table.features.age.bounds: lower 90 > upper 17"
    )
    assert fault_in(config_file, GOOD, "training.epoch=3").startswith(
        "training.epoch: unknown key; did you mean epochs"
    )


def test_a_fault_in_an_override_is_not_blamed_on_a_line_of_the_file(config_file: Path):
    assert "(line" not in fault_in(config_file, GOOD, "training.epochs=0")


def test_fewer_workers_at_most_than_at_least_is_a_fault(config_file: Path):
    fault = fault_in(config_file, GOOD + "cluster: {num_workers: 3, max_workers: 2}\n")
    assert fault == "cluster.max_workers: 2 is less than num_workers (3) (line 9)"


def test_a_range_of_actors_goes_from_least_to_most(config_file: Path):
    fault = fault_in(config_file, GOOD + "cluster: {num_actors: [4, 2]}\n")
    assert fault == "cluster.num_actors: [4, 2] is no range from least to most (line 9)"
