"""The command line as a person or a scheduler runs it: processes, exit codes, standard output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.main import get_command

from ray_cfnet.cli import app
from ray_cfnet.config.file import load_config
from ray_cfnet.model.store import promote
from ray_cfnet.tables.storage import Location

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
        "promote": sorted([*common, "--bundle", "-b", "--store", "--force", "--rollback"]),
        "models": ["--json", "store"],
        "runs": ["--json", "--show", "output"],
        "show": sorted(["--json", "--key", "-k", "--partition", "-p", "--bundle", "-b", "output"]),
        "report": ["--json", "--run", "--samples", "--segment", "--to", "output"],
        "sql": ["--dialect", "--json", "--write", "output"],
        "demo": sorted([*common, "--output", "-o"]),
        "submit": sorted(["--config", "-c", "--json", "--address", "--wait", "command"]),
        "nightly": sorted(
            [*common, "--output", "-o", "--input", "-i", "--since", "--until", "--max-partitions", "--re-explain"]
        ),
        "config": sorted(common),
    }


@pytest.mark.parametrize(
    "command",
    ["train", "explain", "evaluate", "promote", "models", "runs", "show", "report", "sql", "demo", "submit", "nightly"],
)
def test_help_teaches_with_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    assert f"Example: ray-cfnet {command}" in " ".join(result.stdout.split())


def test_config_checks_a_file_and_prints_the_schema() -> None:
    assert run("config", "--config", "conf/loans.yaml").returncode == 0
    checked = run("config", "check", "--config", "conf/loans.yaml", "--set", "training.epochs=7", "--json")
    assert json.loads(checked.stdout)["config"]["training"]["epochs"] == 7
    schema = json.loads(run("config", "schema").stdout)
    sections = {
        "table",
        "split",
        "model",
        "training",
        "cluster",
        "explain",
        "evaluate",
        "output",
        "promotion",
        "words",
        "nightly",
    }
    assert sections == schema["properties"].keys()


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


def test_a_table_named_by_hand_is_never_made_up(tmp_path: Path) -> None:
    arguments = ("--config", "conf/loans.yaml", "--bundle", "tests/data/bundle-v1", "--output", str(tmp_path / "out"))
    result = run("explain", *arguments, "--input", str(tmp_path / "typo"))
    assert result.returncode == 2
    assert "typo: no such file or directory" in result.stderr
    assert not (tmp_path / "typo").exists()


def test_an_empty_partition_option_is_refused(tmp_path: Path) -> None:
    from tests.unit.helpers import people

    pq.write_table(people(20), tmp_path / "people.parquet")
    arguments = ("--config", "conf/adult.yaml", "--bundle", "tests/data/bundle-v1", "--partition", "")
    result = run("explain", *arguments, "--input", str(tmp_path / "people.parquet"))
    assert result.returncode == 2
    assert "--partition is empty" in result.stderr


def test_a_wrong_option_exits_with_2() -> None:
    assert run("train", "--confg", "x").returncode == 2


def test_train_explain_and_evaluate_as_processes_print_one_json_object_each(tmp_path: Path) -> None:
    paths = ("--set", f"table.path={tmp_path}/loans", "--set", "table.sample.rows=800", "--set", "cluster.num_actors=1")
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

    # Two epochs are not good enough, so by force; from here on the store stands for the bundle.
    store = str(tmp_path / "_models")
    promote(Location.of(trained["bundle"]), Location.of(store), load_config(ROOT / "conf" / "loans.yaml"), "a test")

    # As `ray job submit` starts it, and with a bad row that must not stop the job.
    file = tmp_path / "loans" / "ds=2026-11-15" / "part-0.parquet"
    table = pq.read_table(file, partitioning=None)
    pq.write_table(table.set_column(1, "age", pa.array([None, *table.column("age").to_pylist()[1:]])), file)
    job = [sys.executable, "jobs/explain.py"]
    arguments = ("--config", "conf/loans.yaml", "--bundle", store, "--partition", "ds=2026-11-15", "--json")
    explain = run(*arguments, "--output", f"{tmp_path}/out", *paths, command=job)
    assert explain.returncode == 0, explain.stderr
    explained = json.loads(explain.stdout)
    assert (explained["rows_in"], explained["rows_out"], explained["rows_rejected"]) == (100, 99, 1)
    assert explained["model_id"] == trained["model_id"]
    contract = {"run_id", "model_id", "rows_in", "rows_out", "rows_rejected", "seconds", "rows_per_s", "output"}
    assert contract <= explained.keys()

    # Without --bundle: that of the store below the output.
    evaluate = run("evaluate", "--config", "conf/loans.yaml", "--json", *paths, "--set", f"output.path={tmp_path}")
    assert evaluate.returncode == 0, evaluate.stderr
    metrics = json.loads(evaluate.stdout)
    assert {"rows", "accuracy", "cf", "fcf"} <= metrics.keys()
    assert metrics["fcf"]["violations"] == 0
    assert metrics["model_id"] == trained["model_id"]


def test_show_prints_a_row_for_people_and_for_machines(tmp_path: Path) -> None:
    from tests.unit.loans_output import LoansOutput

    output = str(LoansOutput(tmp_path).write().output)
    shown = run("show", output, "--key", "5", COLUMNS="100")
    assert shown.returncode == 0, shown.stderr
    assert "application_id 5  (ds=2026-11-08)" in shown.stdout
    row = json.loads(run("show", output, "--key", "application_id=5", "--json").stdout)
    assert row["explanation"] in " ".join(shown.stdout.split())
    missing = run("show", output, "-k", "-1")
    assert missing.returncode == 2
    assert "no row with application_id = -1, explained or rejected, in 8 partitions" in missing.stderr


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


def test_promote_refuses_forces_and_rolls_back_with_true_exit_codes(tmp_path: Path) -> None:
    from tests.unit.helpers import CONFIG, untrained_bundle

    store = tmp_path / "_models"
    ids = []
    for accuracy in (0.85, 0.7):
        bundle = untrained_bundle()
        measured = {"validity": 0.99, "proximity": 0.1, "violations": 0}
        bundle.metrics = {"rows": 9, "accuracy": accuracy, "cf": measured, "fcf": measured}
        ids.append(bundle.save(Location.of(store)).name)
    good, bad = ids
    written = CONFIG.model_dump(mode="json")
    written |= {"output": {"path": str(tmp_path)}, "promotion": {"min_accuracy": 0.8}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(written))
    command = ("promote", "--config", str(tmp_path / "c.yaml"))

    assert run(*command, "--bundle", str(store / good)).returncode == 0
    refused = run(*command, "--bundle", str(store / bad))
    assert refused.returncode == 1
    assert f"refused {bad}; in use stays {good}" in refused.stdout
    assert "promotion.min_accuracy: accuracy 0.7 is below 0.8\n" in refused.stdout
    assert "accuracy 0.7 is below 0.845 (the current bundle's 0.85 - 0.005)" in refused.stdout
    forced = run(*command, "--bundle", str(store / bad), "--force", "we must", "--json")
    assert forced.returncode == 0
    record = json.loads(forced.stdout)
    assert (record["decision"], record["reason"], record["sequence"]) == ("forced", "we must", 3)
    back = json.loads(run(*command, "--rollback", "--json").stdout)
    assert (back["decision"], back["to_id"]) == ("rolled_back", good)
    assert run(*command, "--rollback").returncode == 2  # nothing before it

    listed = run("models", str(store), COLUMNS="120")
    assert listed.returncode == 0
    [line] = [line for line in listed.stdout.splitlines() if "CURRENT" in line]
    assert good in line
    decisions = [entry["decision"] for entry in json.loads(run("models", str(store), "--json").stdout)["history"]]
    assert decisions == ["promoted", "refused", "forced", "rolled_back"]


@pytest.mark.parametrize("options", [(), ("--bundle", "b", "--rollback"), ("--bundle", "b", "--force", " ")])
def test_promote_wants_one_thing_and_a_reason(options: tuple[str, ...]) -> None:
    assert run("promote", "--config", "conf/loans.yaml", *options).returncode == 2
