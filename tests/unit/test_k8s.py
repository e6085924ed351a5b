"""The manifests without a cluster: rendered by kubectl, checked by schemas and by what we promise."""

import copy
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ray_cfnet.config.file import load_config
from tests.unit import k8s_checks as checks
from tests.unit.k8s_checks import CONF, RAY_SCHEMAS, ROOT, VERSION, Document, cluster_of, named, render

K8S = ROOT / "k8s" / "overlays"
MANUAL = (ROOT / "docs" / "operations.md").read_text()
METRICS = re.search(r"^```yaml\n(# k8s/overlays/ours/metrics\.yaml\n.*?)^```$", MANUAL, re.MULTILINE | re.DOTALL)[1]
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


PROMISES = [(overlay, check) for overlay in OVERLAYS for check in (*checks.CHECKS, *checks.OVERLAY_CHECKS[overlay])]


@pytest.mark.parametrize(("overlay", "check"), PROMISES, ids=[f"{o}-{check.__name__}" for o, check in PROMISES])
def test_overlay_has_no_fault(overlay: str, check: Callable, rendered: dict[str, list[Document]]) -> None:
    assert faults(check, rendered[overlay]) == []


def test_config_map_holds_every_shipped_configuration_as_it_is(rendered: dict[str, list[Document]]) -> None:
    shipped = {file.name: file.read_text() for file in CONF.glob("*.yaml")}
    for documents in rendered.values():
        assert named(documents, "ConfigMap", "ray-cfnet-conf")["data"] == shipped


@pytest.mark.parametrize("file", sorted(CONF.glob("*.yaml")), ids=lambda file: file.name)
def test_mounted_configuration_loads(file: Path) -> None:
    load_config(file)


