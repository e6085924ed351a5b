"""Jobs sent to a running cluster that asks for a token, as people, schedulers and Kubernetes send them."""

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pyarrow.parquet as pq
import pytest
import yaml

from ray_cfnet.config.file import load_config
from ray_cfnet.model.store import promote
from ray_cfnet.tables.storage import Location
from tests.e2e.test_faults import UNITS, Job, records
from tests.unit import helpers, k8s_checks
from tests.unit.k8s_checks import ROOT

BIN = Path(sys.executable).parent
DAY = "ds=2026-11-11"
DAY_ROWS = 6000
ONE_UNIT = ["--set", f"explain.unit_rows={DAY_ROWS}", "--set", "cluster.num_actors=1"]
"""For jobs of which only the sending is of interest: the start of an actor is what costs time."""


def free_port() -> int:
    """Outside of the range from which Ray gives ports to its workers."""
    for port in range(21000 + secrets.randbelow(8000), 30000):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no free port")


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Head:
    """A Ray head of its own with a token, one process group on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        token = directory / "token"
        token.write_text(secrets.token_hex(32))
        self.token = token.read_text()
        ports = {name: free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
        agents = ("dashboard-agent-listen-port", "dashboard-agent-grpc-port", "metrics-export-port")
        ports |= {name: free_port() for name in agents}
        self.url = f"http://127.0.0.1:{ports['dashboard-port']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.environment = {
            **kept,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_JOB_STOP_WAIT_TIME_S": "6",  # its 3 are few for a machine that runs other tests too
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # else SIGTERM lets half a minute pass
        }
        command = [str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1"]
        command += ["--dashboard-host=127.0.0.1", f"--temp-dir={directory}"]
        command += [f"--{name}={port}" for name, port in ports.items()]
        # As in the image: the installed package is there without an upload.
        environment = {**self.environment, "PYTHONPATH": str(ROOT)}
        self.log = directory / "head.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=directory, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def wait(self) -> None:
        limit = time.monotonic() + 120
        while True:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit, self.log.read_text()
            try:
                # Without nodes the answer is empty, and a job would wait for ever.
                if json.loads(self.get("/nodes?view=summary"))["data"]["summary"]:
                    return
            except (HTTPError, URLError, ConnectionError, TimeoutError):
                pass
            time.sleep(0.5)

    def get(self, path: str, method: str = "GET") -> str:
        request = Request(self.url + path, headers={"Authorization": f"Bearer {self.token}"}, method=method)
        with urlopen(request, timeout=10) as answer:
            return answer.read().decode()

    def job(self, submission_id: str) -> dict:
        return json.loads(self.get(f"/api/jobs/{submission_id}"))

    def start(self, *command: str, **variables: str) -> "subprocess.Popen[str]":
        environment = {**self.environment, "RAY_API_SERVER_ADDRESS": self.url, "PYTHONPATH": str(ROOT), **variables}
        pipe = subprocess.PIPE
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)

    def ended(self, process: "subprocess.Popen[str]") -> Ended:
        try:
            out, err = process.communicate(timeout=240)
        finally:
            process.kill()
        assert self.token not in out + err
        return Ended(process.returncode, out, err)

    def ray_job_submit(self, *words: str, working_dir: Path | None = None) -> "subprocess.Popen[str]":
        options = ["--working-dir", str(working_dir)] if working_dir else []
        return self.start(str(BIN / "ray"), "job", "submit", *options, "--", *words)

    def start_submit(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        return self.start(sys.executable, "-m", "ray_cfnet", "submit", *arguments, **variables)

    def submit(self, *arguments: str, **variables: str) -> Ended:
        return self.ended(self.start_submit(*arguments, **variables))

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:  # a busy machine
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="rc-", ignore_cleanup_errors=True) as directory:
        head = Head(Path(directory))
        try:
            head.wait()
            yield head
        finally:
            head.stop()


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A table in four partitions of many small units, and a bundle."""
    return Job(tmp_path_factory.mktemp("people"), {})


def options(people: Job, output: Path, *more: str) -> list[str]:
    return ["--bundle", str(people.bundle), "--output", str(output), "--partition", DAY, *more]


def only_manifest(output: Path) -> dict:
    [place] = output.glob("_runs/*/manifest.json")
    return json.loads(place.read_text())


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.02)


def submission_of(text: str) -> str:
    return re.search(r"raysubmit_\w+", text)[0]


