"""The model store: who gets in, who is in use, and that nobody ever sees it half done."""

import itertools
import json
import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs as pafs

from ray_cfnet.config import Config
from ray_cfnet.errors import BundleError, InputError, JobError
from ray_cfnet.model import store as store_module
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.store import (
    list_models,
    promote,
    read_current,
    read_history,
    resolve_bundle,
    roll_back,
)
from ray_cfnet.tables import lock, storage
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, untrained_bundle


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    if request.param == "local":
        yield Location.of(tmp_path / "store")
        return
    endpoint = request.getfixturevalue("server")
    names = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**names, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    storage._s3.cache_clear()
    bucket = tmp_path.name.replace("_", "-").strip("-").lower()
    pafs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True).create_dir(bucket)
    yield Location.of(f"s3://{bucket}/store")
    storage._s3.cache_clear()


def metrics(
    accuracy: Any = 0.85,
    validity: Any = 0.998,
    proximity: Any = 0.2,
    fcf_validity: Any = 0.999,
    fcf_proximity: Any = 0.1,
    violations: Any = 0,
) -> dict[str, Any]:
    return {
        "rows": 1000,
        "accuracy": accuracy,
        "cf": {"validity": validity, "proximity": proximity},
        "fcf": {"validity": fcf_validity, "proximity": fcf_proximity, "violations": violations},
    }


def saved(place: Location, **figures: Any) -> Location:
    bundle = untrained_bundle()
    bundle.metrics = metrics(**figures)
    return bundle.save(place)


def configured(**promotion: Any) -> Config:
    return Config.model_validate({**CONFIG.model_dump(mode="json"), "promotion": promotion})


def current_id(store: Location) -> str | None:
    pointer = read_current(store)
    return pointer.id if pointer else None


def test_a_good_bundle_becomes_current_and_is_followed(store: Location) -> None:
    place = saved(store)
    record = promote(place, store, configured(min_accuracy=0.8, min_validity=0.99, max_proximity=0.25))
    assert (record.sequence, record.decision, record.from_id, record.to_id) == (1, "promoted", None, place.name)
    assert resolve_bundle(store) == place
    assert Bundle.load(resolve_bundle(store)).id == place.name
    assert resolve_bundle(place) == place


def test_the_record_says_who_when_and_why(store: Location) -> None:
    place = saved(store)
    promote(place, store, configured(min_accuracy=0.8))
    content = json.loads((store / "_promotions" / f"000001-{place.name}.json").read_bytes())
    assert content["by"]
    assert content["at"].endswith("+00:00")
    assert content["metrics"]["accuracy"] == 0.85
    assert content["thresholds"]["min_accuracy"] == 0.8
    assert content["thresholds"]["tolerance"] == {"accuracy": 0.005, "validity": 0.002, "proximity": 0.01}


def test_every_failed_condition_is_listed_with_both_numbers_and_the_refusal_recorded(store: Location) -> None:
    first = saved(store)
    promote(first, store, configured())
    worse = saved(store, accuracy=0.8, validity=0.9, proximity=0.4, fcf_validity=0.91, violations=3)
    limits = {"min_accuracy": 0.83, "min_validity": 0.99, "min_fcf_validity": 0.995, "max_proximity": 0.235}
    record = promote(worse, store, configured(**limits))
    assert record.decision == "refused"
    assert [failure.message for failure in record.failures] == [
        "promotion.min_accuracy: accuracy 0.8 is below 0.83",
        "promotion.min_validity: validity 0.9 is below 0.99",
        "promotion.min_fcf_validity: fcf_validity 0.91 is below 0.995",
        "promotion.max_proximity: proximity 0.4 is above 0.235",
        "promotion.max_violations: violations 3 is above 0",
        "promotion.tolerance.accuracy: accuracy 0.8 is below 0.845 (the current bundle's 0.85 - 0.005)",
        "promotion.tolerance.validity: validity 0.9 is below 0.996 (the current bundle's 0.998 - 0.002)",
        "promotion.tolerance.validity: fcf_validity 0.91 is below 0.997 (the current bundle's 0.999 - 0.002)",
        "promotion.tolerance.proximity: proximity 0.4 is above 0.21 (the current bundle's 0.2 + 0.01)",
    ]
    assert current_id(store) == first.name
    assert read_history(store)[-1] == record


