"""The model on disk: a directory of data files, never programs, whose name for itself is its hash.

    model.safetensors      weights                     schema.json   the fitted table schema
    reference.safetensors  examples and counts         metrics.json  measured on the test split
    config.json            settings                    MODEL_CARD.md for people
    bundle.json            format version, id, sha256 of every file

The id covers all files but bundle.json, so the same data, settings and seed give the same id.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from ray_cfnet import config
from ray_cfnet.config import Label
from ray_cfnet.errors import BundleError, ConfigError
from ray_cfnet.model.card import model_card
from ray_cfnet.model.net import CounterNet, Layout
from ray_cfnet.model.reference import Reference
from ray_cfnet.tables.schema import TableSchema
from ray_cfnet.tables.storage import Location

_FIRST_FILES = ("MODEL_CARD.md", "config.json", "metrics.json", "model.safetensors", "schema.json")
_FILES = {1: _FIRST_FILES, 2: (*_FIRST_FILES, "reference.safetensors")}
"""Of each format version; the first had no reference."""


class Settings(BaseModel):
    """The part of a configuration that makes the model what it is; paths and cluster size do not."""

    model_config = ConfigDict(frozen=True)

    split: config.Split
    model: config.Model
    training: config.Training
    desired: Label

    @classmethod
    def of(cls, whole: config.Config) -> "Settings":
        return cls(split=whole.split, model=whole.model, training=whole.training, desired=whole.explain.desired)


@dataclass
class Bundle:
    """A network with all that is needed to use it. `id` is set once saved or loaded."""

    net: CounterNet
    schema: TableSchema
    settings: Settings
    metrics: dict[str, Any]
    id: str = ""
    reference: Reference | None = None
    """None: not there yet, or of a bundle that was saved without."""

    @property
    def desired(self) -> int | None:
        """Index of the class the generator was trained to reach; None: the opposite one."""
        return desired_index(self.settings.desired, self.schema)

    def desired_for(self, wanted: Label) -> int | None:
        """The index of the wanted class. Raises BundleError when the generator was not trained to reach it.

        A generator trained for the opposite class reaches either of two; one trained for a class only that.
        """
        index = desired_index(wanted, self.schema)
        if self.desired is not None and index != self.desired:
            raise BundleError(
                f"the bundle was trained to reach {self.settings.desired!r}, not {wanted!r}",
                f"set explain.desired to {self.settings.desired!r}, or train a bundle for the other class",
            )
        return index

    def save(self, store: Location) -> Location:
        """Writes the bundle to `store/<id>` and returns that place. The list of hashes is written last."""
        files = {
            "MODEL_CARD.md": model_card(self.schema, self.settings.model_dump(), self.metrics).encode(),
            "config.json": _json(self.settings.model_dump(mode="json")),
            "metrics.json": _json(self.metrics),
            "model.safetensors": safetensors.torch.save(_weights(self.net)),
            "schema.json": self.schema.to_json().encode(),
        }
        if self.reference is not None:
            files["reference.safetensors"] = self.reference.to_bytes()
        place = _write_files(files, store)
        self.id = place.name
        return place

    @classmethod
    def load(cls, place: Location) -> "Bundle":
        """Reads and verifies a bundle. Raises BundleError when it is missing, damaged or too new."""
        files, bundle_id = verified_files(place)
        try:
            schema = TableSchema.from_json(files["schema.json"].decode())
            settings = Settings.model_validate_json(files["config.json"])
            metrics = json.loads(files["metrics.json"])
            net = make_net(schema, settings.model)
            weights = safetensors.torch.load(files["model.safetensors"])
            if net.generator_class is not None:  # bundles from before g was told the class: zeros tell nothing
                weights.setdefault("generator_class.weight", torch.zeros_like(net.generator_class.weight))
            net.load_state_dict(weights)
            content = files.get("reference.safetensors")
            reference = Reference.from_bytes(content) if content is not None else None
        except (ValueError, KeyError, TypeError, RuntimeError, ValidationError, safetensors.SafetensorError) as error:
            raise BundleError(f"{place}: cannot be understood: {error}", "train it again with this version") from None
        return cls(net.eval(), schema, settings, metrics, bundle_id, reference)


def make_net(schema: TableSchema, model: config.Model) -> CounterNet:
    """A freshly initialised network for a table."""
    layout = Layout(len(schema.continuous), tuple(len(f.categories) for f in schema.categorical))
    return CounterNet(layout, len(schema.target.classes), **model.model_dump())


def desired_index(desired: Label, schema: TableSchema) -> int | None:
    """The class index of `explain.desired`; None for opposite. Raises ConfigError for what cannot be."""
    classes = schema.target.classes
    if desired == "opposite" and "opposite" not in classes:
        if len(classes) == 2:
            return None
        listed = ", ".join(map(str, classes))
        raise ConfigError(
            "explain.desired",
            [f"opposite needs two classes, {schema.target.name} has {len(classes)}; name one: {listed}"],
        )
    # Types must agree too: in Python True == 1.
    for index, label in enumerate(classes):
        if label == desired and type(label) is type(desired):
            return index
    listed = ", ".join(map(repr, classes))
    raise ConfigError("explain.desired", [f"{desired!r} is not a class of {schema.target.name}; its classes: {listed}"])


def _weights(net: CounterNet) -> dict[str, torch.Tensor]:
    return {name: weight.detach().cpu().contiguous() for name, weight in net.state_dict().items()}


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()


def _bundle_id(hashes: dict[str, str]) -> str:
    listing = "\n".join(f"{hashes[name]}  {name}" for name in sorted(hashes))
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def copy_bundle(place: Location, store: Location) -> Location:
    """Copies a bundle to `store/<id>`, unless it is there, and returns that place, verified."""
    files, bundle_id = verified_files(place)
    copy = store / bundle_id
    if not (copy / "bundle.json").exists():
        _write_files(files, store)
    verified_files(copy)
    return copy


def _write_files(files: dict[str, bytes], store: Location) -> Location:
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    bundle_id = _bundle_id(hashes)
    version = next(version for version, names in _FILES.items() if set(names) == set(files))
    place = store / bundle_id
    for name, content in files.items():
        (place / name).write_bytes(content)
    (place / "bundle.json").write_bytes(_json({"format_version": version, "id": bundle_id, "sha256": hashes}))
    return place


def verified_files(place: Location) -> tuple[dict[str, bytes], str]:
    """The content of a bundle's files, and its id. Raises BundleError when it is missing, damaged or too new."""
    if not (place / "bundle.json").exists():
        raise BundleError(
            f"{place}: no bundle here (bundle.json is missing)", "pass the directory that ray-cfnet train printed"
        )
    try:
        listing = json.loads((place / "bundle.json").read_bytes())
        version, hashes, bundle_id = listing["format_version"], listing["sha256"], listing["id"]
    except (ValueError, KeyError, TypeError):
        raise BundleError(f"{place}/bundle.json: damaged", "copy the bundle again, or train again") from None
    if version not in _FILES:
        raise BundleError(f"{place}: format version {version}, known here: {max(_FILES)}", "upgrade ray-cfnet")
    files = {}
    for name in _FILES[version]:
        try:
            files[name] = (place / name).read_bytes()
        except OSError:
            raise BundleError(f"{place}/{name}: missing", "copy the bundle again, or train again") from None
        if hashlib.sha256(files[name]).hexdigest() != hashes.get(name):
            raise BundleError(
                f"{place}/{name}: its content is not what was saved (sha256 differs)",
                "copy the bundle again, or train again; never edit a bundle",
            )
    if _bundle_id({name: hashes[name] for name in files}) != bundle_id:
        raise BundleError(f"{place}/bundle.json: the id does not match the files", "copy the bundle again")
    return files, bundle_id
