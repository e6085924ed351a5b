"""Suggested configurations: they load, and say what a person would have said about well-known tables."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_cfnet.config import Config
from ray_cfnet.config.file import load_config
from ray_cfnet.errors import InputError
from ray_cfnet.tables.fit import TableStats, fit_schema
from ray_cfnet.tables.samples import loans_table
from ray_cfnet.tables.suggest import MAX_ROWS, suggest_config

ROOT = Path(__file__).parents[2]


def nobody(name: str) -> None:
    """Is there to ask."""


@pytest.fixture
def suggested(tmp_path: Path) -> Callable[..., tuple[Config, str]]:
    def suggest(table: pa.Table | Path, target: str | None = None, keys: list[str] | None = None, confirm=nobody):
        if isinstance(table, pa.Table):
            pq.write_table(table, tmp_path / "some table.parquet")
            table = tmp_path / "some table.parquet"
        text = suggest_config(str(table), target, keys or [], confirm)
        (tmp_path / "config.yaml").write_text(text)
        return load_config(tmp_path / "config.yaml"), text

    return suggest


@pytest.mark.data
@pytest.mark.parametrize("name", ["adult", "credit", "heloc", "oulad", "cancer", "covertype"])
def test_the_papers_tables_are_read_as_the_paper_reads_them(name: str, real_data: Path, suggested):
    expected = json.loads((real_data / "datasets.json").read_text())[name]
    config, _ = suggested(real_data / f"{name}.parquet")
    features = config.table.features
    assert config.table.target == expected["target"]
    kinds = {
        **dict.fromkeys(expected["continuous"], "continuous"),
        **dict.fromkeys(expected["categorical"], "categorical"),
    }
    assert features.keys() == kinds.keys()
    agreed = [feature.kind == kinds[column] for column, feature in features.items()]
    assert np.mean(agreed) >= 0.95
    fixed = {column for column, feature in features.items() if feature.immutable}
    people = {"race", "gender", "SEX", "age_band", "disability"}
    assert fixed == people & set(expected["immutable"])
    growing = {column for column, feature in features.items() if feature.direction == "increase"}
    assert growing == {"age", "AGE"} & set(features)


def test_the_sample_table_gives_a_configuration_that_fits_its_rows(suggested):
    rows = loans_table(3_000, 0, 0)
    config, text = suggested(rows)
    table, features = config.table, config.table.features
    assert (table.target, table.keys) == ("decision", ["application_id"])
    assert (features["income"].step, features["savings"].step, features["amount"].step) == (100, 50, 500)
    assert features["years_employed"].decimals == 1
    assert features["income"].bounds == (0, None)
    assert features["age"].direction == "increase"
    assert features["gender"].immutable
    assert features["term_months"].kind == features["housing"].kind == "categorical"
    assert "# 2 values; a person cannot change this: check" in text
    stats = TableStats()
    stats.add(rows, table, "loans")
    assert len(fit_schema(table, rows.schema, stats, 0.0).features) == 13


def odd_table() -> pa.Table:
    rng = np.random.default_rng(0)
    count = 400
    return pa.table(
        {
            "uuid": [f"u{i}" for i in range(count)],
            "note: free #text": [f"text {i // 2}" for i in range(count)],
            "when": pa.array([0] * count, pa.timestamp("us")),
            "same": [1] * count,
            "nothing": pa.array([None] * count, pa.string()),
            "yes": rng.integers(0, 2, count),
            "percentPaid": rng.integers(0, 101, count),
            "on sale": pa.array(rng.random(count) > 0.5),
            "price": np.round(rng.random(count) * 50 - 10, 2),
            "exact": rng.normal(size=count),
            "with nulls": pa.array([None if i % 50 == 0 else float(i) for i in range(count)]),
            "1.5": pa.array(rng.choice(["a", "b"], count)).dictionary_encode(),
            "mileage": rng.integers(0, 10**6, count),
            "dateOfBirth": rng.integers(1920, 2005, count),
            "birthyear": rng.integers(1920, 2005, count),
            "y": pa.array(rng.choice(["good", "bad", "ugly"], count)),
        }
    )


def test_odd_columns_are_left_out_with_a_reason_and_odd_names_survive(suggested):
    config, text = suggested(odd_table())
    features = config.table.features
    assert (config.table.target, config.table.keys) == ("y", ["uuid"])
    assert list(features) == [
        *("yes", "percentPaid", "on sale", "price", "exact", "with nulls", "1.5", "mileage", "dateOfBirth"),
        "birthyear",
    ]
    assert "# note: free #text is left out: 200 different values" in text
    assert "# when is left out: a date or time" in text
    assert "# same is left out: constant" in text
    assert "# nothing is left out: no row has a value" in text
    assert features["percentPaid"].bounds == (0, 100)
    assert (features["price"].decimals, features["price"].bounds) == (2, None)
    assert features["exact"].decimals is None
    assert features["dateOfBirth"].immutable
    assert features["birthyear"].immutable
    assert features["mileage"].direction == "any"
    assert "2.0% null: such rows are rejected" in text
    assert config.training.max_reject_fraction == 0.03
    assert config.explain.desired == "ugly"


def test_named_target_and_keys_win(suggested):
    config, _ = suggested(odd_table(), target="on sale", keys=["mileage", "yes"])
    assert (config.table.target, config.table.keys) == ("on sale", ["mileage", "yes"])
    assert "y" in config.table.features


def test_a_target_of_probabilities_is_declared_as_such(suggested):
    table = odd_table().append_column("score", pa.array(np.linspace(0, 1, 400)))
    assert suggested(table, target="score")[0].table.target_probability


def test_one_odd_value_does_not_hide_a_step(suggested):
    amounts = pa.array([327_681, *[10_000 * (i % 90 + 1) for i in range(999)]])
    config, _ = suggested(pa.table({"amount": amounts, "label": [i % 2 for i in range(1_000)]}))
    assert config.table.features["amount"].step == 10_000


def test_who_says_no_keeps_a_feature_that_can_change(suggested):
    config, text = suggested(loans_table(500, 0, 0), confirm=lambda name: False)
    assert not config.table.features["gender"].immutable
    assert "cannot change" not in text
    assert config.table.features["age"].direction == "increase", "but it does not fall"


def test_who_says_yes_holds_also_what_only_grows(suggested):
    asked = []
    config, _ = suggested(loans_table(500, 0, 0), confirm=lambda name: bool(asked.append(name)) or True)
    assert {"gender", "age"} <= set(asked)
    assert config.table.features["age"].immutable
    assert config.table.features["gender"].immutable


def test_a_partitioned_table_is_read_from_all_over_and_not_whole(tmp_path: Path, suggested):
    for day in range(3):
        (tmp_path / f"t/ds={day}").mkdir(parents=True)
        rows = pa.table({"a": np.arange(120_000) % 50 + 1_000 * day, "label": np.arange(120_000) % 2})
        pq.write_table(rows, tmp_path / f"t/ds={day}/part.parquet", row_group_size=20_000)
    config, text = suggested(tmp_path / "t")
    read = int(text.split("from ")[1].split(" of")[0].replace(",", ""))
    assert 0 < read <= MAX_ROWS
    assert "360,000 rows" in text
    assert "0 to 2049" in text
    assert config.output.path == "out/t"


def test_what_cannot_be_suggested_is_told(tmp_path: Path, suggested):
    with pytest.raises(InputError, match="no column prise"):
        suggested(odd_table(), target="prise")
    with pytest.raises(InputError, match="pass --target"):
        suggested(pa.table({"a": np.arange(500) * 0.37, "b": np.arange(500) * 1.1}))
    with pytest.raises(InputError, match="no column can be a feature"):
        suggested(pa.table({"a": [1, 1, 1], "label": [0, 1, 0]}))
    with pytest.raises(InputError, match="no such file"):
        suggested(tmp_path / "nowhere")


def test_the_command_prints_yaml_and_asks_nothing_without_a_terminal(tmp_path: Path):
    pq.write_table(loans_table(300, 0, 0), tmp_path / "loans.parquet")
    command = [sys.executable, "-m", "ray_cfnet", "config", "suggest", str(tmp_path / "loans.parquet")]
    done = subprocess.run([*command, "--target", "housing"], cwd=ROOT, input=b"n\n", capture_output=True, check=True)
    (tmp_path / "config.yaml").write_bytes(done.stdout)
    assert done.stderr == b""
    assert load_config(tmp_path / "config.yaml").table.target == "housing"


@pytest.mark.parametrize(("options", "fixed"), [([], False), (["--yes"], True)])
def test_on_a_terminal_it_asks_about_what_looks_immutable(tmp_path: Path, options: list[str], fixed: bool):
    pq.write_table(loans_table(300, 0, 0), tmp_path / "loans.parquet")
    ours, theirs = pty.openpty()
    os.write(ours, b"n\nn\n")  # age, gender
    command = [sys.executable, "-m", "ray_cfnet", "config", "suggest", str(tmp_path / "loans.parquet"), *options]
    done = subprocess.run(
        command, cwd=ROOT, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, timeout=120, check=True
    )
    os.close(theirs)
    (tmp_path / "config.yaml").write_bytes(done.stdout)
    assert load_config(tmp_path / "config.yaml").table.features["gender"].immutable == fixed
    asked = os.read(ours, 1_000).decode()
    assert ("Is gender something that a person cannot change?" in asked) != fixed
    os.close(ours)
