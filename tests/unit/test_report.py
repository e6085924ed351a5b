"""The report's figures against the same figures computed another way, and what its page may never do."""

import json
import re
from collections import Counter, defaultdict
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, median
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from ray_cfnet.errors import InputError, JobError
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle, Settings, make_net
from ray_cfnet.report import charts, figures
from ray_cfnet.report.drift import compare
from ray_cfnet.report.page import write_report
from ray_cfnet.report.rows import RunRows, identifier, open_rows
from ray_cfnet.report.wording import number, percent, seconds, value
from ray_cfnet.tables.codec import encode
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, people, people_schema
from tests.unit.outputs import explained_output, telling_bundle

HOSTILE = "<script>window.hacked = 1</script>"


def replaced(table: pa.Table, name: str, values: list[Any]) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("report")
    first = people(1500, seed=1)
    broken = replaced(first, "income", [None] * 7 + first["income"].to_pylist()[7:])
    broken = replaced(broken, "housing", [*broken["housing"].to_pylist()[:-5], *["castle"] * 5])
    manifest = explained_output(directory, {"2026-11-14": broken, "2026-11-15": people(1000, seed=2)})
    return directory / "out", manifest


@pytest.fixture(scope="module")
def rows(made: tuple[Path, dict[str, Any]]) -> Any:
    with open_rows(Location.of(made[0]), made[1]) as opened:
        yield opened


@pytest.fixture(scope="module")
def written(made: tuple[Path, dict[str, Any]]) -> list[dict[str, Any]]:
    """The explained rows by another reader."""
    return ds.dataset(made[0], partitioning="hive").to_table().to_pylist()


@pytest.fixture(scope="module")
def ways(written: list[dict[str, Any]]) -> list[dict[str, Any]]:
    told = [row for row in written if row["row_status"] == "ok"]
    assert 300 < len(told) < len(written)
    return told


def test_changes_and_distances_are_those_of_the_rows(rows: RunRows, ways: list[dict[str, Any]]) -> None:
    found = figures.distance_figures(rows)
    distances = [row["fcf_distance"] for row in ways]
    assert found["ways"] == len(ways)
    assert {one["changes"]: one["num_rows"] for one in found["changes"]} == Counter(
        row["fcf_num_changed"] for row in ways
    )
    assert found["mean_distance"] == pytest.approx(mean(distances))
    assert found["median_distance"] == pytest.approx(median(distances), rel=0.05)
    assert sum(one["num_rows"] for one in found["distances"]) == len(ways)
    for one in found["distances"][:-1]:
        inside = [distance for distance in distances if one["start"] <= distance < one["end"]]
        assert one["num_rows"] == pytest.approx(len(inside), abs=1)  # float32 against double at an edge


def test_moves_of_features_are_those_of_the_rows(rows: RunRows, ways: list[dict[str, Any]]) -> None:
    found = {one["name"]: one for one in figures.feature_figures(rows)}
    changed = {name: [row for row in ways if row[name] != row[f"fcf_{name}"]] for name in CONFIG.table.features}
    assert {name: one["num_rows"] for name, one in found.items()} == {n: len(c) for n, c in changed.items() if c}
    assert "gender" not in found, "it is immutable"
    assert list(found) == sorted(found, key=lambda name: -found[name]["num_rows"])
    income = found["income"]
    assert income["old"] == pytest.approx(median(row["income"] for row in changed["income"]), rel=0.03)
    assert income["new"] == pytest.approx(median(row["fcf_income"] for row in changed["income"]), rel=0.03)
    assert income["raised"] == pytest.approx(mean(row["fcf_income"] > row["income"] for row in changed["income"]))
    moves = Counter((row["housing"], row["fcf_housing"]) for row in changed["housing"])
    told = found["housing"]["moves"]
    assert [moves[move["old"], move["new"]] for move in told] == [count for _, count in moves.most_common(3)]
    assert told[0]["share"] == pytest.approx(moves.most_common(1)[0][1] / len(changed["housing"]))


