"""What a driver knows of its job, and what is said before anything is sent. Real submissions: tests/e2e."""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ray._private.ray_constants import RAY_RUNTIME_ENV_DEFAULT_EXCLUDES
from ray._private.runtime_env.packaging import create_package

from ray_cfnet.cli import main, operate
from ray_cfnet.cluster.submission import check_places, stop_grace_s, submission_id, submit
from ray_cfnet.config import Config
from ray_cfnet.errors import InputError, JobError
from tests.unit.helpers import CONFIG

ROOT = Path(__file__).parents[2]


def placed(table: str, output: str) -> Config:
    written = CONFIG.model_dump(mode="json", exclude_defaults=True)
    return Config.model_validate({**written, "table": {**written["table"], "path": table}, "output": {"path": output}})


def test_a_process_that_no_job_started_has_no_submission_and_no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "{}", "no json", '{"metadata": null}'):
        if value is None:
            monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR", raising=False)
        else:
            monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", value)
        assert submission_id() is None
        assert stop_grace_s() is None


def test_grace_is_that_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"runtime_env": {}, "metadata": {"job_submission_id": "raysubmit_1"}}
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(told))
    monkeypatch.delenv("RAY_JOB_STOP_WAIT_TIME_S", raising=False)
    assert (submission_id(), stop_grace_s()) == ("raysubmit_1", 3.0)
    monkeypatch.setenv("RAY_JOB_STOP_WAIT_TIME_S", "30")
    assert stop_grace_s() == 30.0


def test_relative_paths_are_all_named_and_others_pass() -> None:
    check_places(placed("s3://bucket/table", "/shared/out"), "~/models")
    with pytest.raises(InputError, match=r"table\.path data/x, output\.path out, --bundle b\n") as refused:
        check_places(placed("data/x", "out"), "b")
    assert "s3://" in refused.value.remedy


def test_what_writes_nothing_needs_the_output_only_to_find_its_bundle() -> None:
    check_places(placed("/table", "out"), "/models/b", writes=False)
    with pytest.raises(InputError, match=r"output\.path out\n"):
        check_places(placed("/table", "out"), None, writes=False)


def test_a_cluster_that_is_not_there_is_told_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    with pytest.raises(InputError, match=r"no Ray cluster can be reached at http://127\.0\.0\.1:9") as refused:
        submit("explain", ROOT / "conf" / "loans.yaml", [], "127.0.0.1:9")
    assert "--address http://HEAD:8265" in refused.value.remedy


class Dashboard(BaseHTTPRequestHandler):
    """What `submit` needs of Ray's dashboard. It hangs up where `server.drops` says, in the middle of things."""

    def do_GET(self) -> None:
        if self.path == "/api/version":
            self.answer({"version": "4", "ray_version": "2.60.0", "ray_commit": "", "session_name": ""})
        elif self.path.startswith("/api/packages/"):
            self.answer({})
        elif self.path.endswith("/logs/tail") and self.server.drops == "with an error":
            self.send_error(502)
        elif self.path.endswith("/logs/tail") and self.server.drops == "after a line":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.end_headers()
            self.wfile.write(b"\x81\x06a line")
        self.close_connection = True

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.drops != "the job itself":
            self.answer({"job_id": "raysubmit_1", "submission_id": "raysubmit_1"})
        self.close_connection = True

    def answer(self, content: dict[str, str]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def dashboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Dashboard)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("drops", ["at once", "with an error", "after a line"])
def test_a_connection_lost_while_following_the_log_is_told_with_the_jobs_name(
    drops: str, dashboard: ThreadingHTTPServer
) -> None:
    dashboard.drops = drops
    job = submit("explain", ROOT / "conf" / "loans.yaml", [], f"127.0.0.1:{dashboard.server_port}")
    lines: list[str] = []
    with pytest.raises(JobError, match="lost the cluster while following job raysubmit_1; it may still run"):
        job.follow(lines.append)
    assert lines == (["a line"] if drops == "after a line" else [])


def test_who_stops_following_is_told_that_the_job_goes_on(
    dashboard: ThreadingHTTPServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    dashboard.drops = "after a line"
    # As in a process of its own: Ray leaves handlers behind in one that has tested other things.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    monkeypatch.setattr(operate, "write", lambda _: os.kill(os.getpid(), signal.SIGINT))
    words = ["explain", "--config", str(ROOT / "conf" / "loans.yaml"), "--input", "/table", "--output", "/out"]
    with pytest.raises(SystemExit) as ended:
        main(["submit", *words, "--address", f"127.0.0.1:{dashboard.server_port}"])
    assert ended.value.code == 130
    assert "job raysubmit_1 goes on; ray job stop raysubmit_1 ends it" in capsys.readouterr().err


def test_a_connection_lost_while_sending_is_told(dashboard: ThreadingHTTPServer) -> None:
    dashboard.drops = "the job itself"
    with pytest.raises(JobError, match="lost the cluster while sending the job"):
        submit("explain", ROOT / "conf" / "loans.yaml", [], f"127.0.0.1:{dashboard.server_port}")


def test_a_driver_refuses_relative_paths_with_2(tmp_path: Path) -> None:
    words = ["--config", str(ROOT / "conf" / "loans.yaml"), "--input", "table", "--output", "out", "--bundle", "b"]
    in_a_job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"metadata": {"job_submission_id": "raysubmit_1"}})}
    done = subprocess.run(
        [sys.executable, "-m", "ray_cfnet", "explain", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), **in_a_job},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "table.path table, output.path out, --bundle b" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_only_code_entry_points_and_configurations_are_uploaded(tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    excludes = RAY_RUNTIME_ENV_DEFAULT_EXCLUDES.split(",")
    create_package(str(ROOT), package, include_gitignore=True, excludes=excludes)
    assert package.stat().st_size < 1_000_000
    names = zipfile.ZipFile(package).namelist()
    assert {name.split("/")[0] for name in names} == {"conf", "jobs", "ray_cfnet"}
    assert {"jobs/explain.py", "jobs/nightly.py", "ray_cfnet/cli/__init__.py", "conf/loans.yaml"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