def test_only_the_nightly_job_starts_by_the_clock_and_ends_with_yesterday(rendered: dict[str, list[Document]]) -> None:
    for documents in rendered.values():
        for name in ("train", "explain"):
            assert named(documents, "CronJob", f"ray-cfnet-{name}")["spec"]["suspend"] is True
        cron = named(documents, "CronJob", "ray-cfnet-nightly")["spec"]
        assert cron.get("suspend", False) is False
        container = cron["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
        assert {"name": "DAYS_BACK", "value": "1"} in container["env"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The manifests, to be changed."""
    shutil.copytree(ROOT / "k8s", tmp_path / "k8s")
    shutil.copytree(CONF, tmp_path / "conf")
    return tmp_path / "k8s"


@pytest.mark.parametrize(
    ("overlay", "file", "old", "new"),
    [
        ("cpu", "base/kustomization.yaml", "network.yaml", "netwrok.yaml"),
        ("cpu", "base/kustomization.yaml", "start.py", "begin.py"),
        ("gpu", "overlays/gpu/kustomization.yaml", "../../base", "../../bass"),
        ("kueue", "overlays/kueue/kustomization.yaml", "queue.yaml", "line.yaml"),
        ("cpu", "overlays/cpu/kustomization.yaml", "workerGroupSpecs", "workerGroups"),
    ],
)
def test_overlay_that_names_what_is_not_there_is_not_rendered(
    overlay: str, file: str, old: str, new: str, copied: Path
) -> None:
    text = (copied / file).read_text()
    assert old in text
    (copied / file).write_text(text.replace(old, new))
    with pytest.raises(AssertionError, match=re.escape(new.rpartition("/")[2])):
        render(copied / "overlays" / overlay)


def test_overlay_of_the_manual_changes_image_configuration_and_paths_and_lets_prometheus_in(copied: Path) -> None:
    ours = copied / "overlays" / "ours"
    ours.mkdir()
    block = re.search(r"^   ```yaml\n(.*?)^   ```$", MANUAL, re.MULTILINE | re.DOTALL)[1]
    assert "resources: [../cpu]" in block
    whole = textwrap.dedent(block).replace("resources: [../cpu]", "resources: [../cpu, metrics.yaml]")
    (ours / "kustomization.yaml").write_text(whole)
    (ours / "metrics.yaml").write_text(METRICS)
    (ours / "ours.yaml").write_text((CONF / "loans.yaml").read_text())
    documents = render(ours)
    assert [fault for check in (checks.core_schemas, checks.network) for fault in faults(check, documents)] == []
    for pod in ("head", "worker"):
        labels = {"ray.io/is-ray-node": "yes", "ray.io/node-type": pod}
        assert {"app.kubernetes.io/name": "prometheus"} in [
            source["podSelector"]["matchLabels"] for source in checks.admitted(documents, labels, 8080)
        ]
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


def _comers(documents: list[Document]) -> list[Document]:
    """Who may come to the dashboard from elsewhere: the submitter and the operator."""
    return _policy(documents, "submit")["ingress"][0]["from"]


def _metrics(documents: list[Document], old: str, new: str) -> None:
    assert old in METRICS
    documents.append(yaml.safe_load(METRICS.replace(old, new)))


def _role(documents: list[Document]) -> Document:
    return named(documents, "Role", "ray-cfnet-start")


def _binding(documents: list[Document]) -> Document:
    return named(documents, "RoleBinding", "ray-cfnet-start")


def _pod(documents: list[Document], name: str) -> Document:
    return dict(checks.pods(documents))[f"ray-cfnet-explain {name}"]


def _no_tmp(documents: list[Document], pod: str) -> None:
    mounts = _pod(documents, pod)["containers"][0]["volumeMounts"]
    mounts.remove(next(mount for mount in mounts if mount["mountPath"] == "/tmp"))


def _init_container(documents: list[Document]) -> None:
    pod = _pod(documents, "workers")
    pod["initContainers"] = [{**pod["containers"][0], "name": "wait", "volumeMounts": []}]


def _hard(documents: list[Document]) -> dict[str, str]:
    return named(documents, "ResourceQuota", "ray-cfnet")["spec"]["hard"]


POLICIES = ("closed", "nodes", "submit")
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
    *[("temporary_files", lambda d, pod=pod: _no_tmp(d, pod)) for pod in ("submitter", "head", "workers", "start")],
    ("temporary_files", lambda d: cluster_of(_job(d))["autoscalerOptions"].pop("volumeMounts")),
    ("temporary_files", _init_container),
    ("temporary_files", lambda d: _head(d)["containers"][0]["volumeMounts"][0].update(readOnly=True)),
    ("temporary_files", lambda d: _head(d)["containers"][0]["volumeMounts"][0].update(name="conf")),
    ("temporary_files", lambda d: _pod(d, "start").pop("volumes")),
    *[("network", lambda d, name=name: d.remove(named(d, "NetworkPolicy", f"ray-cfnet-{name}"))) for name in POLICIES],
    *[("network", lambda d, name=name: _policy(d, name).update(policyTypes=["Egress"])) for name in POLICIES],
    ("network", lambda d: named(d, "NetworkPolicy", "ray-cfnet-closed")["metadata"].update(namespace="default")),
    ("network", lambda d: _policy(d, "closed").update(podSelector={"matchLabels": {"ray.io/node-type": "head"}})),
    ("network", lambda d: _policy(d, "closed").update(ingress=[{}])),
    ("network", lambda d: _policy(d, "nodes").pop("ingress")),
    ("network", lambda d: _policy(d, "nodes")["ingress"][0].pop("from")),
    ("network", lambda d: _policy(d, "nodes")["ingress"].append({"ports": [{"port": 8265}]})),
    ("network", lambda d: _policy(d, "submit")["ingress"][0].pop("ports")),
    *[
        ("network", lambda d, port=port: _policy(d, "submit")["ingress"][0]["ports"].append({"port": port}))
        for port in (6379, 10001, 52365)
    ],
    ("network", lambda d: _policy(d, "submit")["ingress"][0]["ports"][0].update(port=6379, endPort=10001)),
    ("network", lambda d: _policy(d, "submit").update(podSelector={"matchLabels": {"ray.io/is-ray-node": "yes"}})),
    ("network", lambda d: _comers(d).pop(0)),
    ("network", lambda d: _comers(d).pop(1)),
    ("network", lambda d: _comers(d).append({"ipBlock": {"cidr": "0.0.0.0/0"}})),
    ("network", lambda d: _comers(d)[1].update(namespaceSelector={})),
    ("network", lambda d: _comers(d)[1].pop("podSelector")),
    ("network", lambda d: _comers(d)[1].update(podSelector={"matchLabels": {"app.kubernetes.io/name": "kuberay"}})),
    ("network", lambda d: _metrics(d, "      ports: [{protocol: TCP, port: 8080}]\n", "")),
    ("network", lambda d: _metrics(d, "port: 8080", "port: 8265")),
    ("network", lambda d: _metrics(d, "app.kubernetes.io/name: prometheus", "")),
    ("network", lambda d: _metrics(d, 'ray.io/is-ray-node: "yes"', "ray.io/group: headgroup")),
    ("network", lambda d: _comers(d)[0].update(podSelector={"matchExpressions": [{"key": "x", "operator": "Exists"}]})),
    ("rights", lambda d: _role(d)["rules"][0]["verbs"].append("delete")),
    ("rights", lambda d: _role(d)["rules"][0].pop("resourceNames")),
    ("rights", lambda d: _role(d)["rules"][1]["resources"].append("rayclusters")),
    ("rights", lambda d: _role(d)["rules"].pop()),
    ("rights", lambda d: d.remove(_role(d))),
    ("rights", lambda d: d.remove(_binding(d))),
    ("rights", lambda d: _binding(d)["roleRef"].update(name="admin")),
    ("rights", lambda d: _binding(d)["roleRef"].update(kind="ClusterRole")),
    ("rights", lambda d: _binding(d)["subjects"][0].update(name="ray-cfnet")),
    ("rights", lambda d: _binding(d)["subjects"][0].update(namespace="default")),
    ("rights", lambda d: _binding(d)["subjects"][0].update(kind="User")),
    ("rights", lambda d: _binding(d)["subjects"].append({"kind": "Group", "name": "system:authenticated"})),
    ("rights", lambda d: _binding(d)["metadata"].update(namespace="default")),
    ("rights", lambda d: _pod(d, "start").update(serviceAccountName="ray-cfnet")),
    ("rights", lambda d: _head(d).update(serviceAccountName="ray-cfnet-start")),
    ("rights", _cluster_role),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(concurrencyPolicy="Allow")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(timeZone="Europe/Berlin")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(schedule="30 2 * * *")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(schedule="0 22 * * *")),
    ("cron_jobs", lambda d: _cron(d)["spec"].update(successfulJobsHistoryLimit=0)),
    ("cron_jobs", lambda d: _cron(d)["spec"]["jobTemplate"]["spec"].update(ttlSecondsAfterFinished=60)),
    ("cron_jobs", lambda d: d.remove(_job(d))),
    ("cron_jobs", lambda d: _pod(d, "start")["containers"][0].pop("envFrom")),
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
    ("sizes", lambda d: _hard(d).update({"limits.cpu": "20"})),
    ("sizes", lambda d: _hard(d).update({"requests.cpu": "20"})),
    ("autoscaling", lambda d: cluster_of(_job(d)).update(enableInTreeAutoscaling=False)),
    ("autoscaling", lambda d: cluster_of(_job(d))["autoscalerOptions"].update(version="v1")),
    ("autoscaling", lambda d: _workers(d).update(minReplicas=1)),
]

GPU_BREAKS: list[tuple[str, Callable[[list[Document]], Any]]] = [
    ("autoscaling", lambda d: _workers(d).update(replicas=1)),
    ("gpu_workers", lambda d: checks.settings_of(d).update(ACTOR_GPUS="1")),
    ("gpu_workers", lambda d: checks.settings_of(d).update(ACTOR_GPUS="0")),
    ("gpu_workers", lambda d: checks.settings_of(d).update(USE_GPU="false")),
    ("gpu_workers", lambda d: checks.settings_of(d).update(NUM_WORKERS="1")),
    ("gpu_workers", lambda d: _pod(d, "gpu-workers").pop("tolerations")),
    ("gpu_workers", lambda d: _pod(d, "gpu-workers")["tolerations"][0].update(key="gpu")),
    ("gpu_workers", lambda d: _pod(d, "gpu-workers").pop("nodeSelector")),
    ("gpu_workers", lambda d: _pod(d, "gpu-workers")["nodeSelector"].update({"nvidia.com/gpu.present": "false"})),
    ("gpu_workers", lambda d: _pod(d, "gpu-workers")["containers"][0]["resources"]["limits"].pop("nvidia.com/gpu")),
    ("gpu_workers", lambda d: _head(d)["containers"][0]["resources"]["limits"].update({"nvidia.com/gpu": "1"})),
    ("gpu_workers", lambda d: _pod(d, "gpu-workers")["containers"][0].update(image=f"ray-cfnet:{VERSION}")),
    ("sizes", lambda d: checks.settings_of(d).update(ACTOR_GPUS="0.5")),
    ("sizes", lambda d: _hard(d).pop("requests.nvidia.com/gpu")),
]

KUEUE_BREAKS: list[tuple[str, Callable[[list[Document]], Any]]] = [
    ("queueing", lambda d: checks.settings_of(d).pop("QUEUE")),
    ("queueing", lambda d: checks.settings_of(d).update(QUEUE="elsewhere")),
    ("queueing", lambda d: d.remove(named(d, "LocalQueue", "ray-cfnet"))),
    ("queueing", lambda d: named(d, "LocalQueue", "ray-cfnet")["metadata"].update(namespace="default")),
    ("queueing", lambda d: checks.settings_of(d).update(NUM_ACTORS="[1,16]")),
    ("queueing", lambda d: cluster_of(_job(d)).update(enableInTreeAutoscaling=True)),
    ("queueing", lambda d: cluster_of(_job(d)).update(autoscalerOptions={})),
    ("queueing", lambda d: _head(d).update(automountServiceAccountToken=True)),
    ("queueing", lambda d: _workers(d).update(minReplicas=0)),
    ("queueing", lambda d: _job(d)["spec"].update(shutdownAfterJobFinishes=False)),
    ("queueing", lambda d: _job(d)["spec"].update(suspend=False)),
    ("ray_jobs", lambda d: _job(d)["spec"].update(suspend=False)),
    ("ray_jobs", lambda d: _job(d)["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "ray-cfnet"})),
]

ALL_BREAKS = [
    (overlay, check, damage)
    for overlay, breaks in {"cpu": BREAKS, "gpu": GPU_BREAKS, "kueue": KUEUE_BREAKS}.items()
    for check, damage in breaks
]


@pytest.mark.parametrize(
    ("overlay", "check", "damage"), ALL_BREAKS, ids=[f"{o}-{check}-{n}" for n, (o, check, _) in enumerate(ALL_BREAKS)]
)
def test_broken_manifest_is_found(
    overlay: str, check: str, damage: Callable, rendered: dict[str, list[Document]]
) -> None:
    documents = copy.deepcopy(rendered[overlay])
    damage(documents)
    assert faults(getattr(checks, check), documents) != []


def test_every_check_has_a_broken_manifest() -> None:
    promised = {check.__name__ for _, check in PROMISES}
    assert {check for _, check, _ in ALL_BREAKS} == promised
    for overlay, own in checks.OVERLAY_CHECKS.items():
        assert {check.__name__ for check in own} <= {check for o, check, _ in ALL_BREAKS if o == overlay}
