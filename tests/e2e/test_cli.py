"""The command line as a person or a scheduler runs it: processes, exit codes, standard output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.main import get_command

from ray_cfnet.cli import app

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "ray_cfnet"]


def run(*arguments: str, command: list[str] = COMMAND, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}, timeout=280
    )


def test_no_command_or_option_vanishes_unnoticed() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    found = {name: sorted(option for p in command.params for option in p.opts) for name, command in commands.items()}
    common = ["--config", "--json", "--set", "-c", "-s"]
    assert found == {
        "train": sorted([*common, "--output", "-o", "--input", "-i"]),
        "explain": sorted([*common, "--bundle", "-b", "--output", "-o", "--input", "-i", "--partition", "-p"]),
        "evaluate": sorted([*common, "--bundle", "-b", "--input", "-i", "--split", "--against"]),
        "demo": sorted([*common, "--output", "-o"]),
        "config": sorted(common),
    }


@pytest.mark.parametrize("command", ["train", "explain", "evaluate", "demo"])
def test_help_teaches_with_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    assert f"Example: ray-cfnet {command}" in " ".join(result.stdout.split())


def test_config_checks_a_file_and_prints_the_schema() -> None:
    assert run("config", "--config", "conf/loans.yaml").returncode == 0
    checked = run("config", "check", "--config", "conf/loans.yaml", "--set", "training.epochs=7", "--json")
    assert json.loads(checked.stdout)["config"]["training"]["epochs"] == 7
    schema = json.loads(run("config", "schema").stdout)
    assert set(schema["properties"]) == {
        "table", "split", "model", "training", "cluster", "explain", "evaluate", "output",
    }  # fmt: skip


def test_a_wrong_configuration_exits_with_2_and_lists_every_fault(tmp_path: Path) -> None:
    text = (ROOT / "conf" / "adult.yaml").read_text()
    (tmp_path / "c.yaml").write_text(text.replace("[17, 90]", "[90, 17]").replace("epochs:", "epoch:"))
    result = run("train", "--config", str(tmp_path / "c.yaml"))
    assert result.returncode == 2
    assert "table.features.age.bounds: lower 90 > upper 17" in result.stderr
    assert "training.epoch: unknown key; did you mean epochs?" in result.stderr


def test_a_missing_table_exits_with_2_and_a_remedy() -> None:
    result = run("train", "--config", "conf/adult.yaml", "--input", "/nowhere/adult.parquet", "--json")
    assert result.returncode == 2
    assert "/nowhere/adult.parquet: no such file" in result.stderr
    assert json.loads(result.stdout)["error"]["kind"] == "InputError"


def test_a_wrong_option_exits_with_2() -> None:
    assert run("train", "--confg", "x").returncode == 2


def test_train_explain_and_evaluate_as_processes_print_one_json_object_each(tmp_path: Path) -> None:
    paths = ("--set", f"table.path={tmp_path}/loans", "--set", "table.sample.rows=800")
    train = run(
        "train",
        "--config",
        "conf/loans.yaml",
        "--output",
        str(tmp_path),
        "--json",
        *paths,
        "--set",
        "training.epochs=2",
    )
    assert train.returncode == 0, train.stderr
    trained = json.loads(train.stdout)
    assert {"bundle", "model_id", "epochs", "metrics"} <= trained.keys()
    assert "training 2/2" in train.stderr

    # As `ray job submit` starts it, and with a bad row that must not stop the job.
    file = tmp_path / "loans" / "ds=2026-11-15" / "part-0.parquet"
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.set_column(1, "age", pa.array([None, *table.column("age").to_pylist()[1:]])), file)
    job = [sys.executable, "jobs/explain.py"]
    arguments = ("--config", "conf/loans.yaml", "--bundle", trained["bundle"], "--partition", "ds=2026-11-15", "--json")
    explain = run(*arguments, "--output", f"{tmp_path}/out", *paths, command=job)
    assert explain.returncode == 0, explain.stderr
    explained = json.loads(explain.stdout)
    assert (explained["rows_in"], explained["rows_out"], explained["rows_rejected"]) == (100, 99, 1)
    contract = {"run_id", "model_id", "rows_in", "rows_out", "rows_rejected", "seconds", "rows_per_s", "output"}
    assert contract <= explained.keys()

    evaluate = run("evaluate", "--config", "conf/loans.yaml", "--bundle", trained["bundle"], "--json", *paths)
    assert evaluate.returncode == 0, evaluate.stderr
    metrics = json.loads(evaluate.stdout)
    assert {"rows", "accuracy", "cf", "fcf"} <= metrics.keys()
    assert metrics["fcf"]["violations"] == 0


def test_a_failed_job_exits_with_1(tmp_path: Path) -> None:
    # The output cannot be written: its parent is a file.
    (tmp_path / "file").write_text("")
    bundle = ROOT / "tests" / "data" / "bundle-v1"
    from tests.unit.helpers import people

    pq.write_table(people(20), tmp_path / "people.parquet")
    result = run(
        "explain", "--config", "conf/adult.yaml", "--bundle", str(bundle),
        "--input", str(tmp_path / "people.parquet"), "--output", str(tmp_path / "file" / "out"),
    )  # fmt: skip
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "error:" in result.stderr
