"""The script of the CronJobs, run as the manifests run it, with a kubectl that writes down what it is asked."""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml

from ray_cfnet.config.file import load_config
from tests.unit.k8s_checks import CONF, ROOT, Document, named, options_of, render, settings_of

KUBECTL = """#!/bin/sh
echo "$@" >> "$RECORD/calls"
case "$1" in
  get) cat "$RECORD/$3.json" ;;
  create)
    cat > "$RECORD/created.json"
    echo "$CREATE_STDERR" >&2
    exit "$CREATE_EXIT" ;;
esac
"""


class Start:
    """A rendered overlay, its script on disk and the fake kubectl."""

    def __init__(self, overlay: str, directory: Path) -> None:
        self.documents = render(ROOT / "k8s" / "overlays" / overlay)
        self.directory = directory
        script = named(self.documents, "ConfigMap", "ray-cfnet-start")["data"]["start.py"]
        (directory / "start.py").write_text(script)
        (directory / "kubectl").write_text(KUBECTL)
        (directory / "kubectl").chmod(0o755)

    def run(self, name: str, stderr: str = "", code: int = 0, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Runs the CronJob's container: its command, arguments and variables."""
        cron = named(self.documents, "CronJob", name)
        container = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
        assert container["command"] == ["python", "/opt/start/start.py"]
        template = named(self.documents, "RayJob", name)
        template = {**template, "metadata": {**template["metadata"], "uid": "1", "resourceVersion": "2"}}
        (self.directory / f"{name}.json").write_text(json.dumps({**template, "status": {"jobId": "x"}}))
        given = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        environment = {
            **settings_of(self.documents),
            **given,
            "JOB_NAME": f"{name}-29384930",
            "JOB_UID": "3c9b",
            "PATH": f"{self.directory}:{os.environ['PATH']}",
            "RECORD": str(self.directory),
            "CREATE_STDERR": stderr,
            "CREATE_EXIT": str(code),
            **variables,
        }
        command = [sys.executable, str(self.directory / "start.py"), *container["args"]]
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    @property
    def created(self) -> Document:
        return json.loads((self.directory / "created.json").read_text())


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    return Start(getattr(request, "param", "cpu"), tmp_path)


def test_creates_the_job_of_the_day_from_its_template(start: Start) -> None:
    done = start.run("ray-cfnet-explain", DATE="2026-11-15")
    assert done.returncode == 0, done.stderr
    calls = (start.directory / "calls").read_text().splitlines()
    assert calls == ["get rayjobs.ray.io ray-cfnet-explain -o json", "create -f -"]
    job = start.created
    assert job["metadata"]["name"] == "ray-cfnet-explain-2026-11-15"
    assert job["metadata"]["labels"]["ray-cfnet/date"] == "2026-11-15"
    assert set(job["metadata"]) == {"name", "labels", "ownerReferences"}
    assert "status" not in job
    template = named(start.documents, "RayJob", "ray-cfnet-explain")["spec"]
    assert job["spec"] == {**template, "suspend": False, "entrypoint": job["spec"]["entrypoint"]}
    command, options = options_of(job["spec"]["entrypoint"].split())
    assert command == "explain"
    assert options["partition"] == "ds=2026-11-15"
    assert options["bundle"] == "s3://example-bucket/explained/loans/_models"
    assert "cluster.num_actors=[1,16]" in options["overrides"]


def test_a_range_of_actors_comes_through_the_shells_as_a_range(start: Start) -> None:
    start.run("ray-cfnet-nightly", DATE="2026-11-15", NUM_ACTORS="[1,2]")
    entrypoint = start.created["spec"]["entrypoint"]
    for _ in range(2):  # the submitter's and the job's
        entrypoint = subprocess.run(["sh", "-c", f"echo {entrypoint}"], capture_output=True, text=True).stdout
    _, options = options_of(entrypoint.split())
    assert load_config(CONF / "loans.yaml", options["overrides"]).cluster.num_actors == [1, 2]


def test_job_goes_with_the_cronjobs_history(start: Start) -> None:
    start.run("ray-cfnet-explain", DATE="2026-11-15")
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "ray-cfnet-explain-29384930", "uid": "3c9b"}
    assert start.created["metadata"]["ownerReferences"] == [owner]


def test_second_start_of_a_day_is_a_success_that_starts_nothing(start: Start) -> None:
    message = 'Error from server (AlreadyExists): rayjobs.ray.io "ray-cfnet-explain-2026-11-15" already exists'
    done = start.run("ray-cfnet-explain", stderr=message, code=1, DATE="2026-11-15")
    assert done.returncode == 0
    assert done.stdout == "ray-cfnet-explain-2026-11-15 was started before; nothing to do\n"


@pytest.mark.parametrize(
    "message",
    [
        "Error from server (Forbidden): rayjobs.ray.io is forbidden",
        'error: file "already exists" is not what the server says',
    ],
)
def test_any_other_failure_is_one(message: str, start: Start) -> None:
    done = start.run("ray-cfnet-explain", stderr=message, code=1, DATE="2026-11-15")
    assert done.returncode == 1
    assert message in done.stderr


