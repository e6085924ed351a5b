"""The manifests without a cluster: rendered by kubectl, checked by schemas and by what we promise."""

import copy
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ray_cfnet.configfile import load_config
from tests.unit import k8s_checks as checks
from tests.unit.k8s_checks import CONF, RAY_SCHEMAS, ROOT, VERSION, Document, cluster_of, named, render

K8S = ROOT / "k8s" / "overlays"
OVERLAYS = ("cpu", "gpu", "kueue")


@pytest.fixture(scope="module")
def rendered() -> dict[str, list[Document]]:
    """The documents of every overlay."""
    return {overlay: render(K8S / overlay) for overlay in OVERLAYS}


def faults(check: Callable[[list[Document]], list[str]], documents: list[Document]) -> list[str]:
    if check is checks.core_schemas:
        pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    if check is checks.ray_schemas:
        pytest.importorskip("jsonschema", reason="jsonschema is not installed")
        if not RAY_SCHEMAS.exists():
            pytest.skip("KubeRay's schemas are not beside the repository, in ../shared/k8s-schemas")
    return check(documents)


@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay_has_no_fault(overlay: str, check: Callable, rendered: dict[str, list[Document]]) -> None:
    assert faults(check, rendered[overlay]) == []


def test_config_map_holds_every_shipped_configuration_as_it_is(rendered: dict[str, list[Document]]) -> None:
    shipped = {file.name: file.read_text() for file in CONF.glob("*.yaml")}
    for documents in rendered.values():
        assert named(documents, "ConfigMap", "ray-cfnet-conf")["data"] == shipped


@pytest.mark.parametrize("file", sorted(CONF.glob("*.yaml")), ids=lambda file: file.name)
def test_mounted_configuration_loads(file: Path) -> None:
    load_config(file)


def test_gpu_overlay_shares_gpus_and_trains_on_several(rendered: dict[str, list[Document]]) -> None:
    settings = checks.settings_of(rendered["gpu"])
    assert 0 < float(settings["ACTOR_GPUS"]) < 1
    assert settings["USE_GPU"] == "true"
    assert int(settings["NUM_WORKERS"]) > 1
    group = cluster_of(named(rendered["gpu"], "RayJob", "ray-cfnet-train"))["workerGroupSpecs"][0]
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    head = cluster_of(named(rendered["gpu"], "RayJob", "ray-cfnet-train"))["headGroupSpec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in head["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_workers_come_and_go_with_the_work(overlay: str, rendered: dict[str, list[Document]]) -> None:
    for name in ("ray-cfnet-train", "ray-cfnet-explain", "ray-cfnet-nightly"):
        cluster = cluster_of(named(rendered[overlay], "RayJob", name))
        assert cluster["enableInTreeAutoscaling"] is True
        assert [group["minReplicas"] for group in cluster["workerGroupSpecs"]] == [0]


def test_kueue_gets_a_cluster_of_one_size_and_a_queue_that_is_there(rendered: dict[str, list[Document]]) -> None:
    for name in ("ray-cfnet-train", "ray-cfnet-explain", "ray-cfnet-nightly"):
        job = named(rendered["kueue"], "RayJob", name)
        assert cluster_of(job)["enableInTreeAutoscaling"] is False
        assert job["spec"]["shutdownAfterJobFinishes"] is True  # Kueue refuses others
    queue = checks.settings_of(rendered["kueue"])["QUEUE"]
    named(rendered["kueue"], "LocalQueue", queue)


def test_only_the_nightly_job_starts_by_the_clock_and_ends_with_yesterday(rendered: dict[str, list[Document]]) -> None:
    for documents in rendered.values():
        for name in ("train", "explain"):
            assert named(documents, "CronJob", f"ray-cfnet-{name}")["spec"]["suspend"] is True
        cron = named(documents, "CronJob", "ray-cfnet-nightly")["spec"]
        assert cron.get("suspend", False) is False
        container = cron["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
        assert {"name": "DAYS_BACK", "value": "1"} in container["env"]


def test_overlay_of_the_manual_changes_image_configuration_and_paths(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    shutil.copytree(CONF, tmp_path / "conf")
    ours = tmp_path / "k8s" / "overlays" / "ours"
    ours.mkdir()
    manual = (ROOT / "docs" / "operations.md").read_text()
    block = re.search(r"^   ```yaml\n(.*?)^   ```$", manual, re.MULTILINE | re.DOTALL)[1]
    (ours / "kustomization.yaml").write_text(textwrap.dedent(block))
    (ours / "ours.yaml").write_text((CONF / "loans.yaml").read_text())
    documents = render(ours)
    assert {c["image"] for _, c in checks.containers(documents) if "name" in c} == {f"REGISTRY/ray-cfnet:{VERSION}"}
    assert {"ours.yaml", "loans.yaml"} <= set(named(documents, "ConfigMap", "ray-cfnet-conf")["data"])
    words = checks.command_lines(documents)["ray-cfnet-explain"]
    assert words[:4] == ["ray-cfnet", "explain", "--config", "/etc/ray-cfnet/ours.yaml"]
    assert words[words.index("--bundle") + 1] == "s3://BUCKET/OUTPUT/_models"
    assert checks.settings_of(documents)["NUM_ACTORS"] == "[1,16]"


def _job(documents: list[Document]) -> Document:
    return named(documents, "RayJob", "ray-cfnet-explain")


def _cron(documents: list[Document]) -> Document:
    return named(documents, "CronJob", "ray-cfnet-explain")


def _head(documents: list[Document]) -> Document:
    return cluster_of(_job(documents))["headGroupSpec"]["template"]["spec"]


def _workers(documents: list[Document]) -> Document:
    return cluster_of(_job(documents))["workerGroupSpecs"][0]


def _nightly(documents: list[Document], old: str, new: str) -> None:
    _entrypoint(documents, old, new, "ray-cfnet-nightly")


def _entrypoint(documents: list[Document], old: str, new: str, name: str = "ray-cfnet-explain") -> None:
    spec = named(documents, "RayJob", name)["spec"]
    assert old in spec["entrypoint"]
    spec["entrypoint"] = spec["entrypoint"].replace(old, new)


def _secret(documents: list[Document]) -> None:
    documents.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}})


