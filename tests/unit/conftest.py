"""A bucket on a real S3 API server on loopback."""

from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs as pafs

from ray_cfnet.tables import storage
from ray_cfnet.tables.storage import Location


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Location]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    endpoint = f"http://{host}:{port}"
    filesystem = pafs.S3FileSystem(endpoint_override=endpoint, region="us-east-1", allow_bucket_creation=True)
    filesystem.create_dir("loans")
    filesystem.delete_dir_contents("loans")  # all servers of a process have the same buckets
    storage._s3.cache_clear()
    yield Location.of("s3://loans")
    storage._s3.cache_clear()
    server.stop()
