"""Whatever dies on the way, a run that is started again ends with the rows of an uninterrupted one."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
import yaml
from moto.server import ThreadedMotoServer
from pyarrow import fs as pafs
from ray.cluster_utils import Cluster

from ray_cfnet.tables.lock import exclusive, who
from ray_cfnet.tables.storage import Location
from tests.unit.helpers import CONFIG, people, untrained_bundle

ROWS, UNIT_ROWS, PARTITIONS = 24_000, 200, 4
UNITS = ROWS // UNIT_ROWS


class Job:
    """A table, a bundle and a configuration on disk, and processes that explain it."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = {**os.environ, **environment}
        table = people(ROWS)
        missing = pa.array([number % 400 == 7 for number in range(ROWS)])
        rate = pa.compute.if_else(missing, pa.scalar(None, pa.float64()), table.column("rate"))
        table = table.set_column(table.column_names.index("rate"), "rate", rate)
        for number in range(PARTITIONS):
            place = directory / "people" / f"ds=2026-11-{number + 10}"
            place.mkdir(parents=True)
            part = table.slice(number * ROWS // PARTITIONS, ROWS // PARTITIONS)
            pq.write_table(part, place / "rows.parquet", row_group_size=UNIT_ROWS)
        self.bundle = untrained_bundle().save(Location.of(directory / "models"))
        settings = CONFIG.model_dump(mode="json", exclude_defaults=True)
        settings["table"]["path"] = str(directory / "people")
        settings["explain"] = {"unit_rows": UNIT_ROWS, "retries": 2}
        (directory / "people.yaml").write_text(yaml.safe_dump(settings))

    def start(self, output: Path | str, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ray_cfnet", "explain", "--config", str(self.directory / "people.yaml")]
        command += ["--bundle", str(self.bundle), "--output", str(output), "--json", *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self.environment)


def ended(process: subprocess.Popen[str]) -> dict:
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return json.loads(out)


def records(output: Path) -> list[Path]:
    return list(output.glob("_runs/*/units/*.json"))


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        assert process.poll() is None, f"ended early: {process.communicate()}"
        time.sleep(0.02)


def rows_of(output: Path | str, filesystem: pafs.FileSystem | None = None) -> tuple[pa.Table, pa.Table]:
    """(explained rows, rejected rows), sorted by key, with their partitions."""
    found = []
    for place in (str(output), f"{output}/_rejects"):
        filesystem = filesystem or pafs.LocalFileSystem()
        files = [info.path for info in filesystem.get_file_info(pafs.FileSelector(place, recursive=True))]
        parts = [path for path in files if path.endswith(".parquet") and "/_" not in path[len(place) :]]
        dataset = pads.dataset(parts, filesystem=filesystem, partitioning="hive", partition_base_dir=place)
        found.append(dataset.to_table().sort_by("id"))
    return found[0], found[1]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head without work and two nodes for it, all on this machine."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def job(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("job"), {"RAY_ADDRESS": cluster.address})


@pytest.fixture(scope="module")
def expected(job: Job) -> tuple[pa.Table, pa.Table]:
    """What an uninterrupted run writes."""
    output = job.directory / "uninterrupted"
    result = ended(job.start(output))
    assert (result["rows_in"], result["rows_rejected"]) == (ROWS, ROWS // 400)
    rows = rows_of(output)
    assert rows[0].num_rows + rows[1].num_rows == ROWS
    return rows


def check_same(output: Path, expected: tuple[pa.Table, pa.Table]) -> None:
    for found, wanted in zip(rows_of(output), expected, strict=True):
        assert found.equals(wanted)
    leftovers = [path.name for path in output.glob("_runs/*/*")]
    assert leftovers == ["manifest.json"]
    assert not list(output.glob("ds=*/.*")), "no half files beside the rows"


def test_the_driver_is_killed_at_five_random_moments(job: Job, expected: tuple[pa.Table, pa.Table]) -> None:
    """And no unit is done twice, and the finished run does nothing when it is started again."""
    output, seed = job.directory / "killed", random.randrange(10**6)
    moments = random.Random(seed)
    for _ in range(5):
        before = len(records(output))
        if before >= UNITS:
            break
        process = job.start(output)
        wait_for(lambda before=before: len(records(output)) > before, process)
        time.sleep(moments.uniform(0, 0.5))
        process.kill()
        process.communicate()
    done = [place.stem for place in records(output)]
    assert done, f"seed {seed}: nothing was done before the kills"
    written = {identity(path): path.stat().st_mtime_ns for path in output.rglob("part-*.parquet")}
    again = job.start(output)
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, f"seed {seed}: {err}"
    told = re.search(rf"(\d+) of {UNITS} units were done by an earlier attempt", err)
    # The killed driver's actors may have finished a unit more; all may be done by now.
    assert len(done) <= (int(told[1]) if told else UNITS), f"seed {seed}: {err}"
    assert json.loads(out)["rows_in"] == ROWS
    for path in output.rglob("part-*.parquet"):
        if path.name.split("-")[1] in done:
            assert path.stat().st_mtime_ns == written[identity(path)], f"seed {seed}: {path} was written again"
    check_same(output, expected)
    before_again = times(output)
    assert ended(job.start(output))["already_done"]
    assert times(output) == before_again


def times(output: Path) -> dict[Path, int]:
    """When each file was written, but for the lock, which every run writes."""
    return {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file() and path.name != ".lock"}


def identity(path: Path) -> tuple[bool, str]:
    """A file of a run, staged or in place: of a unit's rows or of its rejects."""
    return "_rejects" in path.parts, path.name


def test_sigterm_finishes_the_unit_and_gives_the_lock_back(job: Job, expected: tuple[pa.Table, pa.Table]) -> None:
    output = job.directory / "stopped"
    process = job.start(output)
    wait_for(lambda: len(records(output)) > 3, process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "stopped by a signal" in err
    assert 3 < len(records(output)) < UNITS
    assert not list(output.glob("_runs/*/staging/**/.part*")), "no unit was cut in the middle"
    ended(job.start(output))
    check_same(output, expected)


def test_a_second_run_on_the_same_output_is_refused_with_the_holders_name(job: Job) -> None:
    output = job.directory / "held"
    with exclusive(Location.of(output / "_runs"), "run 12ab"):
        process = job.start(output)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"held by run 12ab of {who()} (process {os.getpid()})" in err


def processes(title: str) -> list[int]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if title in place.read_text():
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def below(pid: int) -> set[int]:
    """A process and all that it started."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(place.parent.name))
    found, waiting = set(), [pid]
    while waiting:
        found.add(waiting[-1])
        waiting += children.get(waiting.pop(), [])
    return found


def test_an_actor_is_killed(job: Job, expected: tuple[pa.Table, pa.Table]) -> None:
    output = job.directory / "actor"
    process = job.start(output)
    wait_for(lambda: len(records(output)) > 3, process)
    actors = [pid for pid in processes("ray::MapWorker") if pid in below(os.getpid())]
    assert actors
    os.kill(actors[0], signal.SIGKILL)
    ended(process)
    check_same(output, expected)


def test_a_node_is_lost(cluster: Cluster, job: Job, expected: tuple[pa.Table, pa.Table]) -> None:
    output = job.directory / "node"
    process = job.start(output)
    wait_for(lambda: len(records(output)) > 3, process)
    lost = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
    cluster.remove_node(lost, allow_graceful=False)
    try:
        ended(process)
    finally:
        cluster.add_node(num_cpus=1)
    check_same(output, expected)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a tmpfs needs privileges")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_told_and_room_lets_the_run_go_on(
    small_disk: Path, job: Job, expected: tuple[pa.Table, pa.Table]
) -> None:
    output = small_disk / "out"
    process = job.start(output)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "No space left on device" in err
    assert "units are left; run again to go on" in err
    assert 0 < len(records(output)) < UNITS
    subprocess.run(["mount", "-o", "remount,size=64m", str(small_disk)], check=True)
    ended(job.start(output))
    check_same(output, expected)


def body_of(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    body = b""
    while size := int(request.rfile.readline().split(b";")[0], 16):
        body += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return body


class MoodyServer:
    """Stands before a real S3 API server and lets every n-th request fail or wait for a while."""

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self.count = 0
        self.failed = self.waited = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                server.answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = body_of(request)
        with self.lock:
            self.count += 1
            number = self.count
            fails, waits = number % 17 == 0, number % 101 == 0
            self.failed += fails
            self.waited += waits
        if fails:
            status, headers, content = (500, 503)[number % 2], {}, b""
        else:
            if waits:
                time.sleep(2)
            status, headers, content = self._real(request, body)
        request.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                request.send_header(name, value)
        length = headers.get("Content-Length") if request.command == "HEAD" and headers else str(len(content))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(content)

    def _real(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        kept = (
            name for name in request.headers if name.lower() not in ("content-length", "transfer-encoding", "expect")
        )
        headers = {name: request.headers[name] for name in kept}
        passed = Request(self.behind + request.path, body or None, headers, method=request.command)
        try:
            with urlopen(passed, timeout=30) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except HTTPError as error:
            return error.code, dict(error.headers), error.read()


def test_an_s3_server_that_fails_and_hangs_now_and_then(
    job: Job, expected: tuple[pa.Table, pa.Table], tmp_path: Path
) -> None:
    real = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    real.start()
    try:
        behind = f"http://127.0.0.1:{real.get_host_and_port()[1]}"
        moody = MoodyServer(behind)
        access = {"access_key": "test", "secret_key": "test", "region": "us-east-1"}
        bucket = pafs.S3FileSystem(endpoint_override=behind, allow_bucket_creation=True, **access)
        bucket.create_dir("nightly")
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
        elsewhere = Job(tmp_path, {**keys, "AWS_ENDPOINT_URL": moody.address, "RAY_ADDRESS": ""})
        shutil.rmtree(tmp_path / "people")
        (tmp_path / "people").symlink_to(job.directory / "people")
        result = ended(elsewhere.start("s3://nightly/out", "--set", "explain.unit_rows=2000"))
        assert result["rows_in"] == ROWS
        assert moody.failed > 3
        assert moody.waited > 0
        for found, wanted in zip(rows_of("nightly/out", bucket), expected, strict=True):
            assert found.drop_columns(["run_id"] if "run_id" in found.column_names else []).equals(
                wanted.drop_columns(["run_id"] if "run_id" in wanted.column_names else [])
            )
    finally:
        real.stop()