def test_a_figure_at_the_limit_passes_and_one_beyond_does_not(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    promote(saved(store), store, configured())
    at_limit = {"accuracy": 0.845, "validity": 0.996, "proximity": 0.21, "fcf_validity": 0.997, "fcf_proximity": 0.11}
    for name, beyond in (("accuracy", -1e-4), ("validity", -1e-4), ("proximity", 1e-4), ("fcf_proximity", 1e-4)):
        record = promote(saved(store, **{**at_limit, name: at_limit[name] + beyond}), store, configured())
        assert (record.decision, len(record.failures)) == ("refused", 1)
    assert promote(saved(store, **at_limit), store, configured()).decision == "promoted"


def test_tolerance_null_compares_nothing(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    promote(saved(store), store, configured())
    off = configured(tolerance={"accuracy": None, "validity": None, "proximity": None})
    assert promote(saved(store, accuracy=0.1), store, off).decision == "promoted"


@pytest.mark.parametrize("value", [None, True])
def test_a_figure_that_is_no_number_never_passes(tmp_path: Path, value: Any) -> None:
    store = Location.of(tmp_path)
    record = promote(saved(store, accuracy=value), store, configured(min_accuracy=0.5))
    assert [failure.message for failure in record.failures] == [
        "promotion.min_accuracy: accuracy was not measured, it must be at least 0.5"
    ]
    assert read_current(store) is None


def test_a_bundle_without_metrics_is_refused(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    record = promote(untrained_bundle().save(store), store, configured())
    assert [failure.condition for failure in record.failures] == ["promotion.max_violations"]


def test_force_promotes_and_records_reason_and_failures(store: Location) -> None:
    promote(saved(store), store, configured())
    bad = saved(store, accuracy=0.5)
    record = promote(bad, store, configured(), force="the old one is unlawful")
    assert (record.decision, record.reason, len(record.failures)) == ("forced", "the old one is unlawful", 1)
    assert current_id(store) == bad.name


def test_a_bundle_from_elsewhere_is_copied_whole(store: Location, tmp_path: Path) -> None:
    outside = saved(Location.of(tmp_path / "elsewhere"))
    promote(outside, store, configured())
    assert resolve_bundle(store) == store / outside.name
    assert Bundle.load(store / outside.name).id == outside.name
    assert Bundle.load(outside).id == outside.name


def test_a_copy_that_broke_off_is_made_whole(tmp_path: Path) -> None:
    outside, store = saved(Location.of(tmp_path / "elsewhere")), Location.of(tmp_path / "store")
    (store / outside.name / "metrics.json").write_bytes(b"half")
    promote(outside, store, configured())
    assert Bundle.load(resolve_bundle(store)).id == outside.name


def test_a_damaged_copy_in_the_store_is_refused(tmp_path: Path) -> None:
    outside, store = saved(Location.of(tmp_path / "elsewhere")), Location.of(tmp_path / "store")
    shutil.copytree(str(outside), f"{store}/{outside.name}")
    (store / outside.name / "model.safetensors").write_bytes(b"other")
    with pytest.raises(BundleError, match=r"model.safetensors.*sha256"):
        promote(outside, store, configured())
    assert read_current(store) is None


def test_a_damaged_bundle_is_never_promoted(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    place = saved(store)
    (place / "metrics.json").write_bytes(json.dumps(metrics(accuracy=1.0)).encode())
    with pytest.raises(BundleError, match=r"metrics.json.*sha256"):
        promote(place, store, configured(), force="please")
    assert (read_current(store), read_history(store)) == (None, [])


def test_a_bundle_of_another_table_is_refused(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    other = configured()
    other = other.model_copy(update={"table": other.table.model_copy(update={"target": "defaulted"})})
    with pytest.raises(BundleError, match="predicts approved"):
        promote(saved(store), store, other)


def test_rollback_goes_back_one_promotion_at_a_time(store: Location) -> None:
    places = [saved(store, accuracy=accuracy) for accuracy in (0.85, 0.86, 0.87)]
    for place in places:
        promote(place, store, configured())
    assert promote(saved(store, accuracy=0.1), store, configured()).decision == "refused"
    assert roll_back(store).to_id == current_id(store) == places[1].name
    record = roll_back(store)
    assert (record.decision, record.from_id, record.to_id) == ("rolled_back", places[1].name, places[0].name)
    with pytest.raises(InputError, match="no bundle was in use before"):
        roll_back(store)
    promote(places[2], store, configured())
    assert roll_back(store).to_id == places[0].name
    assert [record.sequence for record in read_history(store)] == list(range(1, 9))


def test_promoting_the_current_bundle_again_is_no_step_for_a_rollback(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    first, second = saved(store), saved(store, accuracy=0.86)
    for place in (first, second, second):
        promote(place, store, configured())
    assert roll_back(store).to_id == first.name


def test_rollback_never_goes_to_a_damaged_bundle(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    first, second = saved(store), saved(store, accuracy=0.86)
    for place in (first, second):
        promote(place, store, configured())
    (first / "schema.json").write_bytes(b"{}")
    with pytest.raises(BundleError, match=r"schema.json"):
        roll_back(store)
    assert current_id(store) == second.name


def test_rollback_of_a_store_without_history_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing was ever promoted"):
        roll_back(Location.of(tmp_path / "typo"))
    assert list(tmp_path.iterdir()) == []


def test_neither_bundle_nor_current_is_told_with_a_remedy(store: Location) -> None:
    saved(store)
    with pytest.raises(BundleError, match=r"bundle.json is missing.*\n.*ray-cfnet promote"):
        resolve_bundle(store)


@pytest.mark.parametrize(
    "model_id",
    ["../elsewhere", "/etc", "..", "", "a/b", "0123456789abcdef/..", "0123456789ABCDEF", "0123456789abcdef\n"],
)
def test_an_id_that_could_be_a_path_is_never_followed(tmp_path: Path, model_id: str) -> None:
    saved(Location.of(tmp_path / "elsewhere"))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "CURRENT").write_text(json.dumps({"id": model_id, "promoted_at": "x", "sequence": 1}))
    with pytest.raises(BundleError, match="CURRENT: not a pointer"):
        resolve_bundle(Location.of(tmp_path / "store"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"id": 7}', b"0123456789abcdef"])
def test_a_current_that_is_no_pointer_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "CURRENT").write_bytes(content)
    with pytest.raises(BundleError, match="CURRENT: not a pointer"):
        resolve_bundle(Location.of(tmp_path))


def remove(place: Path) -> None:
    shutil.rmtree(place)


def spoil(place: Path) -> None:
    (place / "model.safetensors").write_bytes(b"")


def swap(place: Path) -> None:
    other = saved(Location.of(place.parent), accuracy=0.6)
    shutil.rmtree(place)
    shutil.copytree(str(other), place)


@pytest.mark.parametrize(
    ("harm", "said"), [(remove, "no bundle here"), (spoil, "sha256 differs"), (swap, "holds the bundle")]
)
def test_a_current_bundle_that_is_not_itself_is_refused_and_can_be_replaced(
    tmp_path: Path, harm: Callable[[Path], None], said: str
) -> None:
    store = Location.of(tmp_path)
    place = saved(store)
    promote(place, store, configured())
    harm(Path(str(place)))
    with pytest.raises(BundleError, match=said):
        resolve_bundle(store)
    better = saved(store, accuracy=0.9)
    refused = promote(better, store, configured())
    assert refused.decision == "refused"
    assert "cannot be compared" in refused.failures[0].message
    assert promote(better, store, configured(), force="the old one is lost").decision == "forced"
    assert resolve_bundle(store) == better


def test_a_promoter_that_dies_before_moving_current_is_completed_by_the_next(
    store: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = saved(store), saved(store, accuracy=0.86)
    promote(first, store, configured())
    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(store_module, "_move_current", die)
        with pytest.raises(KeyboardInterrupt):
            promote(second, store, configured())
    assert resolve_bundle(store) == first  # the old one, whole
    record = promote(saved(store, accuracy=0.1), store, configured())
    assert (record.decision, record.from_id, record.sequence) == ("refused", second.name, 3)
    assert resolve_bundle(store) == second


def test_a_lost_current_comes_back_from_the_history(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    first, second = saved(store), saved(store, accuracy=0.86)
    promote(first, store, configured())
    promote(second, store, configured())
    (tmp_path / "CURRENT").write_bytes(b"torn")
    assert roll_back(store).to_id == current_id(store) == first.name


def test_a_damaged_record_stops_promotion_by_name(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    place = saved(store)
    promote(place, store, configured())
    (tmp_path / "_promotions" / f"000001-{place.name}.json").write_text("{}")
    with pytest.raises(BundleError, match="000001"):
        promote(place, store, configured())
    assert resolve_bundle(store) == place


def read_until(store: Location, stop: threading.Event, known: set[str]) -> int:
    reads, last = 0, 0
    while not stop.is_set() or reads == 0:
        pointer = read_current(store)
        assert pointer is not None
        assert pointer.id in known
        assert pointer.sequence >= last
        last, reads = pointer.sequence, reads + 1
    return reads


def test_readers_never_miss_current_and_concurrent_promoters_take_turns(store: Location) -> None:
    places = [saved(store, accuracy=0.85 + number / 10_000) for number in range(8)]
    promote(places[0], store, configured())
    stop = threading.Event()
    with ThreadPoolExecutor(8) as pool:
        known = {place.name for place in places}
        readers = [pool.submit(read_until, store, stop, known) for _ in range(2)]
        records = list(pool.map(lambda place: promote(place, store, configured()), places))
        stop.set()
        assert all(reader.result() > 1 for reader in readers)
    history = read_history(store)
    assert [record.sequence for record in history] == list(range(1, 10))
    assert sorted(record.sequence for record in records) == list(range(2, 10))
    assert read_current(store) == store_module.Pointer(
        id=history[-1].to_id, promoted_at=history[-1].at, sequence=history[-1].sequence
    )
    for before, after in itertools.pairwise(history):
        assert after.from_id == before.to_id


def promote_many(place: str, store: str, times: int, start: Any) -> None:
    start.wait()
    for _ in range(times):
        promote(Location.of(place), Location.of(store), configured())


def test_promoters_in_other_processes_take_turns_too(tmp_path: Path) -> None:
    store = Location.of(tmp_path / "store")
    places = [saved(Location.of(tmp_path / str(number)), accuracy=0.85 + number / 10_000) for number in range(2)]
    promote(places[0], store, configured())
    # Arrow and torch have threads: a forked child could wait for one that it does not have.
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(len(places))  # else one is done before the other has imported torch
    workers = [context.Process(target=promote_many, args=(str(place), str(store), 15, start)) for place in places]
    for worker in workers:
        worker.start()
    known, seen = {place.name for place in places}, set()
    while any(worker.is_alive() for worker in workers):
        pointer = read_current(store)
        assert pointer is not None
        assert pointer.id in known
        seen.add(pointer.sequence)
        time.sleep(0.001)
    assert [worker.exitcode for worker in workers] == [0, 0]
    history = read_history(store)
    assert [record.sequence for record in history] == list(range(1, 32))
    assert current_id(store) == history[-1].to_id
    assert len(seen) > 1


def test_current_keeps_its_size_whatever_it_says(tmp_path: Path) -> None:
    store = Location.of(tmp_path)
    sizes = set()
    for _ in range(11):
        promote(saved(store), store, configured())
        sizes.add(len((store / "CURRENT").read_bytes()))
    assert sizes == {256}


@pytest.fixture
def quick_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT_S": 0.2, "STALE_S": 1.5, "_LOOK_AT_S3_EVERY_S": 0.05}.items():
        monkeypatch.setattr(lock, name, seconds)


@pytest.mark.usefixtures("quick_lock")
def test_a_held_lock_is_refused_with_the_holders_name_and_given_back(store: Location) -> None:
    with (
        lock.exclusive(store, "run 12ab"),
        pytest.raises(JobError, match=r"held by run 12ab of \S+@\S+ \(process \d+\) since 20"),
        lock.exclusive(store, "another", patience_s=0),
    ):
        pass
    with lock.exclusive(store, "the next", patience_s=0) as hold:
        hold.check()


@pytest.mark.usefixtures("quick_lock")
def test_the_lock_of_a_dead_holder_on_s3_is_taken_over(store: Location) -> None:
    if store.is_local:
        pytest.skip("the kernel gives a dead process's lock back")
    (store / ".locks" / "00000000000000000001-dead").write_bytes(b'{"by": "ann@host", "at": "2026-11-15"}')
    started = time.monotonic()
    with lock.exclusive(store, "the next", patience_s=0):
        assert time.monotonic() - started > 1.5
        assert [file.path for file in (store / ".locks").files() if "dead" in file.path] == []


@pytest.mark.usefixtures("quick_lock")
def test_a_holder_that_lost_its_lock_on_s3_notices(store: Location) -> None:
    if store.is_local:
        pytest.skip("flock cannot be lost")
    with lock.exclusive(store, "a run") as hold:
        hold.check()
        for file in (store / ".locks").files():
            (store / ".locks" / file.path).delete()
        for _ in range(2):  # now, and after more beats: a lock that was lost does not come back
            with pytest.raises(JobError, match="lost its lock"):
                hold.check()
            time.sleep(0.7)
        assert (store / ".locks").files() == []


@pytest.mark.parametrize("forward", [True, False], ids=["promote", "roll back"])
def test_a_promoter_that_lost_its_lock_on_s3_moves_nothing(
    store: Location, forward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store.is_local:
        pytest.skip("flock cannot be lost")
    first, second, third = (saved(store, accuracy=0.85 + number / 10_000) for number in range(3))
    for place in (first, second):
        promote(place, store, configured())
    figures = store_module.figures

    def held_up(metrics: dict[str, Any]) -> Any:
        for file in (store / "_promotions" / ".locks").files():
            (store / "_promotions" / ".locks" / file.path).delete()
        return figures(metrics)

    monkeypatch.setattr(store_module, "figures", held_up)
    with pytest.raises(JobError, match="lost its lock"):
        promote(third, store, configured()) if forward else roll_back(store)
    assert current_id(store) == second.name
    assert [record.to_id for record in read_history(store)] == [first.name, second.name]


@pytest.mark.usefixtures("quick_lock")
def test_a_beat_that_takes_too_long_gives_the_lock_up(store: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.is_local:
        pytest.skip("flock cannot be lost")
    write = Location.write_bytes

    def slow(place: Location, content: bytes) -> None:
        time.sleep(1.0)
        write(place, content)

    with lock.exclusive(store, "a run") as hold:
        monkeypatch.setattr(Location, "write_bytes", slow)
        time.sleep(2.0)
        with pytest.raises(JobError, match="lost its lock"):
            hold.check()
        assert (store / ".locks").files() == [], "what the late write brought back is gone again"


def test_one_slow_listing_is_no_proof_of_death(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = lock._SignsOfLife()
    assert signs.dead({"a": 1}, 0.0) == []
    assert signs.dead({"a": 1}, lock.STALE_S + 1) == []
    looks = [signs.dead({"a": 1}, lock.STALE_S + 2 + look) for look in range(6)]
    assert looks[-1] == ["a"]


def test_models_lists_bundles_marks_current_and_tells_damage(store: Location) -> None:
    good, bad = saved(store), saved(store, accuracy=0.7)
    promote(good, store, configured())
    (bad / "schema.json").write_bytes(b"{}")
    listed = list_models(store)
    assert listed["current"]["id"] == good.name
    assert listed["problem"] is None
    models = {model["id"]: model for model in listed["models"]}
    assert models.keys() == {good.name, bad.name}
    assert (models[good.name]["current"], models[good.name]["metrics"]["accuracy"]) == (True, 0.85)
    assert not models[bad.name]["current"]
    assert "schema.json" in models[bad.name]["problem"]
    assert [record["decision"] for record in listed["history"]] == ["promoted"]


def test_models_of_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        list_models(Location.of(tmp_path / "nowhere"))