def test_ray_job_submit_explains_and_evaluates_from_the_uploaded_directory_and_the_manifest_names_the_job(
    head: Head, people: Job, tmp_path: Path
) -> None:
    upload = tmp_path / "checkout"
    for name in ("conf", "jobs", "ray_cfnet"):
        shutil.copytree(ROOT / name, upload / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".rayignore", upload)
    shutil.copy(people.directory / "people.yaml", upload / "conf")
    (upload / "out").mkdir()
    (upload / "out" / "big").write_bytes(secrets.token_bytes(1000))
    words = ["--config", "conf/people.yaml", *ONE_UNIT]
    day = ["--input", str(people.directory / "people" / DAY), "--bundle", str(people.bundle), "--json"]
    # Meanwhile, because starting jobs takes longer than what they do.
    measured = head.ray_job_submit("python", "jobs/evaluate.py", *words, *day, working_dir=upload)
    few = [
        "--set",
        "training.epochs=1",
        "--set",
        "training.max_reject_fraction=0.01",
        "--output",
        str(tmp_path / "trained"),
        "--json",
    ]
    trained = head.ray_job_submit("python", "jobs/train.py", *words, *day[:2], *few, working_dir=upload)
    words += options(people, tmp_path / "out")
    done = head.ended(head.ray_job_submit("python", "jobs/explain.py", *words, working_dir=upload))
    assert done.code == 0, done.text
    manifest = only_manifest(tmp_path / "out")
    assert manifest["submission_id"] == submission_of(done.text)
    assert (manifest["rows_in"], list(manifest["partitions"])) == (DAY_ROWS, [DAY])
    done = head.ended(measured)
    assert done.code == 0, done.text
    figures = json.loads(re.search(r"^\{.*\}$", done.out, re.MULTILINE)[0])
    assert figures["model_id"] == people.bundle.name
    assert figures["rows"] + figures["rows_rejected"] == DAY_ROWS * 0.2, "the test split"
    assert 0 < figures["accuracy"] < 1
    done = head.ended(trained)
    assert done.code == 0, done.text
    assert Path(json.loads(re.search(r"^\{.*\}$", done.out, re.MULTILINE)[0])["bundle"], "bundle.json").exists()
    uploaded = [place.parents[1] for place in head.directory.rglob("working_dir_files/*/jobs/explain.py")]
    assert uploaded
    assert not any((place / "out").exists() for place in uploaded), ".rayignore keeps results at home"


def test_submit_follows_the_log_and_tells_the_job_and_its_page(head: Head, people: Job, tmp_path: Path) -> None:
    arguments = options(people, tmp_path / "out", *ONE_UNIT, "--address", head.url)
    done = head.submit(
        "explain", "--config", str(people.directory / "people.yaml"), *arguments, RAY_API_SERVER_ADDRESS=""
    )
    assert done.code == 0, done.text
    submission = submission_of(done.err)
    assert f"{head.url}/#/jobs/{submission}" in done.err
    assert f"{DAY_ROWS:,} rows in" in done.out
    assert only_manifest(tmp_path / "out")["submission_id"] == submission
    assert head.job(submission)["entrypoint"].startswith("python -m ray_cfnet explain --config people.yaml ")


def test_a_failing_job_fails_whoever_sent_it(head: Head, people: Job, tmp_path: Path) -> None:
    words = ("python", "jobs/explain.py", "--config", "conf/nowhere.yaml")
    wrong = head.ray_job_submit(*words, working_dir=ROOT)  # two at a time: starting them is what takes time
    arguments = ["--bundle", str(tmp_path / "none"), "--output", str(tmp_path / "out"), "--json"]
    done = head.submit("explain", "--config", str(people.directory / "people.yaml"), *arguments)
    result = json.loads(done.out)
    assert (done.code, result["status"], result["exit_code"]) == (2, "FAILED", 2)
    assert "no bundle here" in done.err
    code, out, err = head.ended(wrong)
    assert code == 1
    assert head.job(submission_of(out + err))["driver_exit_code"] == 2
    assert "conf/nowhere.yaml: 1 fault" in out