def test_missing_template_is_a_failure(start: Start) -> None:
    (start.directory / "kubectl").write_text("#!/bin/sh\necho 'Error from server (NotFound)' >&2\nexit 1\n")
    done = start.run("ray-cfnet-explain", DATE="2026-11-15")
    assert done.returncode == 1
    assert "NotFound" in done.stderr


@pytest.mark.parametrize(("name", "days"), [("ray-cfnet-nightly", 1), ("ray-cfnet-explain", 1), ("ray-cfnet-train", 0)])
def test_date_is_that_of_the_time_zone(name: str, days: int, start: Start) -> None:
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):  # 26 hours apart: never on the same day
        before = datetime.now(UTC)
        assert start.run(name, TIME_ZONE=zone).returncode == 0
        moments = (before, datetime.now(UTC))
        dates = {(moment.astimezone(ZoneInfo(zone)) - timedelta(days=days)).date() for moment in moments}
        assert start.created["metadata"]["name"] in {f"{name}-{date}" for date in dates}


@pytest.mark.parametrize(
    "variables",
    [{"DATE": "15.11.2026"}, {"TABLE": "s3://bucket/$(id)"}, {"TABLE": ""}, {"OUTPUT": "s3://bucket/a b"}],
    ids=str,
)
def test_value_that_a_shell_would_read_otherwise_is_refused(variables: dict[str, str], start: Start) -> None:
    done = start.run("ray-cfnet-explain", **{"DATE": "2026-11-15", **variables})
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert not (start.directory / "created.json").exists()


def test_unknown_time_zone_is_a_failure(start: Start) -> None:
    assert start.run("ray-cfnet-explain", TIME_ZONE="Europe/Nowhere").returncode != 0
    assert not (start.directory / "created.json").exists()


@pytest.mark.parametrize("start", ["kueue"], indirect=True)
def test_queue_is_on_the_job_and_not_on_the_template(start: Start) -> None:
    start.run("ray-cfnet-train", DATE="2026-11-15")
    assert start.created["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "ray-cfnet"
    assert start.created["metadata"]["name"] == "ray-cfnet-train-2026-11-15"


def test_without_a_queue_a_job_waits_for_none(start: Start) -> None:
    start.run("ray-cfnet-train", DATE="2026-11-15")
    assert not [label for label in start.created["metadata"]["labels"] if "kueue" in label]


BY_HAND = """#!/bin/sh
case "$*" in
  *" create job "*) sed "s/NAME/$5/" "$RECORD/job.json" ;;
  "set env --local "*) exec "$REAL" "$@" ;;
  "create -f -")
    cat > "$RECORD/given"
    name=$(sed -n 's/^  name: //p' "$RECORD/given")
    test ! -e "$RECORD/$name.yaml" || { echo "Error from server (AlreadyExists): $name" >&2; exit 1; }
    mv "$RECORD/given" "$RECORD/$name.yaml" ;;
esac
"""
"""kubectl, with an API server that takes a name once."""

MANUAL = (ROOT / "docs" / "operations.md").read_text()
START = re.search(r"^start\(\) \{.*?^\}$", MANUAL, re.MULTILINE | re.DOTALL)[0]


def started_twice(function: str, start: Start) -> tuple[int, list[Document]]:
    """The exit code and the Jobs of one day's second start, as the manual does it."""
    job = named(start.documents, "CronJob", "ray-cfnet-nightly")["spec"]["jobTemplate"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "NAME"}, "spec": job}
    (start.directory / "job.json").write_text(json.dumps(job))
    environment = {
        "PATH": f"{start.directory}:{os.environ['PATH']}",
        "RECORD": str(start.directory),
        "REAL": shutil.which("kubectl") or "",
    }
    (start.directory / "kubectl").write_text(BY_HAND)
    once = "start ray-cfnet-nightly 2026-11-14"
    done = subprocess.run(["bash", "-c", f"{function}\n{once} && sleep 1 && {once}"], env=environment)
    return done.returncode, [yaml.safe_load(file.read_text()) for file in sorted(start.directory.glob("*.yaml"))]


def test_the_manuals_start_can_be_repeated_and_hands_over_its_date(start: Start) -> None:
    code, jobs = started_twice(START, start)
    assert (code, len(jobs)) == (0, 2)
    for job in jobs:
        assert len(job["metadata"]["name"]) <= 63
        [container] = job["spec"]["template"]["spec"]["containers"]
        assert {"name": "DATE", "value": "2026-11-14"} in container["env"]


def test_a_start_whose_job_has_no_name_of_its_own_is_refused_the_second_time(start: Start) -> None:
    assert "-$(date +%s)" in START
    code, jobs = started_twice(START.replace("-$(date +%s)", ""), start)
    assert (code, len(jobs)) == (1, 1)
