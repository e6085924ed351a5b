"""A model store: bundles, and which of them is in use.

    STORE/<id>/                         bundles, named by the hash of their content
    STORE/CURRENT                       id, promoted_at, sequence of the bundle in use
    STORE/_promotions/<n>-<id>.json     every promotion, refusal and rollback, numbered; none is ever deleted

Writers take turns (tables/lock.py). A record is written before CURRENT moves, so the records are the truth:
when a process dies between the two, the next one moves CURRENT for it. Readers need no lock, CURRENT is always
one whole file.
"""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ray_cfnet import config
from ray_cfnet.errors import BundleError, InputError
from ray_cfnet.model.bundle import Bundle, copy_bundle, verified_files
from ray_cfnet.model.gate import Failure, Figures, failures, figures
from ray_cfnet.tables.lock import exclusive, now, who
from ray_cfnet.tables.storage import Location

MODELS = "_models"
"""The store that train writes to, below `output.path`."""

CURRENT = "CURRENT"
HISTORY = "_promotions"
_CURRENT_BYTES = 256
_RECORD_NAME = re.compile(r"(\d+)-[0-9a-f]{16}\.json")

# Ids become parts of paths: what is read from a file must be an id and nothing else.
ModelId = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Decision = Literal["promoted", "forced", "refused", "rolled_back"]


class Pointer(BaseModel):
    """The content of CURRENT."""

    model_config = ConfigDict(frozen=True)

    id: ModelId
    promoted_at: str
    sequence: int = Field(ge=1)


class Record(BaseModel):
    """One entry of the history. `to_id` is the bundle that was asked for, in use only unless refused."""

    model_config = ConfigDict(frozen=True)

    sequence: int = Field(ge=1)
    decision: Decision
    at: str
    by: str
    from_id: ModelId | None
    to_id: ModelId
    reason: str | None = None
    failures: list[Failure] = []
    metrics: Figures = {}
    current_metrics: Figures | None = None
    thresholds: dict[str, Any] = {}


def resolve_bundle(place: Location) -> Location:
    """The bundle that an address means: itself, or the CURRENT one of a store.

    Raises BundleError when there is neither, or when CURRENT is unreadable or its bundle missing or damaged.
    """
    if (place / "bundle.json").exists():
        return place
    pointer = read_current(place)
    if pointer is None:
        raise BundleError(
            f"{place}: no bundle here (bundle.json is missing) and no store with a promoted one (CURRENT is missing)",
            "pass the directory that ray-cfnet train printed, or promote a bundle with ray-cfnet promote",
        )
    stored_metrics(place, pointer.id)
    return place / pointer.id


