"""One row of an output, with all that was said about it and the rules it had to keep. Knows nothing of Ray."""

import posixpath
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ray_cfnet.cluster.ledger import REJECTS, RunFiles
from ray_cfnet.errors import InputError
from ray_cfnet.explain.columns import REASONS, REJECT_COLUMNS, options_in
from ray_cfnet.model.bundle import verified_files
from ray_cfnet.model.store import MODELS
from ray_cfnet.tables.plan import Source, SourceFile, open_source
from ray_cfnet.tables.rulewords import rule_text
from ray_cfnet.tables.schema import TableSchema, value_type
from ray_cfnet.tables.storage import Location

_RUN_OF_FILE = re.compile(r"-([0-9a-f]{16})\.parquet$")
_MOST_PLACES = 100
_FROM_THE_ROW = ("pred_label", "pred_proba", "cf_valid", "cf_proba", "fcf_valid", "fcf_proba", "fcf_num_changed")
_AND_ITS_ORIGIN = ("fcf_distance", "explanation", "row_status", "model_id", "run_id")


def find_row(output: Location, keys: list[str], partition: str | None, bundle: Location | None) -> dict[str, Any]:
    """The row of a key, explained or rejected, as plain data; of several partitions with such a row the last one.

    `keys` are values, or name=value. The rules come from the bundle, which is looked for where the run's manifest says
    and in the output's own model store; `rules` is the problem when it is not there. Raises InputError for a key that
    is nowhere, cannot be one, or has no name.
    """
    tables = [table for table in (_explained(output), _rejected(output)) if table is not None]
    if not tables:
        raise InputError(f"{output}: no explained rows in it", "name the output directory of ray-cfnet explain")
    newest = tables[0].files[-1]
    wanted = _named(keys, _Rules.of_run(output, _run_id(newest), bundle), newest.schema)
    searched: set[str] = set()
    for table in tables:
        within = [file for file in table.files if partition is None or _is_in(file, partition)]
        searched |= {file.partition for file in within}
        places = _places(table.root, within, wanted)
        if places:
            found = {"output": str(output), "key": {name: _plain(value.as_py()) for name, value in wanted.items()}}
            others = [file.partition for file in places[:-1]]
            row = _row(table.root, places[-1], wanted)
            rules = _Rules.of_run(output, _run_id(places[-1]), bundle)
            return {**found, "partition": places[-1].partition, "also_in": others, **_told(row, rules)}
    said = ", ".join(f"{name} = {value}" for name, value in wanted.items())
    where = f"partition {partition}" if partition is not None else f"{len(searched)} partitions"
    raise InputError(
        f"{output}: no row with {said}, explained or rejected, in {where}",
        "check the key; ray-cfnet runs OUTPUT --show ID lists the partitions of a run",
    )


def _explained(output: Location) -> Source | None:
    if not any(_RUN_OF_FILE.search(file.path) for file in output.files()):
        return None
    return open_source(str(output))


def _rejected(output: Location) -> Source | None:
    place = output / REJECTS
    return open_source(str(place)) if place.files() else None


def _run_id(file: SourceFile) -> str:
    named = _RUN_OF_FILE.search(file.found.path)
    return named[1] if named else ""


def _is_in(file: SourceFile, partition: str) -> bool:
    return (file.partition + "/").startswith(partition.strip("/") + "/")


def _named(keys: list[str], rules: "_Rules", columns: pa.Schema) -> dict[str, pa.Scalar]:
    """Key column -> the value to look for, of the column's type."""
    free = list(rules.schema.keys) if rules.schema else []
    wanted: dict[str, str] = {}
    for key in keys:
        name, equals, value = key.partition("=")
        if equals and name in columns.names:
            wanted[name] = value
        else:
            left = [name for name in free if name not in wanted]
            if len(left) != 1:
                known = f"the key columns are {', '.join(free)}" if free else "which column is the key is not known"
                raise InputError(f"--key {key}: {known}", "pass --key name=value for each of them")
            wanted[left[0]] = key
    typed = {}
    for name, value in wanted.items():
        kind = value_type(columns.field(name).type)
        try:
            typed[name] = pa.scalar(value).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise InputError(f"--key {name}={value}: not a value of type {kind}", f"{name} is {kind}") from None
    return typed


def _filter(wanted: dict[str, pa.Scalar]) -> pc.Expression:
    expression = pc.scalar(True)
    for name, value in wanted.items():
        expression &= pc.field(name) == value
    return expression