def test_groups_are_compared_by_their_own_rows(rows: RunRows, written: list[dict[str, Any]]) -> None:
    [segment] = figures.segment_figures(rows, ["grade"])
    groups = defaultdict(list)
    for row in written:
        groups[row["grade"]].append(row)
    assert {group["name"]: group["num_rows"] for group in segment["groups"]} == {n: len(g) for n, g in groups.items()}
    for group in segment["groups"]:
        told = [row["fcf_distance"] for row in groups[group["name"]] if row["row_status"] == "ok"]
        assert group["ways"] == len(told)
        assert group["mean_distance"] == pytest.approx(mean(told))
    assert segment["longest"]["mean_distance"] == max(group["mean_distance"] for group in segment["groups"])
    chosen = figures.segment_figures(rows, [])
    assert {segment["name"] for segment in chosen} == {"grade", "housing", "gender"}
    partition = figures.segment_figures(rows, ["ds"])[0]
    assert {group["name"]: group["num_rows"] for group in partition["groups"]} == {
        "2026-11-14": 1488,
        "2026-11-15": 1000,
    }


@pytest.mark.parametrize(("means", "is_clear"), [((0.10, 0.20), True), ((0.100, 0.101), False)])
def test_a_difference_within_the_noise_is_not_called_one(means: tuple[float, float], is_clear: bool) -> None:
    groups = [{"name": str(m), "ways": 400, "mean_distance": m, "spread": 0.05} for m in means]
    assert figures._compared(groups)["is_clear"] is is_clear
    few = [{**group, "ways": 5} for group in groups]
    assert figures._compared(few)["longest"] is None


def test_clear_differences_are_shown_before_larger_ones_that_may_be_noise(
    rows: RunRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        "grade": {"gap": 0.5, "is_clear": False},
        "housing": {"gap": 0.1, "is_clear": True},
        "gender": {"gap": 0.2, "is_clear": True},
    }
    monkeypatch.setattr(figures, "_segment", lambda _, name: {"name": name, "groups": [1, 2], **found[name]})
    assert [one["name"] for one in figures.segment_figures(rows, [])] == ["gender", "housing", "grade"]


def test_quality_counts_every_labelled_row(rows: RunRows, written: list[dict[str, Any]]) -> None:
    quality = figures.quality_figures(rows)
    assert quality is not None
    right = [row["approved"] == row["pred_label"] for row in written]
    assert quality["accuracy"] == pytest.approx(mean(right))
    assert quality["classes"] == ["0", "1"]
    assert quality["confusion"][1][0] == sum(row["approved"] == 1 and row["pred_label"] == 0 for row in written)
    assert sum(one["num_rows"] for one in quality["calibration"]) == len(written)
    refused = [row for row in written if row["pred_label"] == 0]
    assert quality["per_class"][0]["precision"] == pytest.approx(mean(row["approved"] == 0 for row in refused))


@pytest.mark.parametrize("none", [float("nan"), "pending", 7, None])
def test_what_is_no_class_is_no_label(none: Any, tmp_path: Path) -> None:
    table = people(300, seed=1)
    labels = table["approved"].to_pylist()
    as_told = type(none) if none is not None else int  # pandas makes 1.0 and NaN of 1 and null
    given = [none if row % 3 == 0 else as_told(label) for row, label in enumerate(labels)]
    manifest = explained_output(tmp_path, {"2026-11-14": replaced(table, "approved", given)})
    with open_rows(Location.of(tmp_path / "out"), manifest) as rows:
        quality = figures.quality_figures(rows)
    assert quality is not None
    assert quality["classes"] == ["0", "1"]
    told = Counter(label for row, label in enumerate(labels) if row % 3)
    assert [one["num_rows"] for one in quality["per_class"]] == [told[0], told[1]]
    assert sum(one["num_rows"] for one in quality["calibration"]) == quality["labelled"] == 200


