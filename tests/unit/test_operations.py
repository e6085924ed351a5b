"""The manual's figures and names are those of the code."""

import json
import re

import pytest

from ray_cfnet.config import Nightly
from tests.unit.k8s_checks import ROOT, Document, cluster_of, containers, named, quantity, render

TEXT = (ROOT / "docs" / "operations.md").read_text()
MEASURED = (ROOT / "benchmarks" / "results" / "explain.md").read_text()
MANY = {"M": 1e6, "B": 1e9}


def table_below(title: str, text: str = TEXT) -> list[list[str]]:
    section = text.split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return rows[1:]


def cores(documents: list[Document]) -> tuple[float, float]:
    """What a night asks for: cores of a worker, and of all else together."""
    asked = {
        name: quantity(container["resources"]["requests"]["cpu"])
        for name, container in containers(documents)
        if name.startswith("ray-cfnet-nightly ") and "/start" not in name  # which ends before the cluster begins
    }
    worker = asked.pop("ray-cfnet-nightly workers/ray-worker")
    return worker, sum(asked.values())


def sizing_faults(text: str, documents: list[Document], measured: str) -> list[str]:
    """Where the section on sizing says other than the manifests, the measured figures or its own formula."""
    worker, beside = cores(documents)
    rates = re.search(r"`actors` \| 8 \| 8 M \| ([0-9,]+) rows/s with one actor, ([0-9,]+) with two", measured)
    one, two = (int(rate.replace(",", "")) for rate in rates.groups())
    shipped = float(re.search(r"`shipped` \|.*without: ([0-9.]+) ", measured)[1])
    longer = round(1 / shipped, 1)
    speed, price = one / 2, 0.05
    said = [
        f"a job does {shipped} of the rows/s",
        f"both together take {longer} times as\nlong",
        f"{one:,} rows/s with one actor on one core, {two:,} with two",
        f"= {longer} * rows / ({speed:,.0f} rows/s * {worker:g} cores * nodes) / 3,600",
        f"in all * ({worker:g} * nodes + {beside:g}) * {price} ",
        f"The {beside:g} cores beside the workers",
    ]
    faults = [f"not said: {words}" for words in said if words not in text]
    for rows, nodes, *written in table_below("Sizing", text):
        number = float(rows.split()[0]) * MANY[rows.split()[1]]
        hours = longer * number / (speed * worker * int(nodes)) / 3600
        dollars = (hours + 0.1) * (worker * int(nodes) + beside) * price
        right = [f"{hours:.3f}", f"{hours + 0.1:.2f}", f"{dollars:.2f}", f"{dollars / number * 1e6:.5f}"]
        if written != right:
            faults.append(f"{rows} on {nodes}: {written}, it is {right}")
    return faults


@pytest.fixture
def manifests() -> list[Document]:
    return render(ROOT / "k8s" / "overlays" / "cpu")


def test_sizing_follows_from_what_was_measured_and_what_the_manifests_ask_for(manifests: list[Document]) -> None:
    assert sizing_faults(TEXT, manifests, MEASURED) == []
    counts = [float(rows.split()[0]) * MANY[rows.split()[1]] for rows, *_ in table_below("Sizing")]
    assert (min(counts), max(counts)) == (1e6, 1e10)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* nodes + 2)", "* nodes + 1)"),
        ("| 0.82 | 0.25 |", "| 0.82 | 0.27 |"),
        ("= 2.0 * rows", "= rows"),
        ("192,500", "385,000"),
        ("The 2 c", "The c"),
    ],
)
def test_sizing_with_another_figure_is_found(old: str, new: str, manifests: list[Document]) -> None:
    assert old in TEXT
    assert sizing_faults(TEXT.replace(old, new), manifests, MEASURED) != []


def test_sizing_for_other_manifests_or_other_measurements_is_found(manifests: list[Document]) -> None:
    for old, new in (("385,000", "300,000"), ("without: 0.49", "without: 0.39")):
        assert old in MEASURED
        assert sizing_faults(TEXT, manifests, MEASURED.replace(old, new)) != []
    nightly = cluster_of(named(manifests, "RayJob", "ray-cfnet-nightly"))
    nightly["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    assert sizing_faults(TEXT, manifests, MEASURED) != []


def test_settings_that_the_manual_names_are_there() -> None:
    named = set(re.findall(r"`nightly\.([a-z_]+)", TEXT))
    assert named <= set(Nightly.model_fields)
    assert {"max_model_age_days", "max_drift", "window", "retrain", "retrain_wait_days"} <= named


def messages_of_the_code() -> str:
    """All of the source, strings of several lines as one, what is filled in as three dots."""
    source = "\n".join(file.read_text() for file in sorted((ROOT / "ray_cfnet").rglob("*.py")))
    return re.sub(r"\{[^{}]*\}", "...", re.sub(r'"\n *f?"', "", source))


def test_alarms_quote_what_the_code_says() -> None:
    quoted = {words for row in table_below("What each alarm means") for words in re.findall('"([^"]+)"', row[0])}
    assert {"not a readable Parquet file", "units were left out", "stopped by a signal"} <= quoted
    messages = messages_of_the_code()
    assert [words for words in quoted if words not in messages] == []
    assert "was begun ... times and its actor died at once" not in messages


def test_status_has_the_keys_of_the_manual() -> None:
    from ray_cfnet.due import Choice
    from ray_cfnet.nightly import _Night
    from tests.unit.helpers import CONFIG

    described = {name for row in table_below("What to look at") for name in row[0].split("`")[1::2]}
    status = _Night(CONFIG, Choice(), None, print, None, None).status()  # type: ignore[arg-type]
    json.dumps(status)
    assert set(status) - {"version"} == described