def _places(root: Location, files: list[SourceFile], wanted: dict[str, pa.Scalar]) -> list[SourceFile]:
    """The files with such a row, in the order of their paths. Looks at key columns and footers only."""
    by_path = {posixpath.join(root.path, file.found.path): file for file in files}
    if not by_path:
        return []
    columns = pa.schema([(name, value.type) for name, value in wanted.items()])
    table = ds.dataset(list(by_path), schema=columns, format="parquet", filesystem=root.fs)
    found = table.scanner(columns=["__filename"], filter=_filter(wanted), batch_readahead=2, fragment_readahead=4).head(
        _MOST_PLACES
    )
    return [by_path[path] for path in sorted(set(found.column(0).to_pylist()))]


def _row(root: Location, file: SourceFile, wanted: dict[str, pa.Scalar]) -> dict[str, Any]:
    columns = pa.schema([column.with_type(value_type(column.type)) for column in file.schema])
    path = posixpath.join(root.path, file.found.path)
    table = ds.dataset(path, schema=columns, format="parquet", filesystem=root.fs)
    row = table.scanner(filter=_filter(wanted), batch_readahead=1).head(1)
    return {name: _as_written(row.column(name)[0]) for name in row.column_names}


def _as_written(value: pa.Scalar) -> Any:
    """A narrow 0.1 is 0.1, and not the double that is nearest to what it holds."""
    plain = value.as_py()
    if isinstance(plain, float) and value.type in (pa.float32(), pa.float16()):
        return float(str(value.type.to_pandas_dtype()(plain)))
    return plain


@dataclass(frozen=True)
class _Rules:
    """The schema of a run's bundle, or why it is not there."""

    schema: TableSchema | None
    problem: str | None = None

    @classmethod
    def of_run(cls, output: Location, run_id: str, given: Location | None) -> "_Rules":
        manifest = RunFiles(output, run_id).read_manifest() if run_id else None
        if manifest is None:
            return cls(None, f"run {run_id} has no manifest")
        model_id = manifest["model_id"]
        named = manifest.get("bundle")
        places = [given] if given else [*([Location.of(named)] if named else []), output / MODELS / model_id]
        for place in places:
            try:
                files, found = verified_files(place)
                if found == model_id:
                    return cls(TableSchema.from_json(files["schema.json"].decode()))
            except (InputError, OSError, ValueError, KeyError):
                continue
        looked = " or ".join(str(place) for place in dict.fromkeys(places))
        return cls(None, f"the bundle {model_id} is not at {looked}")


def _told(row: dict[str, Any], rules: _Rules) -> dict[str, Any]:
    declared = {feature.name: feature for feature in rules.schema.features} if rules.schema else {}
    target = rules.schema.target.name if rules.schema else None
    rejected = "reject_reason" in row
    numbers = {feature.name for feature in rules.schema.continuous} if rules.schema else set()
    names = [name for name in row if f"cf_{name}" in row and f"fcf_{name}" in row] or list(declared)
    features = []
    for name in names:
        now, to = _plain(row.get(name)), _plain(row.get(f"fcf_{name}"))
        rule = rule_text(declared[name]) if name in declared else None
        kind = None if name not in declared else "continuous" if name in numbers else "categorical"
        told = {"feature": name, "kind": kind, "now": now, "rule": rule}
        if not rejected:
            told |= {"fcf": to, "cf": _plain(row[f"cf_{name}"]), "changed": to is not None and to != now}
        features.append(told)
    between = [str(rule) for rule in rules.schema.rules] if rules.schema else []
    told_of_rules = {"rules": between, "rules_problem": rules.problem}
    result = {"rejected": rejected, "target": target, "features": features, **told_of_rules}
    if rejected:
        return {**result, **{name: row[name] for name in REJECT_COLUMNS}}
    result |= {name: _plain(row[name]) for name in (*_FROM_THE_ROW, *_AND_ITS_ORIGIN) if name in row}
    result["options"] = _other_ways(row, features)
    return {**result, "reasons": [row[name] for name in REASONS if row.get(name) is not None]}


def _other_ways(row: dict[str, Any], features: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `explain.num_options` found beside the first feasible counterfactual, the nearest first."""
    ways = []
    for prefix in options_in(list(row))[1:]:
        if row[f"{prefix}valid"]:
            to = {told["feature"]: _plain(row[f"{prefix}{told['feature']}"]) for told in features}
            changes = {told["feature"]: to[told["feature"]] for told in features if to[told["feature"]] != told["now"]}
            ways.append({"changes": changes, "proba": row[f"{prefix}proba"], "distance": row[f"{prefix}distance"]})
    return ways


def _plain(value: Any) -> Any:
    """As JSON can tell it."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