def test_rejects_are_told_by_reason_and_column(rows: RunRows) -> None:
    assert figures.reject_figures(rows) == [
        {"reason": "null", "name": "income", "num_rows": 7},
        {"reason": "unseen_category", "name": "housing", "num_rows": 5},
    ]


def test_samples_are_rows_in_need_and_the_same_each_time(rows: RunRows, written: list[dict[str, Any]]) -> None:
    samples = figures.sample_figures(rows, 20)
    assert len(samples) == 20
    assert samples == figures.sample_figures(rows, 20)
    by_key = defaultdict(list)
    for row in written:
        by_key[f"id {row['id']}"].append(row)
    for sample in samples:
        changed = [
            {one: (row[one], row[f"fcf_{one}"]) for one in CONFIG.table.features if row[one] != row[f"fcf_{one}"]}
            for row in by_key[sample["key"]]
            if row["row_status"] == "ok"
        ]
        told = {change["name"]: (change["old"], change["new"]) for change in sample["changes"]}
        assert (told in changed) if sample["has_way"] else told == {}


def test_a_sample_is_named_by_a_key_of_any_type(tmp_path: Path) -> None:
    times = pa.array(range(100), pa.timestamp("s", "UTC"))
    table = people(100, seed=1)
    manifest = explained_output(tmp_path, {"2026-11-14": table.set_column(0, "id", times)})
    with open_rows(Location.of(tmp_path / "out"), manifest) as rows:
        assert {sample["key"][:16] for sample in figures.sample_figures(rows, 3)} == {"id 1970-01-01 00"}


def test_samples_say_the_sentence_of_their_row(rows: RunRows, written: list[dict[str, Any]]) -> None:
    sentences = defaultdict(set)
    for row in written:
        sentences[f"id {row['id']}"].add(row["explanation"])
        if row["row_status"] == "ok":
            reasons = [row[f"reason_{number}"] for number in range(1, 5)]
            assert len(list(filter(None, reasons))) == min(row["fcf_num_changed"], 4)
    samples = figures.sample_figures(rows, 40)
    assert all(sample["explanation"] in sentences[sample["key"]] for sample in samples)
    assert {sample["explanation"][:6] for sample in samples} == {"To get", "No way"}


def test_a_row_without_a_way_says_so_once(tmp_path: Path) -> None:
    plain = "No change within the rules was found"
    for words, in_words, in_plain in ((True, True, False), (False, False, True)):
        directory = tmp_path / str(words)
        explained_output(directory, {"2026-11-14": people(200, seed=1)}, words=words)
        page = Path(write_report(str(directory / "out"))).read_text()
        assert (": change" in page, ("No way to" in page), plain in page) == (in_words, in_words, in_plain)
        assert "None" not in page


def test_rows_that_were_not_selected_are_not_called_explained(tmp_path: Path) -> None:
    run = explained_output(tmp_path, {"2026-11-14": people(300, seed=1)}, only="pred_label=0")
    left_out = run["row_status"]["not_selected"]
    page = Path(write_report(str(tmp_path / "out"))).read_text()
    assert 0 < left_out < 300
    assert "300 rows in = 300 scored + 0 rejected" in page
    assert f"{left_out} of them were not selected and have a prediction alone" in page
    assert f"<b>{300 - left_out}</b><span>rows explained, of 300 scored</span>" in page


def test_more_rejects_than_allowed_are_no_good_night(tmp_path: Path) -> None:
    table = people(200, seed=1)
    table = replaced(table, "housing", ["castle"] * 20 + table["housing"].to_pylist()[20:])
    told = []
    for limit in (0.09, 0.1):
        with nullcontext() if limit == 0.1 else pytest.raises(JobError, match="of the rows were rejected"):
            explained_output(tmp_path / str(limit), {"2026-11-14": table}, max_reject_fraction=limit)
        page = Path(write_report(str(tmp_path / str(limit) / "out"))).read_text()
        told.append(("<b>Too many rejects.</b>" in page, 'class="verdict look"' in page))
    assert told == [(True, True), (False, False)]


