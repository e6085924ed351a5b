"""Which partitions a night takes, and when a training is due."""

from typing import Any

import pytest

from ray_cfnet.config import Config
from ray_cfnet.due import Choice, Standing, drift, due_partitions, pooled, retrain_reasons, standings
from ray_cfnet.errors import InputError
from tests.unit.helpers import CONFIG

DAYS = [f"ds=2026-11-{day}" for day in (12, 13, 14, 15)]


def file_of(partition: str, modified: int = 1) -> dict[str, Any]:
    return {"path": f"{partition}/a.parquet", "size": 10, "modified_ns": modified}


def fingerprint(partition: str, modified: int = 1, root: str = "/table") -> tuple[str, frozenset]:
    return root, frozenset({(f"{partition}/a.parquet", 10, modified)})


def manifest(run_id: str, *partitions: str, rejected: int = 0, state: str = "committed") -> dict[str, Any]:
    return {
        "run_id": run_id,
        "model_id": "m",
        "input": "/table",
        "inputs": [file_of(partition) for partition in partitions],
        "partitions": {
            partition: {"state": state, "rows_in": 100, "rows_rejected": rejected, "predicted": {"yes": 60, "no": 40}}
            for partition in partitions
        },
        "units": [
            {"partition": partition, "files": [f"{partition}/part-0-{run_id}.parquet", f"_rejects/{partition}/x"]}
            for partition in partitions
        ],
    }


def configured(**nightly: Any) -> Config:
    return CONFIG.model_validate({**CONFIG.model_dump(mode="json"), "nightly": nightly})


NOW = {partition: fingerprint(partition) for partition in DAYS}
DONE = standings([manifest("r1", *DAYS)])
PRESENT = {f"{partition}/part-0-r1.parquet" for partition in DAYS}


def due(now: dict = NOW, standing: dict = DONE, present: set = PRESENT, config: Config = CONFIG, **choice: Any) -> dict:
    return due_partitions(now, standing, present, Choice(**choice), config)


def test_on_the_first_night_all_is_due_the_newest_first() -> None:
    assert due(standing={}) == dict.fromkeys(reversed(DAYS), "new")
    assert list(due(standing={})) == DAYS[::-1]


def test_nothing_is_due_after_a_good_run() -> None:
    assert due() == {}


def test_new_and_changed_partitions_are_due() -> None:
    now = {**NOW, DAYS[1]: fingerprint(DAYS[1], modified=2), "ds=2026-11-16": fingerprint("ds=2026-11-16")}
    assert due(now) == {"ds=2026-11-16": "new", DAYS[1]: "changed"}


def test_a_file_more_or_less_is_a_change() -> None:
    root, files = NOW[DAYS[0]]
    more = files | {(f"{DAYS[0]}/b.parquet", 1, 1)}
    assert due({**NOW, DAYS[0]: (root, more)}) == {DAYS[0]: "changed"}


def test_the_same_files_of_another_table_are_a_change() -> None:
    assert due({DAYS[0]: fingerprint(DAYS[0], root="/other")}) == {DAYS[0]: "changed"}


def test_output_that_somebody_removed_is_made_again() -> None:
    assert due(present=PRESENT - {f"{DAYS[2]}/part-0-r1.parquet"}) == {DAYS[2]: "its output is gone"}


def test_a_run_with_too_many_rejects_was_no_good_one() -> None:
    standing = standings([manifest("r1", *DAYS), manifest("r2", DAYS[0], rejected=6)])
    assert due(standing=standing, present=PRESENT | {f"{DAYS[0]}/part-0-r2.parquet"}) == {DAYS[0]: "too many rejects"}
    standing = standings([manifest("r1", *DAYS, rejected=5)])
    assert due(standing=standing) == {}


def test_unfinished_partitions_and_runs_do_not_count() -> None:
    runs = [manifest("r1", DAYS[0], state="unfinished"), {"run_id": "r2", "state": "unfinished"}]
    assert standings(runs) == {}


def test_the_newest_run_of_a_partition_counts() -> None:
    newer = manifest("r2", DAYS[3])
    newer["inputs"] = [file_of(DAYS[3], modified=7)]
    standing = standings([manifest("r1", *DAYS), newer])
    assert (standing[DAYS[3]].run_id, standing[DAYS[2]].run_id) == ("r2", "r1")
    assert due(standing=standing, present=PRESENT | {f"{DAYS[3]}/part-0-r2.parquet"}) == {DAYS[3]: "changed"}


def test_since_and_until_include_their_ends_and_re_explain_takes_all_between() -> None:
    assert list(due(standing={}, since="2026-11-13", until="2026-11-14")) == [DAYS[2], DAYS[1]]
    assert due(since="2026-11-14", re_explain=True) == {DAYS[3]: "asked for", DAYS[2]: "asked for"}


