"""`ray-cfnet show`: one row of a real output, found by its key."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs
from rich.console import Console

from ray_cfnet.cli.display_row import show_row
from ray_cfnet.cluster.find import _row, find_row
from ray_cfnet.config.ruletext import Relation
from ray_cfnet.errors import InputError
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.rulewords import rule_code, rule_text
from ray_cfnet.tables.schema import Categorical, Continuous, Grid
from ray_cfnet.tables.storage import Location
from tests.unit.loans_output import RUN_ID, LoansOutput


@pytest.fixture(scope="module")
def loans(tmp_path_factory: pytest.TempPathFactory) -> LoansOutput:
    return LoansOutput(tmp_path_factory.mktemp("loans")).write()


@pytest.fixture
def copied(loans: LoansOutput, tmp_path: Path) -> Path:
    """The output in a place of its own, to be changed."""
    return Path(shutil.copytree(loans.output, tmp_path / "out"))


def found(output: Path, *keys: str, partition: str | None = None, bundle: Path | None = None) -> dict[str, Any]:
    row = find_row(Location.of(output), list(keys), partition, Location.of(bundle) if bundle else None)
    json.dumps(row, allow_nan=False)
    return row


def printed(row: dict[str, Any], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False)
    show_row(console, row)
    return console.file.getvalue()  # type: ignore[attr-defined]


def a_row(loans: LoansOutput, status: str) -> dict[str, Any]:
    return next(row for row in loans.rows if row["row_status"] == status)


def test_a_row_that_was_not_selected_is_printed_with_its_prediction_alone(loans: LoansOutput) -> None:
    row = found(loans.output, str(a_row(loans, "ok")["application_id"]))
    unknown = {"row_status": "not_selected", "cf_proba": None, "fcf_proba": None, "explanation": None, "reasons": []}
    features = [{**feature, "fcf": None, "cf": None, "changed": False} for feature in row["features"]]
    for width in (60, 120):
        text = printed({**row, **unknown, "features": features}, width)
        assert "row_status not_selected" in " ".join(text.split())
        assert "probability of the desired class" not in text


@pytest.mark.parametrize("status", ["ok", "already_desired", "no_feasible_cf"])
def test_a_row_is_told_as_it_stands_in_the_file(loans: LoansOutput, status: str) -> None:
    row = a_row(loans, status)
    told = found(loans.output, str(row["application_id"]))
    assert told["key"] == {"application_id": row["application_id"]}
    assert told["partition"] == row["ds"]
    for name in ("pred_label", "explanation", "row_status", "model_id"):
        assert told[name] == row[name]
    for name in ("pred_proba", "fcf_proba", "cf_proba"):
        assert told[name] == (None if row[name] is None else float(str(np.float32(row[name]))))
    assert told["run_id"] == RUN_ID
    assert told["reasons"] == [row[f"reason_{n}"] for n in (1, 2, 3, 4) if row[f"reason_{n}"]]
    for feature in told["features"]:
        name = feature["feature"]
        assert (feature["now"], feature["fcf"], feature["cf"]) == (row[name], row[f"fcf_{name}"], row[f"cf_{name}"])
        assert feature["changed"] == (status == "ok" and row[name] != row[f"fcf_{name}"])
    rules = {feature["feature"]: feature["rule"] for feature in told["features"]}
    assert len(rules) == 13
    assert rules["income"] == "0.., step 100"
    assert rules["gender"] == "immutable"


def test_a_rejected_row_is_found_with_its_reason(loans: LoansOutput) -> None:
    told = found(loans.output, "application_id=100")
    assert told["rejected"] is True
    assert (told["reject_reason"], told["reject_column"]) == ("null", "age")
    assert told["partition"] == "ds=2026-11-09"
    assert "not explained: null in age" in printed(told, 100)


def test_an_unknown_key_tells_how_many_partitions_were_searched(loans: LoansOutput) -> None:
    with pytest.raises(InputError, match="no row with application_id = 99999, explained or rejected, in 8 partitions"):
        found(loans.output, "99999")
    with pytest.raises(InputError, match="in partition ds=2026-11-08"):
        found(loans.output, "150", partition="ds=2026-11-08")


def test_a_key_that_cannot_be_one_is_refused(loans: LoansOutput) -> None:
    with pytest.raises(InputError, match="not a value of type int64"):
        found(loans.output, "abc")


def test_several_key_columns_find_the_row_that_has_them_all(loans: LoansOutput) -> None:
    row = a_row(loans, "ok")
    keys = [f"application_id={row['application_id']}", f"purpose={row['purpose']}"]
    assert found(loans.output, *keys)["explanation"] == row["explanation"]
    with pytest.raises(InputError, match="no row"):
        found(loans.output, keys[0], "purpose=none")


def test_a_key_in_two_partitions_shows_the_last_and_names_the_other(loans: LoansOutput, copied: Path) -> None:
    [first] = (copied / "ds=2026-11-08").glob("*.parquet")
    (copied / "ds=2026-12-01").mkdir()
    shutil.copy(first, copied / "ds=2026-12-01" / first.name)
    told = found(copied, "5")
    assert (told["partition"], told["also_in"]) == ("ds=2026-12-01", ["ds=2026-11-08"])
    assert "also in ds=2026-11-08" in printed(told, 100)
    assert found(copied, "5", partition="ds=2026-11-08")["partition"] == "ds=2026-11-08"


def test_partitions_with_other_columns_and_wider_keys_are_searched_too(copied: Path) -> None:
    [file] = (copied / "ds=2026-11-08").glob("*.parquet")
    table = pq.read_table(file, partitioning=None)
    narrow = table.column("application_id").cast(pa.int32())
    pq.write_table(table.set_column(0, "application_id", narrow).drop_columns(["explanation", "reason_1"]), file)
    told = found(copied, "5")
    assert "explanation" not in told
    assert "application_id 5" in printed(told, 100)


def test_without_the_bundle_the_row_is_shown_without_rules_and_says_so(loans: LoansOutput, copied: Path) -> None:
    manifest = copied / "_runs" / RUN_ID / "manifest.json"
    written = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**written, "bundle": str(copied / "gone")}))
    assert found(copied, "5")["rules_problem"] is None  # it is in the output's own store too
    shutil.rmtree(copied / "_models")
    with pytest.raises(InputError, match="which column is the key is not known"):
        found(copied, "5")
    told = found(copied, "application_id=5")
    assert {feature["rule"] for feature in told["features"]} == {None}
    assert f"no rules shown: the bundle {told['model_id']} is not at {copied}/gone" in " ".join(
        printed(told, 300).split()
    )
    moved = loans.output / "_models" / told["model_id"]
    assert found(copied, "5", bundle=moved)["rules_problem"] is None


def test_a_directory_without_explained_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no explained rows"):
        found(tmp_path, "5")


def test_of_a_delta_table_only_the_newest_version_is_searched(tmp_path: Path) -> None:
    loans = LoansOutput(tmp_path)
    for run_id in ("f" * 16, "0" * 16):
        loans.write(run_id, delta=True)
    assert len(list((loans.output / "ds=2026-11-08").glob("*.parquet"))) == 2
    told = found(loans.output, "5")
    assert (told["run_id"], told["also_in"]) == ("0" * 16, [])


def test_a_row_is_found_in_a_bucket(loans: LoansOutput, bucket: Location) -> None:
    output = bucket / "out #1"
    pafs.copy_files(str(loans.output), output.path, destination_filesystem=output.fs)
    told = find_row(output, ["5"], None, None)
    assert told["partition"] == "ds=2026-11-08"
    assert told["rules_problem"] is None
    assert find_row(output, ["100"], None, None)["reject_reason"] == "null"


@pytest.mark.parametrize("width", [40, 80, 140])
def test_every_width_tells_every_change_in_full(loans: LoansOutput, width: int) -> None:
    told = found(loans.output, str(a_row(loans, "ok")["application_id"]))
    text = printed(told, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert told["explanation"] in words
    for feature in told["features"]:
        assert feature["feature"] in text
        if feature["changed"]:
            now, to = (f"{v:,}" if isinstance(v, int | float) else v for v in (feature["now"], feature["fcf"]))
            arrow = " -> " if width < 80 else " "
            assert f"* {feature['feature']}{':' if width < 80 else ''} {now}{arrow}{to}" in words


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_a_narrow_number_is_told_as_it_was_written(tmp_path: Path, kind: pa.DataType) -> None:
    table = pa.table({"id": [1], "x": pa.array([2.6]).cast(kind), "cf_x": pa.array([0.1]).cast(kind)})
    pq.write_table(table, tmp_path / "part.parquet")
    source = open_source(str(tmp_path))
    assert _row(source.root, source.files[0], {"id": pa.scalar(1)}) == {"id": 1, "x": 2.6, "cf_x": 0.1}


def test_rules_are_told_in_a_few_words() -> None:
    number = Continuous("x", "double", 0.0, 9.0, Grid(5, 2), "decrease", (None, 1_000_000.5))
    assert rule_text(number) == "only down, ..1,000,000.5, step 0.05"
    ends = (float(np.float32(0.1)), float(np.float32(9.7)))
    assert rule_text(Continuous("x", "float", 0.0, 9.0, None, bounds=ends)) == "0.1..9.7"
    listed = Continuous("x", "float", 0.0, 9.0, None, allowed=(float(np.float32(0.7)),))
    assert rule_text(listed) == "to 0.7 only"
    assert rule_text(Categorical("c", "string", ("b", "a"), True, "increase")) == "only up, b < a"
    assert rule_text(Categorical("c", "string", ("a", "b"))) == ""
    assert rule_text(Continuous("x", "double", 0.0, 9.0, None, immutable=True)) == "immutable"
    limited = Continuous("x", "int64", 0.0, 9.0, Grid(1, 0), max_change=10.0, max_change_percent=12.5, tolerance=2.0)
    assert rule_text(limited) == "by 10 at most, by 12.5 % at most, by 2 at least, step 1"
    assert rule_text(Continuous("x", "double", 0.0, 9.0, Grid(1, 0), allowed=(0.0, 2.5))) == "to 0 or 2.5 only"
    jobs = Categorical("c", "string", ("a", "b", "d"), allowed=("a", "b"), forbidden=(("a", "b"), ("d", "a")))
    assert rule_text(jobs) == "to a or b only, not a -> b, d -> a"
    many = Categorical("c", "string", tuple("abcdefgh"), allowed=tuple("abcdefgh"))
    assert rule_text(many) == "to a or b or c or d or e or f and 2 more only"


def test_the_code_of_a_feature_names_every_kind_of_rule_it_has() -> None:
    number = Continuous("x", "double", 0.0, 9.0, Grid(5, 2), "decrease", (None, 7.0), max_change=1.0, tolerance=0.5)
    relations = [Relation("at_most", "a", "x"), Relation("needs", "x", "c")]
    assert rule_code(number) == "only_decrease+bounds+max_change+tolerance"
    assert rule_code(Continuous("x", "double", 0.0, 9.0, None), relations) == "relation"
    assert (
        rule_code(Continuous("x", "double", 0.0, 9.0, None, max_change_percent=5.0), relations) == "max_change+relation"
    )
    assert rule_code(Continuous("x", "double", 0.0, 9.0, None, immutable=True), relations) == "immutable"
    assert rule_code(Continuous("y", "double", 0.0, 9.0, Grid(1, 0)), relations) == "step"
    jobs = Categorical("c", "string", ("a", "b"), True, "increase", allowed=("b",), forbidden=(("a", "b"),))
    assert rule_code(jobs) == "only_increase+allowed+transitions"


def test_further_ways_are_told_after_the_first(loans: LoansOutput, copied: Path) -> None:
    row = a_row(loans, "ok")
    file = next((copied / row["ds"]).glob("*.parquet"))
    table = pq.read_table(file, partitioning=None)
    second = {f"fcf2_{name}": table.column(name) for name in table.column_names if f"fcf_{name}" in table.column_names}
    second["fcf2_income"] = pc.add(table.column("income"), 100)
    for name, value in {"valid": True, "proba": 0.75, "num_changed": 1, "distance": 0.125}.items():
        second[f"fcf2_{name}"] = pa.chunked_array([[value] * len(table)])
    for place, (name, column) in enumerate(second.items(), table.column_names.index("fcf_distance") + 1):
        table = table.add_column(place, name, column)
    pq.write_table(table, file)
    told = found(copied, str(row["application_id"]))
    assert told["options"] == [{"changes": {"income": row["income"] + 100}, "proba": 0.75, "distance": 0.125}]
    for width in (60, 120):
        text = " ".join(printed(told, width).split())
        assert f"or: income {row['income']:,} -> {row['income'] + 100:,} (75% then)" in text


def test_codes_of_categories_are_no_numbers(loans: LoansOutput) -> None:
    row = found(loans.output, str(a_row(loans, "ok")["application_id"]))
    places = {"feature": "zip_code", "kind": "categorical", "rule": None}
    moved = [{**places, "now": 94103, "fcf": 94110, "cf": 94110, "changed": True}]
    for width in (60, 120):
        text = printed({**row, "features": moved}, width)
        assert "94103" in text
        assert "94110" in text