def test_what_failed_stands_in_the_verdict(tmp_path: Path) -> None:
    days = {f"2026-11-{day}": people(3_000, seed=day) for day in (14, 15)}
    for day, rows in days.items():
        place = tmp_path / "in" / f"ds={day}" / "other.parquet"
        place.parent.mkdir(parents=True)
        pq.write_table(rows, place)
    damaged = place.read_bytes()
    place.write_bytes(damaged[:1000] + bytes(9_000) + damaged[10_000:])
    with pytest.raises(JobError, match="1 of 2 units failed"):
        explained_output(tmp_path, days, retries=0)
    page = Path(write_report(str(tmp_path / "out"))).read_text()
    verdict = page.partition('<section class="verdict look"')[2].partition("</section>")[0]
    assert "<b>Not complete.</b> 1 of 2 units of work failed" in verdict
    assert re.search(r"<li>ds=2026-11-15: \S+/other.parquet: cannot be read", verdict)
    assert "6,000 rows in = 6,000 explained" in verdict
    assert "No complete run came before this one" in verdict


def test_rejects_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    table = people(200, seed=1)
    table = replaced(table, "housing", ["castle"] * 20 + table["housing"].to_pylist()[20:])
    both = explained_output(tmp_path, {"2026-11-14": table, "2026-11-15": table})
    explained_output(tmp_path, {"2026-11-15": people(100)})
    page = Path(write_report(str(tmp_path / "out"), both["run_id"])).read_text()
    rejects = page.partition("<h2>Which rows were rejected?</h2>")[2].partition("</table>")[0]
    assert re.findall(r"<td>(\w+)</td><td>(\w*)</td><td class=\"n\">(\d+)</td>", rejects) == [
        ("unseen_category", "housing", "20"),
        ("others", "", "20"),
    ]


def test_of_several_ways_the_page_says_which_it_is_about(tmp_path: Path) -> None:
    bundle = telling_bundle()
    bundle.reference = Explainer(bundle, None).reference(encode(people(1000, seed=5), bundle.schema)[0])
    for num_options in (1, 3):
        directory = tmp_path / str(num_options)
        explained_output(directory, {"2026-11-14": people(200, seed=4)}, bundle, num_options=num_options)
        page = Path(write_report(str(directory / "out"))).read_text()
        assert ("Rows have up to 3 ways; this page is about the nearest." in page) == (num_options == 3)


def test_a_number_of_changes_that_no_way_needs_keeps_its_place() -> None:
    drawn = charts.columns([{"name": name, "share": 0.5, "said": "x"} for name in (1, 2, 4)], "features changed")
    assert re.findall(r"<text[^>]*>(\d)</text>", drawn) == ["1", "2", "3", "4"]


def test_the_page_stands_alone_and_tells_the_run(made: tuple[Path, dict[str, Any]]) -> None:
    output, manifest = made
    place = write_report(str(output), manifest["run_id"][:6], segments=["gender", "run_id"])
    assert place == str(output / "_reports" / f"{manifest['run_id']}.html")
    page = Path(place).read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", page)
    assert "@import" not in page
    assert "2,500 rows in = 2,488 explained + 12 rejected" in page
    assert page.count("<svg") >= 5
    assert "No complete run came before this one" in page
    assert page.count("All rows are of one group.") == 1
    assert len(page) < 600_000
    assert not ds.dataset(output, partitioning="hive").files[-1].endswith(".html")