def _cluster_role(documents: list[Document]) -> None:
    documents.append({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "x"}})


def _policy(documents: list[Document], name: str) -> Document:
    return named(documents, "NetworkPolicy", f"ray-cfnet-{name}")["spec"]


BREAKS: list[tuple[str, Callable[[list[Document]], Any]]] = [
    ("core_schemas", lambda d: _cron(d)["spec"].update(concurrencyPolicies="Forbid")),
    ("core_schemas", lambda d: _cron(d)["spec"].pop("schedule")),
    ("core_schemas", lambda d: d.append({"apiVersion": "v1", "kind": "Pot", "metadata": {"name": "x"}})),
    ("ray_schemas", lambda d: _job(d)["spec"].update(entryPoint="x")),
    ("ray_schemas", lambda d: cluster_of(_job(d)).pop("headGroupSpec")),
    ("images", lambda d: _head(d)["containers"][0].update(image="ray-cfnet:latest")),
    ("images", lambda d: _workers(d)["template"]["spec"]["containers"][0].update(image="ray-cfnet")),
    ("resources", lambda d: _workers(d)["template"]["spec"]["containers"][0].pop("resources")),
    ("resources", lambda d: _head(d)["containers"][0]["resources"]["limits"].update(cpu="2")),
    ("probes", lambda d: _head(d)["containers"][0].pop("livenessProbe")),
    ("pod_security", lambda d: _head(d)["securityContext"].update(runAsNonRoot=False)),
    ("pod_security", lambda d: _head(d)["securityContext"].pop("seccompProfile")),
    ("pod_security", lambda d: _head(d).update(hostNetwork=True)),
    ("pod_security", lambda d: _head(d)["volumes"].append({"name": "x", "hostPath": {"path": "/"}})),
    ("pod_security", lambda d: _head(d)["containers"][0]["securityContext"].update(privileged=True)),
    ("pod_security", lambda d: cluster_of(_job(d))["autoscalerOptions"].pop("securityContext")),
    ("pod_security", lambda d: _workers(d)["template"]["spec"].pop("automountServiceAccountToken")),
    ("pod_security", lambda d: named(d, "Namespace", "ray-cfnet")["metadata"]["labels"].clear()),
    ("references", lambda d: _head(d).update(serviceAccountName="nobody")),
    ("references", lambda d: _head(d)["volumes"][1]["configMap"].update(name="elsewhere")),
    ("references", lambda d: _head(d)["containers"][0]["env"].append({"name": "AWS_SECRET_ACCESS_KEY", "value": "x"})),
    ("references", lambda d: _workers(d)["template"]["spec"]["containers"][0].pop("envFrom")),
    ("references", _secret),
    ("network", lambda d: d.remove(named(d, "NetworkPolicy", "ray-cfnet-closed"))),
    ("network", lambda d: d.remove(named(d, "NetworkPolicy", "ray-cfnet-submit"))),
    ("network", lambda d: _policy(d, "submit")["ingress"][0]["from"].append({"ipBlock": {"cidr": "0.0.0.0/0"}})),
    ("network", lambda d: _policy(d, "submit")["ingress"][0]["from"][1].update(namespaceSelector={})),
    ("network", lambda d: _policy(d, "nodes")["ingress"].append({"ports": [{"port": 8265}]})),
    ("rights", lambda d: named(d, "Role", "ray-cfnet-start")["rules"][0]["verbs"].append("delete")),
    ("rights", lambda d: named(d, "Role", "ray-cfnet-start")["rules"][0].pop("resourceNames")),
    ("rights", lambda d: named(d, "Role", "ray-cfnet-start")["rules"][1]["resources"].append("rayclusters")),
    ("rights", _cluster_role),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(concurrencyPolicy="Allow")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(timeZone="Europe/Berlin")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(schedule="30 2 * * *")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(schedule="0 22 * * *")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(successfulJobsHistoryLimit=0)),
    ("cron_jobs", lambda d: _cron(d)["spec"]["jobTemplate"]["spec"].update(ttlSecondsAfterFinished=60)),
    ("cron_jobs", lambda d: d.remove(_job(d))),
    ("ray_jobs", lambda d: _job(d)["spec"].update(suspend=False)),
    ("ray_jobs", lambda d: _job(d)["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "q"})),
    ("ray_jobs", lambda d: _job(d)["metadata"].update(name="ray-cfnet-explain-" + 20 * "x")),
    ("ray_jobs", lambda d: _job(d)["spec"].update(backoffLimit=5)),
    ("ray_jobs", lambda d: _job(d)["spec"].update(shutdownAfterJobFinishes=False)),
    ("ray_jobs", lambda d: cluster_of(_job(d)).pop("authOptions")),
    ("ray_jobs", lambda d: cluster_of(_job(d)).update(rayVersion="2.59.0")),
    ("ray_jobs", lambda d: cluster_of(_job(d))["headGroupSpec"].update(rayStartParams={})),
    ("ray_jobs", lambda d: cluster_of(_job(d))["headGroupSpec"].update(serviceType="LoadBalancer")),
    ("ray_jobs", lambda d: cluster_of(_job(d)).update(enableInTreeAutoscaling=False)),
    ("entry_points", lambda d: _entrypoint(d, "--partition", "--partitions")),
    ("entry_points", lambda d: _entrypoint(d, "ray-cfnet explain", "ray-cfnet explian")),
    ("entry_points", lambda d: _entrypoint(d, "--bundle ${OUTPUT}/_models ", "")),
    ("entry_points", lambda d: _entrypoint(d, "${OUTPUT}/_models", "${OUTPUT}/_models/ID")),
    ("entry_points", lambda d: _entrypoint(d, "${TABLE}", "${TABEL}")),
    ("entry_points", lambda d: _entrypoint(d, "actor_cpus", "actor_cpu")),
    ("entry_points", lambda d: checks.settings_of(d).update(CONFIG="loan.yaml")),
    ("entry_points", lambda d: checks.settings_of(d).update(NUM_ACTORS="[16,1]")),
    ("entry_points", lambda d: _nightly(d, "--until ${DATE}", "--until ${PARTITION}=${DATE}")),
    ("entry_points", lambda d: _nightly(d, "--max-partitions ${MAX_PARTITIONS} ", "")),
    ("sizes", lambda d: _workers(d).update(maxReplicas=3)),
    ("sizes", lambda d: checks.settings_of(d).update(NUM_ACTORS="auto")),
    ("sizes", lambda d: checks.settings_of(d).update(USE_GPU="true")),
    ("sizes", lambda d: checks.settings_of(d).update(NUM_WORKERS="17")),
    ("sizes", lambda d: named(d, "ResourceQuota", "ray-cfnet")["spec"]["hard"].update({"limits.cpu": "20"})),
    ("sizes", lambda d: named(d, "ResourceQuota", "ray-cfnet")["spec"]["hard"].update({"requests.cpu": "20"})),
]


@pytest.mark.parametrize(("check", "damage"), BREAKS, ids=[f"{check}-{n}" for n, (check, _) in enumerate(BREAKS)])
def test_broken_manifest_is_found(check: str, damage: Callable, rendered: dict[str, list[Document]]) -> None:
    documents = copy.deepcopy(rendered["cpu"])
    damage(documents)
    assert faults(getattr(checks, check), documents) != []


def test_every_check_has_a_broken_manifest() -> None:
    assert {check for check, _ in BREAKS} == {check.__name__ for check in checks.CHECKS}
