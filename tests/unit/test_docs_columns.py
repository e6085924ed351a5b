"""docs/columns.md is true: its table is the schema, its SQL runs and answers what it says."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from ray_cfnet.config import Config
from ray_cfnet.config.words import Words
from tests.unit.loans_output import LoansOutput

DOCS = (Path(__file__).parents[2] / "docs" / "columns.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", DOCS, flags=re.DOTALL)


@pytest.fixture(scope="module")
def loans(tmp_path_factory: pytest.TempPathFactory) -> LoansOutput:
    return LoansOutput(tmp_path_factory.mktemp("loans")).write()


def answer(loans: LoansOutput, number: int) -> list[tuple]:
    return duckdb.sql(QUERIES[number].replace("out/loans", str(loans.output))).fetchall()


def test_every_column_is_described_in_its_order(loans: LoansOutput) -> None:
    described = DOCS.split("\n## ")[0]
    names = re.findall(r"^\| (`.*?) \|", described, flags=re.MULTILINE)
    features = list(loans.config.table.features)
    expected: list[str] = []
    for name in names:
        plain = name.replace("`", "")
        if "<feature>" in plain:
            expected += [plain.replace("<feature>", feature) for feature in features]
        elif "..." in plain:
            expected += [f"reason_{number}" for number in (1, 2, 3, 4)]
        else:
            expected.append(plain)
    written = pq.read_schema(next(loans.output.glob("ds=*/*.parquet"))).names
    assert expected == written[written.index("pred_label") :]


def test_nulls_are_where_the_table_says(loans: LoansOutput) -> None:
    nulls = {
        row[1]: row[3] for row in (line.split("|") for line in DOCS.split("\n## ")[0].splitlines()) if len(row) > 4
    }
    for row in loans.rows:
        for name, where in (("pred_label", "never"), ("cf_valid", "`not_selected`"), ("explanation", "`not_selected`")):
            assert nulls[f" `{name}` "].strip() == where
            assert row[name] is not None
        for name in ("fcf_proba", "fcf_num_changed", "fcf_distance"):
            assert nulls[f" `{name}` "].strip() == "unless `ok`"
            assert (row[name] is None) == (row["row_status"] != "ok")
        assert (row["reason_1"] is None) == (row["row_status"] == "already_desired")
        assert (row["fcf_valid"] is None) == (row["row_status"] == "already_desired")


def test_the_table_of_texts_names_every_key_and_its_default() -> None:
    table = DOCS.split("| key of `words` |")[1].split("\n\n")[0]
    keys = {field.alias or name: field.default for name, field in Words.model_fields.items()}
    for key, default in keys.items():
        [line] = [line for line in table.splitlines() if f"`{key}`" in line.split("|")[1]]
        if key in ("to_reach", "already", "none", "none_because", "change"):
            assert line.split("|")[3].strip() == default
    assert "words" in Config.model_fields


def test_the_longest_ways(loans: LoansOutput) -> None:
    told = [row for row in loans.rows if row["row_status"] == "ok"]
    told.sort(key=lambda row: (-row["fcf_distance"], row["application_id"]))
    assert [(row[0], row[-1]) for row in answer(loans, 0)] == [
        (row["application_id"], row["explanation"]) for row in told[:10]
    ]


def test_the_most_common_first_reasons_of_each_region(loans: LoansOutput) -> None:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in loans.rows:
        if row["row_status"] == "ok":
            counts[row["region"]][row["reason_1"]] += 1
    expected = [
        (region, reason, number, round(number / counts[region].total(), 3))
        for region in sorted(counts)
        for reason, number in sorted(counts[region].items(), key=lambda item: (-item[1], item[0]))[:3]
    ]
    assert answer(loans, 1) == expected
    assert len(expected) > 4


def test_the_share_without_a_way_of_each_day(loans: LoansOutput) -> None:
    days: dict[str, Counter[str]] = defaultdict(Counter)
    for row in loans.rows:
        days[row["ds"].removeprefix("ds=")][row["row_status"]] += 1
    answers = {str(ds): tuple(rest) for ds, *rest in answer(loans, 2)}
    assert len(answers) == 8
    for ds, count in days.items():
        needed = count["ok"] + count["no_feasible_cf"]
        assert answers[ds] == (needed, count["no_feasible_cf"], round(count["no_feasible_cf"] / needed, 4))


def test_there_are_three_questions() -> None:
    assert len(QUERIES) == 3
