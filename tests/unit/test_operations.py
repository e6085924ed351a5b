"""The manual's figures and names are those of the code."""

import json
import re

import pytest

from ray_cfnet.config import Nightly
from tests.unit.k8s_checks import ROOT

TEXT = (ROOT / "docs" / "operations.md").read_text()
MANY = {"M": 1e6, "B": 1e9}


def table_below(title: str) -> list[list[str]]:
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


def test_sizing_table_follows_from_its_formula() -> None:
    speed, cores, price = 192_500, 4, 0.05
    assert f"{speed:,} rows/s * {cores} cores" in TEXT
    assert f"{price} USD per core-hour" in TEXT
    seen = set()
    for rows, nodes, computing, in_all, cost, per_million in table_below("Sizing"):
        number = float(rows.split()[0]) * MANY[rows.split()[1]]
        hours = number / (speed * cores * int(nodes)) / 3600
        dollars = (hours + 0.1) * (cores * int(nodes) + 1) * price
        assert float(computing) == pytest.approx(hours, abs=6e-4)
        assert float(in_all) == pytest.approx(hours + 0.1, abs=6e-3)
        assert float(cost) == pytest.approx(dollars, abs=6e-3)
        assert float(per_million) == pytest.approx(dollars / number * 1e6, abs=6e-6)
        seen.add(number)
    assert (min(seen), max(seen)) == (1e6, 1e10)


def test_settings_that_the_manual_names_are_there() -> None:
    named = set(re.findall(r"`nightly\.([a-z_]+)", TEXT))
    assert named <= set(Nightly.model_fields)
    assert {"max_model_age_days", "max_drift", "window", "retrain", "retrain_wait_days"} <= named


def test_status_has_the_keys_of_the_manual() -> None:
    from ray_cfnet.due import Choice
    from ray_cfnet.nightly import _Night
    from tests.unit.helpers import CONFIG

    described = {name for row in table_below("What to look at") for name in row[0].split("`")[1::2]}
    status = _Night(CONFIG, Choice(), None, print, None, None).status()  # type: ignore[arg-type]
    json.dumps(status)
    assert set(status) - {"version"} == described