def test_no_value_of_the_data_becomes_markup(tmp_path: Path) -> None:
    table = people(400, seed=3)
    hostile = [HOSTILE if home == "own" else home for home in table["housing"].to_pylist()]
    table = replaced(replaced(table, "housing", hostile), "note", [HOSTILE] * 200 + ["</style>'\"&"] * 200)
    table = table.rename_columns([HOSTILE if name == "approved" else name for name in table.column_names])
    schema = people_schema(replaced(people(500), "housing", [hostile[i % 400] for i in range(500)]))
    bundle = Bundle(make_net(schema, CONFIG.model).eval(), schema, Settings.of(CONFIG), {"rows": 1})
    manifest = explained_output(tmp_path, {'2026"<b>': table}, bundle)
    page = Path(
        write_report(str(tmp_path / "out"), manifest["run_id"], segments=["housing", "note", HOSTILE])
    ).read_text()
    assert page.count("<script>") == 1
    assert page.count("</style>") == 1
    assert page.count("&lt;script&gt;window.hacked") > 2
    assert "<b>'" not in page
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/=]{44}'", page)


def test_names_are_quoted() -> None:
    assert identifier('a"; DROP TABLE x; --') == '"a""; DROP TABLE x; --"'


def test_a_run_that_was_replaced_still_has_its_totals(tmp_path: Path) -> None:
    first = explained_output(tmp_path, {"2026-11-14": people(200, seed=1)})
    explained_output(tmp_path, {"2026-11-14": people(250, seed=2)})
    page = Path(write_report(str(tmp_path / "out"), first["run_id"])).read_text()
    assert "200 rows in = 200 explained" in page
    assert "replaced by a later run" in page
    assert "sample explanations" not in page


def test_a_run_of_an_earlier_version_is_told_from_its_columns(tmp_path: Path) -> None:
    manifest = explained_output(tmp_path, {"2026-11-14": people(300, seed=1)})
    place = tmp_path / "out" / "_runs" / manifest["run_id"] / "manifest.json"
    old = {key: given for key, given in json.loads(place.read_text()).items() if key not in ("table", "predicted")}
    place.write_text(json.dumps(old))
    page = Path(write_report(str(tmp_path / "out"))).read_text()
    assert "What changes most?" in page
    with open_rows(Location.of(tmp_path / "out"), old) as rows:
        assert rows.features == {name: feature.kind for name, feature in CONFIG.table.features.items()}


def test_a_class_is_written_as_it_is(tmp_path: Path) -> None:
    for night in (1, 2):
        run = explained_output(tmp_path, {f"2026-11-{night}": people(60, seed=night)})
        named = {"table": {**run["table"], "desired": ">50K"}, "predicted": {">50K": 40, "<=50K": 20}}
        told = json.dumps({**run, **named, "finished_at": f"2026-11-0{night}T04:20:00+00:00"})
        (tmp_path / "out" / "_runs" / run["run_id"] / "manifest.json").write_text(told)
    assert "<h3>Rows predicted as &gt;50K</h3>" in Path(write_report(str(tmp_path / "out"))).read_text()


