"""Training through Ray Train."""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.train
import ray.util
import torch
from mlflow import MlflowClient

from ray_cfnet.cluster import ingest, shards
from ray_cfnet.cluster.ingest import LEAST_AHEAD, EncodedTable, fit
from ray_cfnet.cluster.train import RUNS, _run_name
from ray_cfnet.cluster.trainer import LeanTrainer
from ray_cfnet.commands import run_evaluate, run_train
from ray_cfnet.config.file import load_config
from ray_cfnet.errors import ConfigError, InputError, JobError
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.store import MODELS
from ray_cfnet.tables.lock import exclusive
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.storage import Location
from tests.integration.conftest import CONF, Trained, loans_config

QUIET: Any = lambda metrics: None  # noqa: E731


def test_result_has_the_contracts_keys_and_a_bundle_that_loads(trained: Trained) -> None:
    result = trained.result
    assert {"bundle", "model_id", "epochs", "metrics"} <= result.keys()
    assert {"validity", "proximity", "sparsity", "manifold"} <= result["metrics"]["cf"].keys()
    assert {"validity", "proximity", "sparsity", "manifold", "violations"} <= result["metrics"]["fcf"].keys()
    loaded = Bundle.load(Location.of(trained.bundle))
    assert loaded.id == result["model_id"]
    assert loaded.metrics == result["metrics"]


def test_the_model_learns_and_its_counterfactuals_keep_the_rules(trained: Trained) -> None:
    metrics = trained.result["metrics"]
    assert metrics["rows"] == 800
    assert metrics["accuracy"] > 0.75
    assert metrics["fcf"]["validity"] > 0.9
    assert metrics["fcf"]["violations"] == 0


def test_the_schema_is_fitted_on_the_training_split_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random(1000).round(3)
    x[900:] += 5  # only in the test split
    y = (x % 1 > 0.5).astype(int)
    pq.write_table(pa.table({"x": x, "z": rng.random(1000), "y": y}), tmp_path / "t.parquet")
    (tmp_path / "c.yaml").write_text(
        f"table: {{path: {tmp_path}/t.parquet, target: y, "
        "features: {x: {kind: continuous}, z: {kind: continuous}}}\n"
        f"training: {{epochs: 1}}\noutput: {{path: {tmp_path}/out}}\n"
    )
    feature = fit(open_source(f"{tmp_path}/t.parquet"), load_config(tmp_path / "c.yaml")).continuous[0]
    assert (feature.lower, feature.upper) == (x[:700].min(), x[:700].max())


def names_of_rays_processes() -> set[str]:
    """What the processes that this process has started call themselves, as far as they are Ray's."""
    parents, names = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[process.name] = (process / "stat").read_text().rsplit(")", 1)[1].split()[1]
            names[process.name] = (process / "cmdline").read_text()
        except OSError:
            continue

    def is_ours(pid: str) -> bool:
        return pid == str(os.getpid()) or (pid in parents and is_ours(parents[pid]))

    return {name.split("\0")[0] for pid, name in names.items() if name.startswith("ray::") and is_ours(pid)}


def test_no_process_stands_beside_a_training_that_has_nothing_to_do_for_it(tmp_path: Path) -> None:
    seen: list[set[str]] = []
    run_train(
        loans_config(tmp_path, "training.epochs=3"),
        lambda _: seen.append({name.split(".")[0] for name in names_of_rays_processes()}),
    )
    assert {"ray::RayTrainWorker", "ray::TrainController"} <= seen[0]
    assert not seen[0] & {"ray::DatasetManager", "ray::PlacementGroupCleaner"}


def test_fitting_leaves_no_helper_of_actors_behind(trained: Trained) -> None:
    tracker = "ActorLocationTracker"
    with contextlib.suppress(ValueError):  # of another test
        ray.kill(ray.get_actor(tracker, namespace=tracker))
    fit(open_source(trained.config.table.path), trained.config)
    assert tracker not in {actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)}


def test_on_a_cluster_what_a_killed_training_holds_is_still_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    def kinds() -> set[str]:
        trainer = LeanTrainer(lambda: None, scaling_config=ray.train.ScalingConfig(num_workers=1))
        return {type(callback).__name__ for callback in trainer._create_default_callbacks()}

    alone = kinds()
    monkeypatch.setenv("RAY_ADDRESS", "a cluster's")
    assert kinds() - alone == {"PlacementGroupCleanerCallback"}


def test_the_same_table_settings_and_seed_give_the_same_model(trained: Trained, tmp_path: Path) -> None:
    config = trained.config.model_copy(
        update={"output": trained.config.output.model_copy(update={"path": str(tmp_path)})}
    )
    assert run_train(config, QUIET)["model_id"] == trained.result["model_id"]