def test_what_cannot_work_is_refused_before_it_is_sent(head: Head, people: Job, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(secrets.token_hex(32))
    other_token = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"), "RAY_AUTH_TOKEN": ""}
    cases: list[tuple[str, list[str], dict[str, str]]] = [
        ("output.path out", ["--output", "out"], {}),
        ("No such option: --partitions", ["--output", "/out", "--partitions", "x"], {}),
        ("did you mean epochs?", ["--output", "/out", "--set", "training.epoch=3"], {}),
        ("wants another token", ["--output", "/out"], other_token),
    ]
    words = ["explain", "--config", str(people.directory / "people.yaml")]
    sent = [head.start_submit(*words, *arguments, **variables) for _, arguments, variables in cases]
    for (said, _, _), process in zip(cases, sent, strict=True):
        done = head.ended(process)
        assert done.code == 2, done.text
        assert said in done.err


@pytest.mark.timeout(600)
def test_a_stopped_job_ends_within_its_grace_and_goes_on_when_it_is_sent_again(
    head: Head, people: Job, tmp_path: Path
) -> None:
    output, file = tmp_path / "out", str(people.directory / "people.yaml")
    arguments = ["--bundle", str(people.bundle), "--output", str(output), "--set", "cluster.num_actors=1"]
    sent = head.submit("explain", "--config", file, "--no-wait", *arguments)
    assert sent.code == 0, sent.text
    submission = submission_of(sent.err)
    wait_until(lambda: len(records(output)) >= 3)
    # What `ray job stop` asks for, without the seconds that it takes to start.
    head.get(f"/api/jobs/{submission}/stop", method="POST")
    wait_until(lambda: head.job(submission)["status"] == "STOPPED")
    log = json.loads(head.get(f"/api/jobs/{submission}/logs"))["logs"]
    assert "error: stopped by a signal" in log, f"killed before it could speak:\n{log}"
    assert 3 <= len(records(output)) < UNITS
    again = head.submit("explain", "--config", file, *arguments)
    assert again.code == 0, again.text
    assert "units were done by an earlier attempt" in again.out
    assert only_manifest(output)["rows_in"] == 4 * DAY_ROWS


@pytest.mark.timeout(600)
def test_the_rayjobs_entry_points_run_as_they_stand_in_the_manifests(head: Head, people: Job, tmp_path: Path) -> None:
    documents = k8s_checks.render(ROOT / "k8s" / "overlays" / "cpu")
    table, output, conf = tmp_path / "people", tmp_path / "out", tmp_path / "conf" / "ours.yaml"
    for number, day in enumerate(("ds=2026-11-13", "ds=2026-11-14", "ds=2026-11-15")):
        (table / day).mkdir(parents=True)
        pq.write_table(helpers.people(900).slice(300 * number, 300), table / day / "rows.parquet")
    small = yaml.safe_load((people.directory / "people.yaml").read_text())
    conf.parent.mkdir()
    conf.write_text(yaml.safe_dump({**small, "training": {"epochs": 1}}))
    ours, store = load_config(conf), Location.of(output / "_models")
    settings = k8s_checks.settings_of(documents)
    settings |= {"CONFIG": "ours.yaml", "TABLE": str(table), "OUTPUT": str(output), "NUM_ACTORS": "1"}
    settings |= {"NUM_WORKERS": "1", "MAX_PARTITIONS": "1"}
    # The mounted ConfigMap is a directory here; all else is the command line of the manifest.
    lines = {
        name: [word.replace("/etc/ray-cfnet/", f"{conf.parent}/") for word in words]
        for name, words in k8s_checks.command_lines(documents).items()
    }

    def check(name: str, process: "subprocess.Popen[str]") -> None:
        done = head.ended(process)
        assert done.code == 0, f"{name}: {shlex.join(lines[name])}\n{done.text}"

    first = promote(people.bundle, store, ours, "a test").to_id
    # Both at a time, for the waits in them.
    both = {name: head.ray_job_submit(*lines[name]) for name in ("ray-cfnet-train", "ray-cfnet-explain")}
    for name, process in both.items():
        check(name, process)
    [trained] = [place.parent for place in output.glob("_models/*/bundle.json") if place.parent.name != first]
    promote(Location.of(trained), store, ours, "a test")
    check("ray-cfnet-nightly", head.ray_job_submit(*lines["ray-cfnet-nightly"]))
    assert set(lines) == {*both, "ray-cfnet-nightly"}, "every RayJob was run"
    explained = [json.loads(place.read_text())["partitions"] for place in output.glob("_runs/*/manifest.json")]
    assert sorted(partition for run in explained for partition in run) == ["ds=2026-11-14", "ds=2026-11-15"]
    status = json.loads((output / "_status.json").read_text())
    assert (status["state"], status["left"]) == ("ok", ["ds=2026-11-13"])
    assert status["model"]["id"] == trained.name