def test_another_partition_column_can_be_the_one_that_counts() -> None:
    parts = ["region=north/day=2", "region=south/day=1"]
    now = {partition: fingerprint(partition) for partition in parts}
    config = configured(partition="day")
    assert list(due(now, {}, set(), config, until="1")) == ["region=south/day=1"]
    with pytest.raises(InputError, match="has no ds"):
        due(now, {}, set(), until="1")


@pytest.mark.parametrize(
    ("oldest_first", "key"),
    [
        (["ds=2026-9-30", "ds=2026-11-9", "ds=2026-11-10"], "ds"),
        (["hour=0", "hour=9", "hour=10"], "hour"),
        (["ds=1/hour=9", "ds=1/hour=10", "ds=2/hour=1"], "ds"),
        (["at=2026-11-15 09%3A59", "at=2026-11-15 10%3A00"], "at"),
    ],
)
def test_numbers_in_partitions_are_compared_as_numbers(oldest_first: list[str], key: str) -> None:
    now, config = {name: fingerprint(name) for name in oldest_first}, configured(partition=key)
    assert list(due(now, {}, set(), config)) == oldest_first[::-1]
    first, last = (oldest_first[end].split("/")[0].partition("=")[2] for end in (0, -1))
    assert set(due(now, {}, set(), config, since=first, until=last)) == set(oldest_first)


def test_since_and_until_may_be_written_otherwise_than_the_partitions() -> None:
    now = {name: fingerprint(name) for name in ("ds=2026-11-8", "ds=2026-11-9", "ds=2026-11-10", "ds=2026-11-11")}
    assert list(due(now, {}, set(), since="2026-11-09", until="2026-11-10")) == ["ds=2026-11-10", "ds=2026-11-9"]
    config = configured(partition="at")
    hours = {name: fingerprint(name) for name in ("at=2026-11-15 09%3A00", "at=2026-11-15 10%3A00")}
    assert list(due(hours, {}, set(), config, until="2026-11-15 09:00")) == ["at=2026-11-15 09%3A00"]


def part(**predicted: int) -> Standing:
    return Standing("r", "m", ("/table", frozenset()), frozenset(), 0.0, predicted)


def test_drift_is_the_share_of_predictions_that_moved() -> None:
    newest = [part(yes=90, no=10), part(yes=60, no=40), part(yes=120, no=80)]
    assert drift(newest, 1) == pytest.approx(0.3)
    assert drift(newest, 2) == pytest.approx(0.15)
    assert drift([part(a=1), part(b=1)], 1) == 1.0


def test_drift_needs_something_to_compare_with() -> None:
    assert drift([part(yes=1)], 1) is None
    assert drift([part(yes=1), part()], 1) is None
    assert drift([], 7) is None


def test_quality_is_weighted_by_labels() -> None:
    evaluations = [
        {"labelled": 300, "figures": {"accuracy": 0.9, "violations": 1, "validity": None}},
        {"labelled": 100, "figures": {"accuracy": 0.5, "violations": 2, "validity": 0.7}},
    ]
    assert pooled(evaluations) == ({"accuracy": 0.8, "violations": 3, "validity": 0.7}, 400)
    assert pooled([]) == ({}, 0)


GOOD = {"accuracy": 0.9, "validity": 1.0, "proximity": 0.1, "fcf_validity": 1.0, "fcf_proximity": 0.1, "violations": 0}


def test_no_training_is_due_while_all_limits_hold() -> None:
    config = configured(max_model_age_days=30, max_drift=0.2)
    assert retrain_reasons(30.0, 0.2, GOOD, 5000, config) == []
    assert retrain_reasons(0.0, None, {}, 0, config) == []


def test_each_broken_limit_is_a_reason() -> None:
    written = CONFIG.model_dump(mode="json")
    limits = {"promotion": {"min_accuracy": 0.95}, "nightly": {"max_model_age_days": 30, "max_drift": 0.2}}
    config = Config.model_validate({**written, **limits})
    age, moved, quality = retrain_reasons(30.5, 0.25, GOOD, 1000, config)
    assert age == "age: 30.5 days, nightly.max_model_age_days is 30"
    assert moved == "drift: 25.0% of the predictions moved, nightly.max_drift is 0.2"
    assert quality == "quality on 1,000 labelled rows: promotion.min_accuracy: accuracy 0.9 is below 0.95"
    assert len(retrain_reasons(30.5, 0.25, GOOD, 999, config)) == 2, "too few labels prove nothing"


def test_a_limit_of_null_is_none() -> None:
    assert retrain_reasons(1e6, 1.0, {}, 0, configured(max_model_age_days=None, max_drift=None)) == []


def test_a_partition_with_too_many_rejects_does_not_keep_the_others_waiting() -> None:
    standing = standings([manifest("r1", *DAYS), manifest("r2", DAYS[2], rejected=6)])
    present = PRESENT - {f"{DAYS[0]}/part-0-r1.parquet"} | {f"{DAYS[2]}/part-0-r2.parquet"}
    assert list(due(standing=standing, present=present)) == [DAYS[0], DAYS[2]]
