"""Bundles: what is saved is what is loaded, and nothing else is."""

import json
from pathlib import Path

import pytest
import torch

from ray_cfnet.errors import BundleError, ConfigError
from ray_cfnet.explain.explainer import Explainer
from ray_cfnet.model.bundle import Bundle, desired_index, make_net
from ray_cfnet.tables.codec import encode
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import people, untrained_bundle

FIRST_VERSION = Path(__file__).parent.parent / "data" / "bundle-v1"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(str(untrained_bundle().save(Location.of(tmp_path))))


def test_a_loaded_bundle_equals_the_saved_one(saved: Path) -> None:
    original, loaded = untrained_bundle(), Bundle.load(Location.of(saved))
    assert loaded.id == saved.name
    assert loaded.schema == original.schema
    assert loaded.settings == original.settings
    assert loaded.metrics == original.metrics
    for name, weight in original.net.state_dict().items():
        assert torch.equal(weight, loaded.net.state_dict()[name])


def test_equal_models_have_equal_ids_and_other_weights_another(tmp_path: Path) -> None:
    ids = [untrained_bundle(seed).save(Location.of(tmp_path / str(n))).name for n, seed in enumerate([0, 0, 1])]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("name", ["model.safetensors", "schema.json", "config.json", "metrics.json", "MODEL_CARD.md"])
def test_a_changed_file_is_refused_by_name(saved: Path, name: str) -> None:
    content = bytearray((saved / name).read_bytes())
    content[-2] ^= 1
    (saved / name).write_bytes(content)
    with pytest.raises(BundleError, match=name):
        Bundle.load(Location.of(saved))


@pytest.mark.parametrize("name", ["model.safetensors", "schema.json", "bundle.json"])
def test_a_missing_file_is_refused_by_name(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(BundleError, match=name):
        Bundle.load(Location.of(saved))


def test_a_forged_id_is_refused(saved: Path) -> None:
    listing = json.loads((saved / "bundle.json").read_text())
    (saved / "bundle.json").write_text(json.dumps({**listing, "id": "0" * 16}))
    with pytest.raises(BundleError, match="id does not match"):
        Bundle.load(Location.of(saved))


def test_a_newer_format_is_refused_with_advice(saved: Path) -> None:
    listing = json.loads((saved / "bundle.json").read_text())
    (saved / "bundle.json").write_text(json.dumps({**listing, "format_version": 99}))
    with pytest.raises(BundleError, match="upgrade ray-cfnet"):
        Bundle.load(Location.of(saved))


def test_loading_unpickles_nothing(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("pickle was used")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", refuse)
    monkeypatch.setattr("torch.load", refuse)
    Bundle.load(Location.of(saved))


def test_the_first_versions_bundle_still_loads_and_predicts() -> None:
    bundle = Bundle.load(Location.of(FIRST_VERSION))
    expected = json.loads((FIRST_VERSION.parent / "bundle-v1-predictions.json").read_text())
    from tests.unit.test_explainer import explained_people

    table = explained_people(bundle, 20)
    assert table.column("pred_label").to_pylist() == expected["pred_label"]
    assert table.column("fcf_income").to_pylist() == expected["fcf_income"]
    assert table.column("pred_proba").to_pylist() == pytest.approx(expected["pred_proba"], abs=1e-5)


def test_the_card_tells_classes_constraints_and_limits(saved: Path) -> None:
    card = (saved / "MODEL_CARD.md").read_text()
    for words in (
        "`approved`",
        "| gender | categorical | f, m | never |",
        "| only up, 18..90 |",
        "Intended use",
    ):
        assert words in card


def test_desired_class_must_exist_with_its_type() -> None:
    schema = untrained_bundle().schema
    assert desired_index("opposite", schema) is None
    assert desired_index(1, schema) == 1
    for wrong in ("1", True, 2):
        with pytest.raises(ConfigError, match="not a class of approved"):
            desired_index(wrong, schema)


def test_a_gated_bundle_from_before_g_was_told_the_class_says_what_it_said(tmp_path: Path) -> None:
    older = untrained_bundle()
    model = older.settings.model.model_copy(update={"generator_kind": "gated"})
    older.settings = older.settings.model_copy(update={"model": model})
    older.net = make_net(older.schema, model).eval()
    older.net.generator_class = None
    rows = encode(people(200), older.schema)[0]
    said = Explainer(older, None).explain(rows).cf
    now = Explainer(Bundle.load(older.save(Location.of(tmp_path))), None).explain(rows).cf
    assert (now.values == said.values).all()
    assert (now.codes == said.codes).all()
