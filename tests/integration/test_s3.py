"""Table, bundle and output in a bucket, through a real S3 API server on loopback."""

import json
from collections.abc import Iterator
from typing import Any

import pyarrow.dataset as ds
import pytest
import ray
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer
from pyarrow import fs as pafs

from ray_cfnet.cluster.session import ray_session
from ray_cfnet.commands import run_explain, run_train
from ray_cfnet.config.file import load_config
from ray_cfnet.due import Choice
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.model.store import MODELS, promote
from ray_cfnet.nightly import run_nightly
from ray_cfnet.tables import storage
from ray_cfnet.tables.plan import open_source
from ray_cfnet.tables.storage import Location
from tests.integration.conftest import CONF, Trained, loans_config

QUIET: Any = lambda *_: None  # noqa: E731


@pytest.fixture(scope="module")
def bucket(local_ray: None) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    names = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**names, "AWS_REGION": "us-east-1"}.items():
            patched.setenv(name, value)
        storage._s3.cache_clear()
        admin = pafs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True)
        admin.create_dir("nightly")
        ray.shutdown()  # workers of a new session get the new environment
        with ray_session(min_cpus=3):
            yield "s3://nightly"
    server.stop()
    storage._s3.cache_clear()
    ray.init(address="local", num_cpus=3, include_dashboard=False)  # for the other tests


@pytest.fixture(scope="module")
def in_bucket(bucket: str, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    config = loans_config(
        tmp_path_factory.mktemp("nothing"),
        f"table.path={bucket}/loans",
        f"output.path={bucket}/out",
        "table.sample.rows=800",
        "training.epochs=2",
    )
    return Trained(config, run_train(config, QUIET))


def test_train_and_explain_with_everything_in_a_bucket(bucket: str, in_bucket: Trained) -> None:
    assert in_bucket.bundle.startswith(f"{bucket}/out/_models/")
    assert Bundle.load(Location.of(in_bucket.bundle)).id == in_bucket.result["model_id"]

    explained = run_explain(in_bucket.config, in_bucket.bundle, None, QUIET)
    assert explained["rows_out"] == 800
    files = [file.path for file in Location.of(f"{bucket}/out").files()]
    assert len(files) == 8
    table = ds.dataset([f"nightly/out/{file}" for file in files], filesystem=Location.of(bucket).fs).to_table()
    assert sorted(table.column("application_id").to_pylist()) == list(range(800))
    leftovers = [
        info.path for info in Location.of(bucket).fs.get_file_info(pafs.FileSelector("nightly", recursive=True))
    ]
    assert not [path for path in leftovers if "staging" in path or ".training/" in path]


def state_of(place: Location) -> dict[str, Any]:
    """Every object below it and when it was written, but for the status, which each night writes."""
    infos = place.fs.get_file_info(pafs.FileSelector(place.path, recursive=True))
    return {info.path: info.mtime for info in infos if info.is_file and info.base_name != "_status.json"}


@pytest.mark.parametrize("output_format", ["parquet", "delta"])
def test_a_night_with_everything_in_a_bucket_has_nothing_to_do_when_it_starts_again(
    bucket: str, in_bucket: Trained, output_format: str
) -> None:
    output = Location.of(f"{bucket}/nights-{output_format}")
    places = [f"table.path={in_bucket.config.table.path}", f"output.path={output}", f"output.format={output_format}"]
    config = load_config(CONF / "loans.yaml", [*places, "promotion={}", "cluster.num_actors=1"])
    promote(Location.of(in_bucket.bundle), output / MODELS, config, "a test")
    newest = open_source(config.table.path).partitions[-1]
    choice = Choice(since=newest.removeprefix("ds="))

    first = run_nightly(config, choice, QUIET, lambda: QUIET)
    assert (first["state"], [entry["partition"] for entry in first["done"]]) == ("ok", [newest]), first["errors"]
    assert first["model"]["labelled_rows"] == first["rows_in"] > 0
    assert b"<html" in Location.of(first["done"][0]["report"]).read_bytes()
    if output_format == "delta":
        table = DeltaTable(str(output), storage_options={"AWS_ALLOW_HTTP": "true"})
        assert table.to_pyarrow_table().num_rows == first["rows_out"]
    before = state_of(output)
    second = run_nightly(config, choice, QUIET, lambda: QUIET)
    assert (second["state"], second["done"], second["left"]) == ("ok", [], [])
    assert second["model"]["quality"] == first["model"]["quality"]
    assert state_of(output) == before
    assert json.loads((output / "_status.json").read_bytes()) == json.loads(json.dumps(second))
