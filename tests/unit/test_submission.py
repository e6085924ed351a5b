"""What a driver knows of its job, and what is said before anything is sent. Real submissions: tests/e2e."""

import json
import zipfile
from pathlib import Path

import pytest
from ray._private.ray_constants import RAY_RUNTIME_ENV_DEFAULT_EXCLUDES
from ray._private.runtime_env.packaging import create_package

from ray_cfnet.cluster.submission import check_places, stop_grace_s, submission_id, submit
from ray_cfnet.config import Config
from ray_cfnet.errors import InputError
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


def test_only_code_entry_points_and_configurations_are_uploaded(tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    excludes = RAY_RUNTIME_ENV_DEFAULT_EXCLUDES.split(",")
    create_package(str(ROOT), package, include_gitignore=True, excludes=excludes)
    assert package.stat().st_size < 1_000_000
    names = zipfile.ZipFile(package).namelist()
    assert {name.split("/")[0] for name in names} == {"conf", "jobs", "ray_cfnet"}
    assert {"jobs/explain.py", "jobs/nightly.py", "ray_cfnet/cli.py", "conf/loans.yaml"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
