"""The output contract: names, types and order of the columns that are added to a table. One place.

docs/columns.md tells what each means.
"""

import base64
import re
from collections.abc import Iterable, Iterator

import pyarrow as pa

from ray_cfnet.errors import InputError
from ray_cfnet.tables.schema import Continuous, TableSchema, value_type

_COUNTED = re.compile(r"fcf\d*_num_changed")
_PREFIX = re.compile(r"^f?cf\d*_")
REJECT_COLUMNS = ("reject_reason", "reject_column")
REASONS = ("reason_1", "reason_2", "reason_3", "reason_4")
ROW_STATUS = ("ok", "already_desired", "no_feasible_cf", "not_selected")

_MEANINGS = {
    "pred_label": "the predicted class",
    "pred_proba": "the model's probability of pred_label",
    "cf_valid": "is the generated counterfactual (cf_) predicted as the desired class?",
    "cf_proba": "probability of the desired class at the generated counterfactual (cf_)",
    **{
        name: f"the change of fcf_ that matters most, number {number}; of no_feasible_cf rows what is in the way"
        for number, name in enumerate(REASONS, start=1)
    },
    "explanation": "the row's explanation as a sentence",
    "row_status": "ok: fcf_ is there and valid; already_desired: nothing to change; no_feasible_cf: none was found; "
    "not_selected: a prediction alone",
    "model_id": "hash of the model bundle",
    "run_id": "hash of the run's plan: inputs, model, settings, columns",
    "reject_reason": "why the row could not be scored: null, nan, infinite, unseen_category, out_of_domain or "
    "breaks_rule",
    "reject_column": "the first feature at fault",
}
_OF_A_WAY = {
    "valid": "is {way} predicted as the desired class? null: already_desired or not_selected",
    "proba": "probability of the desired class at {way}; null {unless}",
    "num_changed": "how many features differ between the row and {way}; null {unless}",
    "distance": "distance between the row and {way}, 0 for none; null {unless}",
}


def _commented(field: pa.Field, meaning: str) -> pa.Field:
    """With its meaning as a comment, which Arrow and Delta readers show and `ray-cfnet sql` passes on."""
    return field.with_metadata({"comment": meaning})


def added_fields(schema: TableSchema, columns: pa.Schema, num_options: int = 1) -> list[pa.Field]:
    """The added columns, in order; counterfactual columns have the type of their feature in the input."""
    types = {name: value_type(columns.field(name).type) for name in schema.feature_names}
    # A predicted probability is told as a class.
    label_type = pa.int64() if schema.target.is_probability else pa.type_for_alias(schema.target.arrow_type)
    fields = [
        pa.field("pred_label", label_type),
        pa.field("pred_proba", pa.float32()),
        *(
            _commented(
                pa.field(f"cf_{name}", types[name]),
                f"{name} in the generated counterfactual, before any rule is applied",
            )
            for name in schema.feature_names
        ),
        pa.field("cf_valid", pa.bool_()),
        pa.field("cf_proba", pa.float32()),
        *(field for prefix in option_prefixes(num_options) for field in _feasible_fields(prefix, types)),
        *(pa.field(name, pa.string()) for name in REASONS),
        pa.field("explanation", pa.string()),
        pa.field("row_status", pa.string()),
        pa.field("model_id", pa.string()),
        pa.field("run_id", pa.string()),
    ]
    return [field if field.metadata else _commented(field, _MEANINGS[field.name]) for field in fields]


def option_prefixes(num_options: int) -> list[str]:
    """What the columns of each feasible counterfactual begin with."""
    return ["fcf_", *(f"fcf{number}_" for number in range(2, num_options + 1))]


def options_in(names: list[str]) -> list[str]:
    """The same of an output with these columns."""
    added = names[names.index("pred_label") :]
    return option_prefixes(sum(bool(_COUNTED.fullmatch(name)) for name in added))


def _feasible_fields(prefix: str, types: dict[str, pa.DataType]) -> Iterator[pa.Field]:
    is_first = prefix == "fcf_"
    way = f"the feasible counterfactual ({prefix})" if is_first else f"a further feasible counterfactual ({prefix})"
    unless = "unless row_status is ok" if is_first else f"unless {prefix}valid"
    for name, arrow_type in types.items():
        meaning = f"{name} in {way}, which a person may be told; null {unless}"
        yield _commented(pa.field(f"{prefix}{name}", arrow_type), meaning)
    kinds = {"valid": pa.bool_(), "proba": pa.float32(), "num_changed": pa.int32(), "distance": pa.float32()}
    for name, arrow_type in kinds.items():
        yield _commented(pa.field(f"{prefix}{name}", arrow_type), _OF_A_WAY[name].format(way=way, unless=unless))


def output_schema(
    schema: TableSchema, columns: pa.Schema, num_options: int = 1, partition_columns: Iterable[str] = ()
) -> pa.Schema:
    """Passed-through columns, unchanged and in their order, then the added ones.

    Raises InputError when the input already has a column of such a name, in its files or in their paths.
    """
    added = added_fields(schema, columns, num_options)
    names = [*(field.name for field in added), *REJECT_COLUMNS]
    there = {name.lower(): name for name in (*columns.names, *partition_columns)}
    taken = [there[name.lower()] for name in names if name.lower() in there]
    if taken:  # engines that ignore case, or prefer the path, would show the input's column under our name
        raise InputError(
            f"the input has columns that ray-cfnet writes: {', '.join(taken)}",
            "rename them in the input; it may be an output of ray-cfnet",
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"two columns of the output would be called {', '.join(twice)}",
            f"rename the feature {' or '.join(name.split('_', 1)[1] for name in twice)} in the input",
        )
    return pa.schema([*columns, *added])


def rejects_schema(columns: pa.Schema) -> pa.Schema:
    """The rejected rows' original columns, why and where."""
    return pa.schema([*columns, *(_commented(pa.field(name, pa.string()), _MEANINGS[name]) for name in REJECT_COLUMNS)])


def type_metadata(declared: pa.Schema) -> dict[str, bytes]:
    """Parquet metadata that makes Arrow readers see `declared`, whatever the writer was handed.

    Strings are handed to it as dictionaries, which is faster; without this, a passed-through string column
    would be read back as a dictionary, and time zones and durations would be lost.
    """
    return {"ARROW:schema": base64.b64encode(declared.serialize().to_pybytes())}


def dictionary_columns(schema: TableSchema, declared: pa.Schema) -> list[str]:
    """The output's columns whose values repeat, for ParquetWriter's `use_dictionary`.

    Keys, probabilities, distances, sentences and numbers without a grid hardly repeat: the writer would fill a
    dictionary with them, find it too large, and write the values after all.
    """
    distinct = {*schema.keys, "pred_proba", "explanation"}
    made = {"proba", "distance"}
    for feature in schema.features:
        if isinstance(feature, Continuous) and feature.grid is None:
            distinct.add(feature.name)
            made.add(feature.name)
    return [name for name in declared.names if name not in distinct and _PREFIX.sub("", name) not in made]
