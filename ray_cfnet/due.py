"""What a night has to do, and whether a training is due: decided from manifests and figures, nothing is read here."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ray_cfnet import config
from ray_cfnet.cluster.ledger import REJECTS
from ray_cfnet.errors import InputError
from ray_cfnet.model.gate import Figures, failures
from ray_cfnet.tables.plan import Source

Fingerprint = tuple[str, frozenset[tuple[str, int, int]]]
"""A table's address, and path, size and time of change of the files that make a partition."""


@dataclass(frozen=True)
class Choice:
    """Which partitions a night may take. `since` and `until` are values of `nightly.partition`, both included."""

    since: str | None = None
    until: str | None = None
    max_partitions: int | None = None
    re_explain: bool = False


@dataclass(frozen=True)
class Standing:
    """What the output holds of a partition: the newest run that committed it."""

    run_id: str
    model_id: str
    read: Fingerprint
    written: frozenset[str]
    reject_share: float
    predicted: dict[str, int]


def fingerprints(source: Source) -> dict[str, Fingerprint]:
    """Each partition of a table as it is now."""
    files: dict[str, set[tuple[str, int, int]]] = {partition: set() for partition in source.partitions}
    for file in source.all_files:
        files[file.partition].add((file.found.path, file.found.size, file.found.modified_ns))
    return {partition: (str(source.root), frozenset(found)) for partition, found in files.items()}


def standings(runs: Iterable[dict[str, Any]]) -> dict[str, Standing]:
    """Each committed partition as its newest run left it. `runs` are manifests, oldest first."""
    found = {}
    for run in runs:
        read: dict[str, set[tuple[str, int, int]]] = defaultdict(set)
        for file in run.get("inputs", []):
            read[file["path"].rpartition("/")[0]].add((file["path"], file["size"], file["modified_ns"]))
        written: dict[str, set[str]] = defaultdict(set)
        for unit in run.get("units", []):
            written[unit["partition"]].update(name for name in unit["files"] if not name.startswith(f"{REJECTS}/"))
        for partition, part in run.get("partitions", {}).items():
            if part["state"] != "committed":
                continue
            found[partition] = Standing(
                run["run_id"],
                run["model_id"],
                (run["input"], frozenset(read[partition])),
                frozenset(written[partition]),
                part["rows_rejected"] / max(part["rows_in"], 1),
                part.get("predicted", {}),
            )
    return found


def due_partitions(
    now: Mapping[str, Fingerprint],
    standing: Mapping[str, Standing],
    present: set[str],
    choice: Choice,
    whole: config.Config,
) -> dict[str, str]:
    """The partitions to explain and why, newest first. `present` are the output's files.

    A run with too many rejects was no good one: its partition stays due until the data or the limit is mended, but
    after the others, or it would take every night's time for itself.
    """
    due = {}
    for partition in newest_first(now, whole.nightly.partition):
        if not is_within(partition, choice, whole.nightly.partition):
            continue
        before = standing.get(partition)
        if before is None:
            due[partition] = "new"
        elif before.read != now[partition]:
            due[partition] = "changed"
        elif not present.issuperset(before.written):
            due[partition] = "its output is gone"
        elif before.reject_share > whole.explain.max_reject_fraction:
            due[partition] = "too many rejects"
        elif choice.re_explain:
            due[partition] = "asked for"
    return dict(sorted(due.items(), key=lambda item: item[1] == "too many rejects"))


def newest_first(partitions: Iterable[str], key: str) -> list[str]:
    return sorted(partitions, key=lambda name: (_order(_value(name, key) or ""), _order(name), name), reverse=True)


def _order(value: str) -> tuple[str | int, ...]:
    """Text with its numbers as numbers: writers leave zeros out, and as text hour 9 comes after hour 10.

    Paths have some characters as %3A and the like; people who type a time do not.
    """
    parts = re.split("([0-9]+)", unquote(value))  # text and digits take turns, so like meets like
    return tuple(int(part) if number % 2 else part for number, part in enumerate(parts))


def _value(partition: str, key: str) -> str | None:
    return dict(part.partition("=")[::2] for part in partition.split("/")).get(key)


def is_within(partition: str, choice: Choice, key: str) -> bool:
    if choice.since is None and choice.until is None:
        return True
    value = _value(partition, key)
    if value is None:
        raise InputError(
            f"partition {partition or '(whole table)'} has no {key}, which --since and --until speak of",
            "set nightly.partition to the column by which the table is partitioned",
        )
    after = choice.since is None or _order(choice.since) <= _order(value)
    return after and (choice.until is None or _order(value) <= _order(choice.until))


def drift(newest: list[Standing], window: int) -> float | None:
    """The share of predictions that moved to other classes between the first `window` and all later ones.

    None where nothing can be compared.
    """
    recent, earlier = (_shares(part) for part in (newest[:window], newest[window:]))
    if not recent or not earlier:
        return None
    return round(sum(abs(recent.get(name, 0) - earlier.get(name, 0)) for name in {*recent, *earlier}) / 2, 6)


def _shares(standing: list[Standing]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for part in standing:
        counts.update(part.predicted)
    return {name: count / counts.total() for name, count in counts.items()} if counts.total() else {}


def pooled(evaluations: list[dict[str, Any]]) -> tuple[Figures, int]:
    """Figures of several partitions as one, weighted by their labelled rows, and how many those are."""
    labelled = sum(evaluation["labelled"] for evaluation in evaluations)
    figures: Figures = {}
    for name in {name for evaluation in evaluations for name in evaluation["figures"]}:
        known = [
            (evaluation["figures"][name], evaluation["labelled"])
            for evaluation in evaluations
            if evaluation["figures"][name] is not None
        ]
        if name == "violations":
            figures[name] = sum(value for value, _ in known)
        else:
            weight = sum(rows for _, rows in known)
            figures[name] = round(sum(value * rows for value, rows in known) / weight, 6) if weight else None
    return figures, labelled


def retrain_reasons(
    age_days: float, moved: float | None, quality: Figures, labelled: int, whole: config.Config
) -> list[str]:
    """Why a new model should be trained; none while age, drift and quality keep their limits."""
    settings, reasons = whole.nightly, []
    if settings.max_model_age_days is not None and age_days > settings.max_model_age_days:
        reasons.append(f"age: {age_days:.1f} days, nightly.max_model_age_days is {settings.max_model_age_days:g}")
    if settings.max_drift is not None and moved is not None and moved > settings.max_drift:
        reasons.append(f"drift: {moved:.1%} of the predictions moved, nightly.max_drift is {settings.max_drift:g}")
    if labelled >= settings.min_labelled_rows:
        failed = failures(quality, None, whole.promotion)
        reasons += [f"quality on {labelled:,} labelled rows: {failure.message}" for failure in failed]
    return reasons