def read_current(store: Location) -> Pointer | None:
    """What CURRENT says, None where there is none. Raises BundleError when it cannot be understood."""
    if not (store / CURRENT).exists():
        return None
    try:
        return Pointer.model_validate_json((store / CURRENT).read_bytes())
    except (ValidationError, OSError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise BundleError(
            f"{store}/{CURRENT}: not a pointer to a bundle ({said})", "promote a bundle again with ray-cfnet promote"
        ) from None


def stored_metrics(store: Location, model_id: str) -> dict[str, Any]:
    """The metrics of a bundle of a store, verified. Raises BundleError when it is missing or damaged."""
    files, found = verified_files(store / model_id)
    if found != model_id:
        raise BundleError(
            f"{store}/{model_id}: holds the bundle {found}", f"restore {model_id}, or promote another bundle"
        )
    metrics = json.loads(files["metrics.json"])
    return metrics if isinstance(metrics, dict) else {}


def read_history(store: Location) -> list[Record]:
    """All records in the order of their numbers. Raises BundleError for a damaged one."""
    records = []
    for file in (store / HISTORY).files():
        if _RECORD_NAME.fullmatch(file.path):
            try:
                records.append(Record.model_validate_json((store / HISTORY / file.path).read_bytes()))
            except (ValidationError, OSError):
                raise BundleError(f"{store}/{HISTORY}/{file.path}: damaged", "restore it from a backup") from None
    return sorted(records, key=lambda record: record.sequence)


def promote(place: Location, store: Location, whole: config.Config, force: str | None = None) -> Record:
    """Makes a bundle the store's CURRENT one if it passes `promotion` of the configuration.

    A bundle outside of the store is copied into it first. `force` is the reason to promote it all the same.
    Returns the record, whose decision may be `refused`. Raises BundleError for a bundle that is damaged or of
    another table.
    """
    bundle = Bundle.load(place)
    _check_table(place, bundle, whole.table)
    if place != store / bundle.id:
        copy_bundle(place, store)
    own = figures(stored_metrics(store, bundle.id))
    with exclusive(store / HISTORY, "a promotion") as hold:
        state = _settled(store)
        failed, current = [], None
        if state.pointer is not None:
            try:
                current = figures(stored_metrics(store, state.pointer.id))
            except BundleError as error:
                said = f"the current bundle {state.pointer.id} cannot be compared with: {error.problem}"
                failed.append(Failure(condition="promotion.tolerance", message=f"promotion.tolerance: {said}"))
        failed += failures(own, current, whole.promotion)
        decision: Decision = "promoted" if not failed else "refused" if force is None else "forced"
        record = state.record(
            decision,
            bundle.id,
            reason=force,
            failures=failed,
            metrics=own,
            current_metrics=current,
            thresholds=whole.promotion.model_dump(mode="json"),
        )
        hold.check()
        _write(store, record)
    return record


def roll_back(store: Location) -> Record:
    """Makes the bundle that was in use before the CURRENT one CURRENT again; twice goes two back.

    Raises InputError when there is none, BundleError when it is missing or damaged.
    """
    if not read_history(store):
        raise InputError(f"{store}: nothing was ever promoted here", "check --store, or promote a bundle")
    with exclusive(store / HISTORY, "a promotion") as hold:
        state = _settled(store)
        in_use = _in_use(state.records)
        if len(in_use) < 2:
            raise InputError(f"{store}: no bundle was in use before the current one", "promote another bundle instead")
        own = figures(stored_metrics(store, in_use[-2]))
        record = state.record("rolled_back", in_use[-2], metrics=own)
        hold.check()
        _write(store, record)
    return record


def list_models(store: Location) -> dict[str, Any]:
    """Every bundle of a store with its metrics, which one is current, and the history, as plain data.

    A damaged bundle or CURRENT is told as a `problem`. Raises InputError where there is no store.
    """
    if not store.is_dir():
        raise InputError(f"{store}: no such directory", "pass a model store, e.g. OUTPUT/_models")
    pointer, problem = None, None
    try:
        pointer = read_current(store)
        if pointer is not None:
            stored_metrics(store, pointer.id)
    except BundleError as error:
        problem = error.problem
    names = [file.path.removesuffix("/bundle.json") for file in store.files() if file.path.endswith("/bundle.json")]
    models = []
    for name in names:
        if not re.fullmatch("[0-9a-f]{16}", name):
            continue
        model: dict[str, Any] = {"id": name, "current": pointer is not None and pointer.id == name}
        try:
            models.append({**model, "metrics": figures(stored_metrics(store, name)), "problem": None})
        except BundleError as error:
            models.append({**model, "metrics": None, "problem": error.problem})
    return {
        "store": str(store),
        "current": pointer.model_dump() if pointer is not None else None,
        "problem": problem,
        "models": models,
        "history": [record.model_dump(mode="json") for record in read_history(store)],
    }


@dataclass(frozen=True)
class _State:
    """A store as its lock's holder finds it."""

    records: list[Record]
    pointer: Pointer | None

    def record(self, decision: Decision, to_id: str, **fields: Any) -> Record:
        """The next entry of the history."""
        numbers = [record.sequence for record in self.records] + ([self.pointer.sequence] if self.pointer else [])
        from_id = self.pointer.id if self.pointer else None
        sequence = max(numbers, default=0) + 1
        return Record(sequence=sequence, decision=decision, at=now(), by=who(), from_id=from_id, to_id=to_id, **fields)


def _settled(store: Location) -> _State:
    """Reads a store, and moves a CURRENT that is behind the records or unreadable. Only under the lock."""
    records = read_history(store)
    moves = [record for record in records if record.decision != "refused"]
    try:
        pointer = read_current(store)
    except BundleError:
        pointer = None
    if moves and (pointer is None or pointer.sequence < moves[-1].sequence):
        pointer = _move_current(store, moves[-1])
    return _State(records, pointer)


def _write(store: Location, record: Record) -> None:
    content = json.dumps(record.model_dump(mode="json"), indent=1, ensure_ascii=False).encode()
    (store / HISTORY / f"{record.sequence:06d}-{record.to_id}.json").write_bytes(content)
    if record.decision != "refused":
        _move_current(store, record)


def _move_current(store: Location, record: Record) -> Pointer:
    pointer = Pointer(id=record.to_id, promoted_at=record.at, sequence=record.sequence)
    # Always of one size: an S3 reader asks for the size first and the content then, and may get two versions.
    (store / CURRENT).write_bytes(pointer.model_dump_json().ljust(_CURRENT_BYTES - 1).encode() + b"\n")
    return pointer


def _in_use(records: list[Record]) -> list[str]:
    """The bundles that a rollback can go back through, the current one last."""
    in_use: list[str] = []
    for record in records:
        if record.decision == "rolled_back":
            del in_use[-1:]
        if record.decision != "refused" and in_use[-1:] != [record.to_id]:
            in_use.append(record.to_id)
    return in_use


def _check_table(place: Location, bundle: Bundle, table: config.Table) -> None:
    target, names = bundle.schema.target.name, sorted(bundle.schema.feature_names)
    if target != table.target or names != sorted(table.features):
        raise BundleError(
            f"{place}: predicts {target} from {', '.join(names)}; the configuration has {table.target} from "
            f"{', '.join(sorted(table.features))}",
            "pass the configuration that the bundle was trained with",
        )