def test_wrong_questions_are_named(made: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column genders to compare by"):
        write_report(str(made[0]), segments=["genders"])
    with pytest.raises(InputError, match="no such run: zz"):
        write_report(str(made[0]), "zz")
    with pytest.raises(InputError, match="no runs in it"):
        write_report(str(tmp_path))


def a_run(number: int, **figures_: Any) -> dict[str, Any]:
    return {
        "run_id": f"{number:016x}",
        "model_id": "m",
        "state": "complete",
        "finished_at": f"2026-11-{number + 1:02d}T04:20:00+00:00",
        "table": {"desired": "yes"},
        "rows_in": 1000,
        "rows_out": 990,
        "rows_rejected": 10,
        "predicted": {"yes": 600, "no": 390},
        "fcf_validity": 0.99,
        "mean_fcf_distance": 0.10 + number % 2 * 0.002,
        "changed_features": {"income": 0.6, "savings": 0.4},
        **figures_,
    }


USUAL = [a_run(number) for number in range(8)]


@pytest.mark.parametrize(
    ("change", "unusual", "said"),
    [
        ({}, [], "Nothing unusual: all figures are within what the last 7 runs showed."),
        ({"fcf_validity": 0.90}, ["validity"], "that get one 90.0\u00a0%, was 99.0\u00a0%"),
        ({"predicted": {"yes": 400, "no": 590}}, ["prediction"], "rows predicted as yes 40.4\u00a0%, was 60.6\u00a0%"),
        ({"mean_fcf_distance": 0.15}, ["distance"], "mean distance of a way 0.15, was 0.102 (47.1\u00a0% longer)"),
        ({"changed_features": {"income": 0.1, "age": 0.9}}, ["mix"], "90.0\u00a0% of the changes moved"),
        ({"rows_rejected": 100}, ["rejects"], "Unlike the last 7 runs: rejected rows 10.0\u00a0%, was 1.0\u00a0%."),
    ],
)
def test_what_is_unusual_is_said(change: dict[str, Any], unusual: list[str], said: str) -> None:
    run = a_run(8, **{"mean_fcf_distance": 0.10, **change})
    found = compare([*USUAL, run], run)
    assert [check["name"] for check in found["unusual"]] == unusual
    assert said in found["verdict"]


def test_only_complete_runs_before_count() -> None:
    run = USUAL[3]
    broken = a_run(2, state="incomplete", fcf_validity=0.1)
    assert compare([*USUAL[:2], broken, *USUAL[3:], {"run_id": "x", "state": "unfinished"}], run)["before"] == 2
    assert "nothing to compare" in compare([run], run)["verdict"]


def test_a_figure_that_always_moved_may_move() -> None:
    restless = [a_run(number, fcf_validity=0.9 + number % 2 * 0.05) for number in range(7)]
    run = a_run(8, fcf_validity=0.87)
    assert compare([*restless, run], run)["unusual"] == []


def test_numbers_are_written_for_people() -> None:
    assert [number(1234567), number(0.00688), number(1234.5), number(None)] == ["1,234,567", "0.00688", "1,234", "-"]
    assert [number(6.57e-05), number(0.0), number(2.0)] == ["0.000066", "0", "2"]
    assert [percent(0.123), percent(1), percent(0.9996), percent(0.0004)] == [
        "12.3\u00a0%",
        "100\u00a0%",
        "99.96\u00a0%",
        "0.04\u00a0%",
    ]
    assert [seconds(1.25), seconds(600), seconds(9000)] == ["1.2 s", "10 min", "2.5 h"]
    assert [value(12600), value(True), value("a"), value(0.1)] == ["12,600", "true", "a", "0.1"]


def test_a_report_of_an_output_in_a_bucket_tells_the_same(
    made: tuple[Path, dict[str, Any]], bucket: Location, tmp_path: Path
) -> None:
    output, manifest = made
    pafs.copy_files(str(output), f"{bucket.path}/out", destination_filesystem=bucket.fs)
    place = write_report(f"{bucket}/out", segments=["gender", "ds"])
    assert place == f"{bucket}/out/_reports/{manifest['run_id']}.html"
    local = write_report(str(output), to=str(tmp_path / "local.html"), segments=["gender", "ds"])
    told = [
        re.findall(r'aria-label="([^"]* (?:changes?:|of the ways|over)[^"]*)', page)  # none of them a median
        for page in (Location.of(place).read_bytes().decode(), Path(local).read_text())
    ]
    assert len(told[0]) > 8
    assert told[0] == told[1]


def test_of_a_delta_table_only_the_newest_version_counts(tmp_path: Path) -> None:
    first = explained_output(tmp_path, {"2026-11-14": people(200, seed=1)}, output_format="delta")
    second = explained_output(tmp_path, {"2026-11-14": people(250, seed=2)}, output_format="delta")
    output = Location.of(tmp_path / "out")
    with open_rows(output, second) as rows:
        assert rows.one("SELECT count(*) AS n FROM explained") == {"n": 250}
        assert rows.files_missing == 0
    with open_rows(output, first) as rows:
        assert (rows.columns, rows.files_missing) == ({}, 1)
