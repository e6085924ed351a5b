"""Table, bundle and output in a bucket, through a real S3 API server on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import ray
from moto.server import ThreadedMotoServer
from pyarrow import fs as pafs

from ray_cfnet.cluster.session import ray_session
from ray_cfnet.commands import run_explain, run_train
from ray_cfnet.model.bundle import Bundle
from ray_cfnet.tables import storage
from ray_cfnet.tables.storage import Location
from tests.integration.conftest import loans_config

QUIET: Any = lambda *_: None  # noqa: E731


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    names = {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, value in {**names, "AWS_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    storage._s3.cache_clear()
    pafs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True).create_dir("nightly")
    ray.shutdown()  # workers of a new session get the new environment
    with ray_session(min_cpus=3):
        yield "s3://nightly"
    server.stop()
    storage._s3.cache_clear()


@pytest.fixture(autouse=True)
def session_for_the_others(local_ray: None) -> Iterator[None]:
    yield
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=3, include_dashboard=False)


def test_train_and_explain_with_everything_in_a_bucket(bucket: str, tmp_path: Path) -> None:
    config = loans_config(
        tmp_path,
        f"table.path={bucket}/loans",
        f"output.path={bucket}/out",
        "table.sample.rows=800",
        "training.epochs=2",
    )
    trained = run_train(config, QUIET)
    assert trained["bundle"].startswith(f"{bucket}/out/_models/")
    assert Bundle.load(Location.of(trained["bundle"])).id == trained["model_id"]

    explained = run_explain(config, trained["bundle"], None, QUIET)
    assert explained["rows_out"] == 800
    files = [file.path for file in Location.of(f"{bucket}/out").files()]
    assert len(files) == 8
    table = ds.dataset([f"nightly/out/{file}" for file in files], filesystem=Location.of(bucket).fs).to_table()
    assert sorted(table.column("application_id").to_pylist()) == list(range(800))
    leftovers = [
        info.path for info in Location.of(bucket).fs.get_file_info(pafs.FileSelector("nightly", recursive=True))
    ]
    assert not [path for path in leftovers if "staging" in path or ".training/" in path]