def test_two_workers_train_on_uneven_shards_and_mlflow_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    epochs: list[dict[str, Any]] = []
    config = loans_config(
        tmp_path, "table.sample.rows=1001", "training.epochs=2", "cluster.num_workers=2", "training.batch_size=64"
    )
    result = run_train(config, epochs.append)
    assert [metrics["epoch"] for metrics in epochs] == [1, 2]
    assert result["metrics"]["rows"] == 1001 - int(1001 * 0.8)
    [recorded] = MlflowClient(f"file:{tmp_path}/mlruns").search_runs(["0"])
    assert recorded.data.tags["bundle_id"] == result["model_id"]
    assert recorded.data.metrics["test_accuracy"] == result["metrics"]["accuracy"]


def test_three_classes_with_a_desired_one(tmp_path: Path) -> None:
    features = "{age: {kind: continuous}, income: {kind: continuous}, decision: {kind: categorical}}"
    changed = ("table.target=housing", f"table.features={features}", "words={}", "training.epochs=2")
    config = loans_config(tmp_path, *changed)
    with pytest.raises(ConfigError, match="not a class of housing"):
        run_train(config, QUIET)
    config = config.model_copy(update={"explain": config.explain.model_copy(update={"desired": "opposite"})})
    with pytest.raises(ConfigError, match="opposite needs two classes"):
        run_train(config, QUIET)
    config = config.model_copy(update={"explain": config.explain.model_copy(update={"desired": "own"})})
    result = run_train(config, QUIET)
    assert Bundle.load(Location.of(result["bundle"])).schema.target.classes == ("mortgage", "own", "rent")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([7] * 100), "income: constant"),
        (pa.array([None, *range(99)]), "income has 1 x null"),
        (pa.array([float("nan"), *map(float, range(99))]), "income has 1 x nan"),
        (pa.array(["a"] * 100), "income is string"),
    ],
)
def test_a_column_that_cannot_be_trained_on_is_named(tmp_path: Path, column: pa.Array, words: str) -> None:
    table = pa.table({"income": column, "age": range(100), "y": [0, 1] * 50})
    with pytest.raises(InputError, match=words) as caught:
        run_train(_two_column_config(tmp_path, table), QUIET)
    assert "remedy" in str(caught.value)


def test_a_diverged_run_fails_with_advice_and_saves_nothing(tmp_path: Path) -> None:
    table = pa.table({"income": range(200), "age": range(200), "y": [0, 1] * 100})
    with pytest.raises(JobError, match=r"diverged in epoch 1; lower training\.learning_rate"):
        run_train(_two_column_config(tmp_path, table, "training.learning_rate=1.0e+30"), QUIET)
    assert not list((tmp_path / "out").rglob("bundle.json"))


def test_names_that_explain_could_not_write_are_found_before_training(tmp_path: Path) -> None:
    table = pa.table({"valid": range(90), "age": range(90), "y": [0, 1] * 45})
    features = "table.features={valid: {kind: continuous}, age: {kind: continuous}}"
    with pytest.raises(InputError, match="would be called cf_valid, fcf_valid"):
        run_train(_two_column_config(tmp_path, table, features), QUIET)


def test_an_empty_split_is_found_before_training(tmp_path: Path) -> None:
    table = pa.table({"income": range(3), "age": range(3), "y": [0, 1, 0]})
    with pytest.raises(InputError, match="no row in the validation split"):
        run_train(_two_column_config(tmp_path, table), QUIET)


@pytest.mark.parametrize("ingest", ["memory", "stream"])
def test_a_validation_split_of_rejects_is_found_before_training(tmp_path: Path, ingest: str) -> None:
    income = [None if 140 <= row < 160 else row for row in range(200)]
    table = pa.table({"income": income, "age": range(200), "y": [0, 1] * 100})
    with pytest.raises(InputError, match="no usable row in the validation split"):
        run_train(_two_column_config(tmp_path, table, f"training.ingest={ingest}"), QUIET)


def test_the_same_training_is_refused_while_it_is_at_work(tmp_path: Path) -> None:
    table = pa.table({"income": range(200), "age": range(200), "y": [0, 1] * 100})
    config = _two_column_config(tmp_path, table)
    source = open_source(config.table.path)
    run = Location.of(tmp_path / "out" / MODELS / RUNS / _run_name(source, fit(source, config), config))
    with exclusive(run, "the first"), pytest.raises(JobError, match=r"held by the first of \S+ \(process \d+\) since"):
        run_train(config, QUIET)


def test_files_of_different_types_are_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"income": range(50), "age": range(50), "y": [0, 1] * 25}), tmp_path / "t" / "a.parquet")
    narrow = pa.table({"income": pa.array(range(50), pa.int32()), "age": range(50), "y": [0, 1] * 25})
    pq.write_table(narrow, tmp_path / "t" / "b.parquet")
    config = _two_column_config(tmp_path, narrow, f"table.path={tmp_path}/t")
    with pytest.raises(InputError, match=r"b\.parquet: column income is int32, expected int64"):
        run_train(config, QUIET)


def test_nulls_may_be_left_out_on_request(tmp_path: Path) -> None:
    table = pa.table({"income": [None, *range(199)], "age": range(200), "y": [0, 1] * 100})
    config = _two_column_config(tmp_path, table, "training.max_reject_fraction=0.05")
    source = open_source(config.table.path)
    assert EncodedTable(source, config, fit(source, config)).dataset("train").count() == 139


def test_single_class_and_too_many_categories_come_in_one_error(tmp_path: Path) -> None:
    table = pa.table({"income": [f"id-{i}" for i in range(100_000)], "age": range(100_000), "y": [1] * 100_000})
    config = _two_column_config(tmp_path, table, "table.features.income={kind: categorical}")
    with pytest.raises(InputError) as caught:
        run_train(config, QUIET)
    assert "income: more than 1000 categories" in str(caught.value)
    assert "a single class" in str(caught.value)


def _two_column_config(directory: Path, table: pa.Table, *overrides: str) -> Any:
    pq.write_table(table, directory / "t.parquet")
    return load_config(
        CONF / "adult.yaml",
        [
            f"table.path={directory}/t.parquet",
            f"output.path={directory}/out",
            "table.target=y",
            "table.features={income: {kind: continuous}, age: {kind: continuous}}",
            "training.epochs=1",
            "cluster.num_actors=1",
            *overrides,
        ],
    )


@pytest.mark.data
def test_adult_reaches_the_papers_quality_in_fifteen_epochs(real_data: Path, tmp_path: Path) -> None:
    overrides = [f"table.path={real_data}/adult.parquet", f"output.path={tmp_path}", "training.epochs=15"]
    config = load_config(CONF / "adult.yaml", overrides)
    result = run_train(config, QUIET)
    metrics = run_evaluate(config, result["bundle"], "test")
    assert metrics["accuracy"] >= 0.828
    assert metrics["cf"]["validity"] >= 0.99
    assert metrics["cf"]["proximity"] <= 0.24
    assert metrics["fcf"]["validity"] >= 0.999
    assert metrics["fcf"]["proximity"] <= 0.095
    assert metrics["fcf"]["sparsity"] <= 0.23
    assert metrics["fcf"]["violations"] == 0


def test_a_streaming_worker_bounds_what_is_encoded_ahead(trained: Trained) -> None:
    """The benchmark of memory measures what it is for; it takes a quarter of an hour."""
    source = open_source(trained.config.table.path)
    schema = Bundle.load(Location.of(trained.bundle)).schema
    shares = [EncodedTable(source, trained.config, schema).streamed("train", rank, 2) for rank in (0, 1)]
    for dataset in shares:
        assert dataset.context.execution_options.resource_limits.object_store_memory == LEAST_AHEAD
    assert sum(dataset.count() for dataset in shares) == 2800


def test_a_stream_that_has_to_wait_leaves_the_interpreter_to_the_training(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray Data's loop is a thread of the worker: while nothing can be encoded ahead it must not spin."""
    monkeypatch.setattr(ingest, "LEAST_AHEAD", 1)
    monkeypatch.setattr(ingest, "UNITS_PER_WORKER", 14)
    monkeypatch.setattr(shards, "CHUNK_ROWS", 100)
    source = open_source(trained.config.table.path)
    schema = Bundle.load(Location.of(trained.bundle)).schema
    dataset = EncodedTable(source, trained.config, schema).streamed("train", 0, 1)
    chunks = shards.StreamShard(dataset, schema, torch.device("cpu")).chunks()
    num_rows = len(next(chunks))
    time.sleep(1)  # what may be encoded ahead is
    before = time.process_time()
    time.sleep(1)
    used = time.process_time() - before
    assert any(thread.name.startswith("StreamingExecutor") for thread in threading.enumerate()), "nothing waits"
    assert used < 0.4
    assert num_rows + sum(len(chunk) for chunk in chunks) == 2800


def test_a_streamed_run_with_two_workers_can_be_repeated(tmp_path: Path) -> None:
    results = []
    for name in ("first", "second"):
        config = loans_config(
            tmp_path,
            f"output.path={tmp_path}/{name}",
            "training.ingest=stream",
            "training.epochs=2",
            "cluster.num_workers=2",
        )
        results.append(run_train(config, QUIET))
    assert results[0]["metrics"]["train_rows"] == 2800
    assert results[0]["model_id"] == results[1]["model_id"]
