"""What must hold of the rendered manifests. Each check takes documents and returns faults in words."""

import copy
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from ray_cfnet.cli import app
from ray_cfnet.config.file import load_config
from ray_cfnet.errors import RayCfnetError

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
RAY_SCHEMAS = ROOT.parent / "shared" / "k8s-schemas"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
RAY_VERSION = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
KUBERNETES_VERSIONS = ("1.30", "1.36")
"""The oldest that is promised to work, and kubectl's in the image."""

Document = dict[str, Any]


@cache
def _render(overlay: Path) -> list[Document]:
    done = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def render(overlay: Path) -> list[Document]:
    """The documents of an overlay; skips the test where there is no kubectl."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed; it renders the overlays")
    return copy.deepcopy(_render(overlay))


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def named(documents: list[Document], kind: str, name: str) -> Document:
    return next(document for document in of_kind(documents, kind) if document["metadata"]["name"] == name)


def cluster_of(rayjob: Document) -> Document:
    return rayjob["spec"]["rayClusterSpec"]


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """Every pod specification and what to call it."""
    for job in of_kind(documents, "RayJob"):
        name, cluster = job["metadata"]["name"], cluster_of(job)
        yield f"{name} submitter", job["spec"]["submitterPodTemplate"]["spec"]
        yield f"{name} head", cluster["headGroupSpec"]["template"]["spec"]
        for group in cluster["workerGroupSpecs"]:
            yield f"{name} {group['groupName']}", group["template"]["spec"]
    for cron in of_kind(documents, "CronJob"):
        yield f"{cron['metadata']['name']} start", cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def placed_containers(documents: list[Document]) -> Iterator[tuple[str, Document, Document]]:
    """Every container and its pod, with the autoscaler's options as one: KubeRay adds it to the head."""
    for name, pod in pods(documents):
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            yield f"{name}/{container['name']}", container, pod
    for job in of_kind(documents, "RayJob"):
        if "autoscalerOptions" in (cluster := cluster_of(job)):
            head = cluster["headGroupSpec"]["template"]["spec"]
            yield f"{job['metadata']['name']} autoscaler", cluster["autoscalerOptions"], head


def containers(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    return ((name, container) for name, container, _ in placed_containers(documents))


def core_schemas(documents: list[Document]) -> list[str]:
    """Kubernetes' own kinds, strictly: an unknown field is a fault."""
    import kubernetes_validate

    faults = []
    for document in documents:
        if document["apiVersion"].startswith(("ray.io/", "kueue.x-k8s.io/")):
            continue
        for version in KUBERNETES_VERSIONS:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                faults.append(f"{document['kind']} ({version}) {'.'.join(map(str, error.path))}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError as error:
                faults.append(error.message)
    return faults


@cache
def _ray_schema(kind: str) -> Document:
    return json.loads((RAY_SCHEMAS / f"{kind.lower()}s.schema.json").read_text())


def ray_schemas(documents: list[Document]) -> list[str]:
    """KubeRay's kinds, strictly."""
    import jsonschema

    faults = []
    for document in documents:
        if document["apiVersion"].startswith("ray.io/"):
            schema = _ray_schema(document["kind"])
            errors = jsonschema.Draft7Validator(schema).iter_errors(document)
            faults += [f"{document['kind']} {'.'.join(map(str, e.path))}: {e.message}" for e in errors]
    return faults


def images(documents: list[Document]) -> list[str]:
    """Our image at our version."""
    wanted = re.compile(rf"ray-cfnet:{re.escape(VERSION)}(-gpu)?")
    found = [(name, container.get("image")) for name, container in containers(documents) if "name" in container]
    return [f"{name}: image {image}" for name, image in found if not wanted.fullmatch(image or "")]


def resources(documents: list[Document]) -> list[str]:
    """Requests and limits of CPU and memory, and equal: Ray believes the limits."""
    faults = []
    for name, container in containers(documents):
        given = container.get("resources", {})
        if not {"cpu", "memory"} <= set(given.get("requests", {})) or given["requests"] != given.get("limits"):
            faults.append(f"{name}: resources {given}")
    return faults


def probes(documents: list[Document]) -> list[str]:
    """Ray's containers tell whether they live; the others end by themselves, in time."""
    health = {"path": "/api/healthz", "port": 52365}  # of Ray's agent; needs no token
    faults = []
    for name, container in containers(documents):
        if name.endswith(("/ray-head", "/ray-worker")):
            wanted = ("readinessProbe", "livenessProbe")
            faults += [f"{name}: {probe}" for probe in wanted if container.get(probe, {}).get("httpGet") != health]
    return faults


def pod_security(documents: list[Document]) -> list[str]:
    """The restricted standard, and a root file system that is read only."""
    faults = []
    for name, pod in pods(documents):
        security = pod.get("securityContext", {})
        if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
            faults.append(f"{name}: may run as root")
        if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            faults.append(f"{name}: no seccomp profile")
        if any(pod.get(field) for field in ("hostNetwork", "hostPID", "hostIPC")):
            faults.append(f"{name}: uses the host's namespaces")
        kinds = {"name", "emptyDir", "configMap"}
        faults += [f"{name}: volume {volume}" for volume in pod.get("volumes", []) if not set(volume) <= kinds]
        token = pod.get("automountServiceAccountToken")
        if token is None or (token and not name.endswith((" head", " start"))):
            faults.append(f"{name}: mounts a service account's token")
    for name, container in containers(documents):
        security = container.get("securityContext", {})
        wanted = {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        if security != wanted:
            faults.append(f"{name}: securityContext {security}")
    (namespace,) = of_kind(documents, "Namespace")
    if namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
        faults.append("the namespace does not enforce the restricted standard")
    return faults


def temporary_files(documents: list[Document]) -> list[str]:
    """With a root file system that is read only, /tmp is an empty volume: Ray, Python and kubectl write there."""
    faults = []
    for name, container, pod in placed_containers(documents):
        empty = {volume["name"] for volume in pod.get("volumes", []) if "emptyDir" in volume}
        mounts = [mount for mount in container.get("volumeMounts", []) if mount["mountPath"] == "/tmp"]
        writable = any(mount["name"] in empty and not mount.get("readOnly") for mount in mounts)
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") and not writable:
            faults.append(f"{name}: cannot write to /tmp")
    return faults


def references(documents: list[Document]) -> list[str]:
    """What pods name is there; Secrets are named and never written."""
    faults = [f"a Secret stands in the manifests: {s['metadata']['name']}" for s in of_kind(documents, "Secret")]
    config_maps = {document["metadata"]["name"] for document in of_kind(documents, "ConfigMap")}
    accounts = {document["metadata"]["name"] for document in of_kind(documents, "ServiceAccount")}
    for name, pod in pods(documents):
        used = [volume["configMap"]["name"] for volume in pod.get("volumes", []) if "configMap" in volume]
        for container in pod["containers"]:
            sources = container.get("envFrom", [])
            used += [source["configMapRef"]["name"] for source in sources if "configMapRef" in source]
            secrets = [source["secretRef"]["name"] for source in sources if "secretRef" in source]
            faults += [f"{name}: Secret {secret}" for secret in secrets if secret != "ray-cfnet-storage"]
            if name.endswith((" head", "workers")) and not secrets:
                faults.append(f"{name}: no access to storage")
            for variable in container.get("env", []):
                if re.search(r"AWS|SECRET|TOKEN|PASSWORD", variable["name"]):
                    faults.append(f"{name}: {variable['name']} is written out")
        faults += [f"{name}: no ConfigMap {config_map}" for config_map in used if config_map not in config_maps]
        if pod.get("serviceAccountName", "default") not in accounts | {"default"}:
            faults.append(f"{name}: no ServiceAccount {pod['serviceAccountName']}")
    return faults


ANYONE: Document = {}
NODES = {"podSelector": {"matchLabels": {"ray.io/is-ray-node": "yes"}}}
OPERATOR = {
    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-system"}},
    "podSelector": {"matchLabels": {"app.kubernetes.io/component": "kuberay-operator"}},
}
"""By the label that both of KubeRay's installations give it; app.kubernetes.io/name is the chart's or `kuberay`."""
CHOOSING_LABELS = {"ray.io/is-ray-node", "ray.io/node-type", "app.kubernetes.io/component"}
AGENT_PORT = 52365
"""Every node's; it takes jobs as the dashboard does."""


def admitted(documents: list[Document], labels: dict[str, str], port: int) -> list[Document]:
    """Who may reach a port of our pods with these labels, in the policies' own words."""
    namespace = of_kind(documents, "Namespace")[0]["metadata"]["name"]
    policies = [
        policy["spec"]
        for policy in of_kind(documents, "NetworkPolicy")
        if policy["metadata"].get("namespace") == namespace
        and "Ingress" in policy["spec"]["policyTypes"]
        and policy["spec"]["podSelector"].get("matchLabels", {}).items() <= labels.items()
    ]
    if not policies:
        return [ANYONE]
    rules = [rule for policy in policies for rule in policy.get("ingress", []) if _opens(rule, port)]
    return [source for rule in rules for source in rule.get("from") or [ANYONE]]


def _opens(rule: Document, port: int) -> bool:
    ports = rule.get("ports") or [{}]
    return any(opened.get("port", port) <= port <= opened.get("endPort", opened.get("port", port)) for opened in ports)


def network(documents: list[Document]) -> list[str]:
    """Where code can be run, in come those who must and nobody else; what opens another port names who may come."""
    faults = []
    for policy in of_kind(documents, "NetworkPolicy"):
        chosen = policy["spec"]["podSelector"].get("matchLabels", {})
        if "matchExpressions" in json.dumps(policy) or not set(chosen) <= CHOOSING_LABELS:
            faults.append(f"{policy['metadata']['name']}: these checks cannot tell which pods it is about")
        for source in (s for rule in policy["spec"].get("ingress", []) for s in rule.get("from") or [ANYONE]):
            outside = source.get("namespaceSelector", {"matchLabels": True}).get("matchLabels")
            if not source.get("podSelector", {}).get("matchLabels") or not outside or "ipBlock" in source:
                faults.append(f"{policy['metadata']['name']}: open to too many: {source}")
    for job in of_kind(documents, "RayJob"):
        head = cluster_of(job)["headGroupSpec"]["template"]["spec"]["containers"][0]
        ports = {port["name"]: port["containerPort"] for port in head["ports"]} | {"agent": AGENT_PORT}
        submitter = job["spec"]["submitterPodTemplate"]["metadata"]["labels"]
        node = NODES["podSelector"]["matchLabels"]
        pods_open_to: list[tuple[str, dict[str, str], list[Document]]] = [
            ("head", {**node, "ray.io/node-type": "head"}, [NODES]),
            ("worker", {**node, "ray.io/node-type": "worker"}, [NODES]),
            ("submitter", submitter, []),
            ("start", {}, []),
        ]
        for kind, labels, wanted in pods_open_to:
            for name in ("gcs-server", "client", "dashboard", "agent"):
                is_dashboard = (kind, name) == ("head", "dashboard")
                due = [*wanted, {"podSelector": {"matchLabels": submitter}}, OPERATOR] if is_dashboard else wanted
                found = admitted(documents, labels, ports[name])
                place = f"{job['metadata']['name']} {kind}, {name}"
                faults += [f"{place}: open to {source or 'anyone'}" for source in found if source not in due]
                faults += [f"{place}: closed to {source}" for source in due if source not in found]
    return faults


def rights(documents: list[Document]) -> list[str]:
    """The starter, and it alone, reads the templates and creates RayJobs; nobody has rights in the whole cluster."""
    roles, bindings = of_kind(documents, "Role"), of_kind(documents, "RoleBinding")
    templates = sorted(job["metadata"]["name"] for job in of_kind(documents, "RayJob"))
    faults = [f"{d['kind']} {d['metadata']['name']}" for d in documents if d["kind"].startswith("ClusterRole")]
    for rule in (rule for role in roles for rule in role["rules"]):
        if rule["apiGroups"] != ["ray.io"] or rule["resources"] != ["rayjobs"]:
            faults.append(f"rights on {rule['apiGroups']} {rule['resources']}")
        narrow = rule["verbs"] == ["get"] and sorted(rule.get("resourceNames", [])) == templates
        if not narrow and rule["verbs"] != ["create"]:
            faults.append(f"may {rule['verbs']} {rule.get('resourceNames', 'all')}")
    verbs = [sorted(verb for rule in role["rules"] for verb in rule["verbs"]) for role in roles]
    if verbs != [["create", "get"]]:
        faults.append(f"roles that may {verbs}, the starter needs get and create")
    namespace = of_kind(documents, "Namespace")[0]["metadata"]["name"]
    starters = {pod.get("serviceAccountName") for name, pod in pods(documents) if name.endswith(" start")}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace} for name in starters]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role"}
    wanted = [(namespace, {**reference, "name": role["metadata"]["name"]}, subjects) for role in roles]
    bound = [(b["metadata"].get("namespace"), b["roleRef"], b.get("subjects")) for b in bindings]
    if bound != wanted:
        faults.append(f"bound {bound}, not {wanted}")
    others = {pod.get("serviceAccountName") for name, pod in pods(documents) if not name.endswith(" start")}
    faults += [f"{name} is Ray's, and may start jobs" for name in starters & others]
    return faults


def cron_jobs(documents: list[Document]) -> list[str]:
    """One at a time, in time, of a day that is certain, started from a template that is there."""
    faults = []
    templates = {job["metadata"]["name"] for job in of_kind(documents, "RayJob")}
    for cron in of_kind(documents, "CronJob"):
        name, spec = cron["metadata"]["name"], cron["spec"]
        job = spec["jobTemplate"]["spec"]
        container = job["template"]["spec"]["containers"][0]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        minute, hour, *rest = spec["schedule"].split()
        if spec.get("concurrencyPolicy") != "Forbid":
            faults.append(f"{name}: two may start at once")
        if not spec.get("timeZone") or spec["timeZone"] != variables.get("TIME_ZONE"):
            faults.append(f"{name}: time zones {spec.get('timeZone')} and {variables.get('TIME_ZONE')}")
        if rest != ["*", "*", "*"] or not 4 <= int(hour) < 24:
            faults.append(f"{name}: {spec['schedule']} is not daily, or at an hour that clocks skip or repeat")
        latest = int(hour) * 3600 + int(minute) * 60 + spec["startingDeadlineSeconds"] + job["activeDeadlineSeconds"]
        if latest >= 24 * 3600:
            faults.append(f"{name}: a late start is on another day")
        if not (spec["successfulJobsHistoryLimit"] and spec["failedJobsHistoryLimit"]):
            faults.append(f"{name}: a Job that ends takes its RayJob with it")
        if "ttlSecondsAfterFinished" in job:
            faults.append(f"{name}: a Job that expires takes its RayJob with it")
        if {"configMapRef": {"name": "ray-cfnet-settings"}} not in container.get("envFrom", []):
            faults.append(f"{name}: does not know the settings")
        if container["args"] != [name] or name not in templates:
            faults.append(f"{name}: starts {container['args']}")
    return faults


def ray_jobs(documents: list[Document]) -> list[str]:
    """Templates that run nothing by themselves, and whose copies end, clean up and ask for a token."""
    faults = []
    for job in of_kind(documents, "RayJob"):
        name, spec, cluster = job["metadata"]["name"], job["spec"], cluster_of(job)
        if spec.get("suspend") is not True:
            faults.append(f"{name}: would start when it is applied")
        if any(label.startswith("kueue") for label in job["metadata"].get("labels", {})):
            faults.append(f"{name}: Kueue would start the template")
        if len(f"{name}-2026-11-15") > 47:
            faults.append(f"{name}: KubeRay's names have 47 characters")
        if (spec["backoffLimit"] + 1) * spec["activeDeadlineSeconds"] >= 24 * 3600:
            faults.append(f"{name}: may still run when the next night begins")
        if spec.get("shutdownAfterJobFinishes") is not True or not spec.get("preRunningDeadlineSeconds"):
            faults.append(f"{name}: a cluster may stay")
        if cluster.get("authOptions") != {"mode": "token"}:
            faults.append(f"{name}: no token is asked for")
        if cluster["rayVersion"] != RAY_VERSION:
            faults.append(f"{name}: Ray {cluster['rayVersion']}, constraints.txt has {RAY_VERSION}")
        if cluster["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
            faults.append(f"{name}: the head takes work")
        if cluster["headGroupSpec"].get("serviceType", "ClusterIP") != "ClusterIP":
            faults.append(f"{name}: the head is open to the outside")
        (group,) = cluster["workerGroupSpecs"]
        if not cluster["enableInTreeAutoscaling"] and group["replicas"] != group["maxReplicas"]:
            faults.append(f"{name}: without an autoscaler {group['groupName']} stay at {group['replicas']}")
    return faults


def settings_of(documents: list[Document]) -> dict[str, str]:
    return named(documents, "ConfigMap", "ray-cfnet-settings")["data"]


def command_lines(documents: list[Document]) -> dict[str, list[str]]:
    """The words of each entry point as start.py will fill it."""
    lines = {}
    for job in of_kind(documents, "RayJob"):
        text = job["spec"]["entrypoint"]
        for name, value in {**settings_of(documents), "DATE": "2026-11-15"}.items():
            text = text.replace(f"${{{name}}}", value)
        lines[job["metadata"]["name"]] = shlex.split(text)
    return lines


def options_of(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command and its options as our own command line reads them, without running it. Else ValueError."""
    if words[:1] != ["ray-cfnet"]:
        raise ValueError(f"{words[:1]} is not ray-cfnet")
    group = typer.main.get_command(app)
    try:
        name, command, rest = group.resolve_command(group.make_context("ray-cfnet", ["config"]), words[1:])
        return name, command.make_context(name, rest).params
    except Exception as error:  # typer's errors have no public family
        raise ValueError(getattr(error, "message", "") or str(error)) from error


def entry_points(documents: list[Document]) -> list[str]:
    """Our command line understands them, and their configuration loads."""
    faults = []
    conf = named(documents, "ConfigMap", "ray-cfnet-conf")["data"]
    for name, words in command_lines(documents).items():
        try:
            command, options = options_of(words)
            file = options["config"]
            if str(file.parent) != "/etc/ray-cfnet" or file.name not in conf:
                raise ValueError(f"{file} is not mounted")
            load_config(CONF / file.name, options["overrides"])
        except (RayCfnetError, ValueError) as error:
            faults.append(f"{name}: {error}")
            continue
        if name != f"ray-cfnet-{command}" or "${" in " ".join(words):
            faults.append(f"{name}: {words}")
        if command == "explain" and options["partition"] != "ds=2026-11-15":
            faults.append(f"{name}: partition {options['partition']}")
        if command == "explain" and options["bundle"] != f"{options['output']}/_models":
            faults.append(f"{name}: does not follow the promoted bundle")
        if command == "nightly" and (options["until"] != "2026-11-15" or not options["max_partitions"]):
            faults.append(f"{name}: until {options['until']}, at most {options['max_partitions']} partitions")
    return faults


def sizes(documents: list[Document]) -> list[str]:
    """The actors fill the largest cluster and no more; training has its workers; the quota has room for both.

    Room for one that explains: the nightly job and one by hand take turns on the output.
    """
    faults = []
    total = {"requests.cpu": 0.0, "requests.memory": 0.0, "requests.nvidia.com/gpu": 0.0}
    for name, words in command_lines(documents).items():
        job = named(documents, "RayJob", name)
        group = cluster_of(job)["workerGroupSpecs"][0]
        worker = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        workers, cpus, gpus = group["maxReplicas"], quantity(worker["cpu"]), quantity(worker.get("nvidia.com/gpu", "0"))
        _, options = options_of(words)
        config = load_config(CONF / options["config"].name, options["overrides"]).cluster
        most = config.num_actors[-1] if isinstance(config.num_actors, list) else config.num_actors
        room = cpus // config.actor_cpus
        if config.actor_gpus:
            room = min(room, gpus // config.actor_gpus)
        if most == "auto" or most != workers * room:
            faults.append(f"{name}: {most} actors, room for {workers * room:g}")
        if config.num_workers > workers * (gpus if config.use_gpu else cpus) or config.use_gpu > bool(gpus):
            faults.append(f"{name}: no room for {config.num_workers} training workers")
        for place, container in containers(documents):
            if place.startswith(name) and name != "ray-cfnet-explain":
                count = workers if "workers/" in place else 1
                for resource, amount in container["resources"]["requests"].items():
                    total[f"requests.{resource}"] += count * quantity(amount)
    hard = of_kind(documents, "ResourceQuota")[0]["spec"]["hard"]
    if any(hard[f"limits.{name}"] != hard[f"requests.{name}"] for name in ("cpu", "memory")):
        faults.append(f"the quota's limits and requests differ, the containers' do not: {hard}")
    for resource, amount in total.items():
        if amount > quantity(hard.get(resource, "0")):
            faults.append(f"the quota of {resource} is {hard.get(resource)}, both jobs may ask for {amount:g}")
    return faults


def autoscaling(documents: list[Document]) -> list[str]:
    """Workers come and go with the work: none waits."""
    faults = []
    for job in of_kind(documents, "RayJob"):
        cluster = cluster_of(job)
        if cluster["enableInTreeAutoscaling"] is not True or cluster["autoscalerOptions"]["version"] != "v2":
            faults.append(f"{job['metadata']['name']}: no autoscaler")
        (group,) = cluster["workerGroupSpecs"]
        if group["replicas"] or group["minReplicas"] or not group["maxReplicas"]:
            faults.append(f"{job['metadata']['name']}: {group['groupName']} do not come and go")
    return faults


def gpu_workers(documents: list[Document]) -> list[str]:
    """Actors share GPUs, training has several, and the pods that ask for one go where they are; the head does not."""
    faults = []
    for name, words in command_lines(documents).items():
        _, options = options_of(words)
        config = load_config(CONF / options["config"].name, options["overrides"]).cluster
        if name != "ray-cfnet-train" and not 0 < config.actor_gpus < 1:
            faults.append(f"{name}: an actor takes {config.actor_gpus} GPUs")
        if name != "ray-cfnet-explain" and (not config.use_gpu or config.num_workers < 2):
            faults.append(f"{name}: trains on {config.num_workers} workers, on GPUs: {config.use_gpu}")
        cluster = cluster_of(named(documents, "RayJob", name))
        if "nvidia.com/gpu" in cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["resources"]["limits"]:
            faults.append(f"{name}: the head takes a GPU")
        (group,) = cluster["workerGroupSpecs"]
        pod = group["template"]["spec"]
        if pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu") != "1":
            faults.append(f"{name}: {group['groupName']} have no GPU")
        if pod.get("nodeSelector") != {"nvidia.com/gpu.present": "true"}:
            faults.append(f"{name}: {group['groupName']} go to {pod.get('nodeSelector')}")
        taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        if taint not in pod.get("tolerations", []):
            faults.append(f"{name}: {group['groupName']} do not tolerate {taint}")
    found = [(name, container["image"]) for name, container in containers(documents) if "image" in container]
    return faults + [f"{name}: {image} is not built for GPUs" for name, image in found if not image.endswith("-gpu")]


def queueing(documents: list[Document]) -> list[str]:
    """A queue that is there, for the jobs alone, and clusters that Kueue admits: whole, of one size, deleted after."""
    faults = []
    namespace, queue = of_kind(documents, "Namespace")[0]["metadata"]["name"], settings_of(documents).get("QUEUE")
    queues = [document["metadata"] for document in of_kind(documents, "LocalQueue")]
    if [(each["name"], each.get("namespace")) for each in queues] != [(queue, namespace)]:
        faults.append(f"jobs go to the queue {queue} of {namespace}, there is {queues}")
    for name, words in command_lines(documents).items():
        spec = named(documents, "RayJob", name)["spec"]
        cluster = spec["rayClusterSpec"]
        if cluster["enableInTreeAutoscaling"] is not False or "autoscalerOptions" in cluster:
            faults.append(f"{name}: has an autoscaler")
        if cluster["headGroupSpec"]["template"]["spec"]["automountServiceAccountToken"]:
            faults.append(f"{name}: the head holds a token that only an autoscaler needs")
        (group,) = cluster["workerGroupSpecs"]
        if len({group["replicas"], group["minReplicas"], group["maxReplicas"]}) != 1:
            faults.append(f"{name}: {group['groupName']} may change in number")
        if spec["shutdownAfterJobFinishes"] is not True or spec["suspend"] is not True:
            faults.append(f"{name}: Kueue neither admits it nor lets it be a template")
        _, options = options_of(words)
        actors = load_config(CONF / options["config"].name, options["overrides"]).cluster.num_actors
        if not isinstance(actors, int):
            faults.append(f"{name}: {actors} actors on a cluster of one size")
    return faults


def quantity(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(m|Mi|Gi)?", text).groups()
    return float(number) * {None: 1, "m": 1e-3, "Mi": 2**20, "Gi": 2**30}[unit]


CHECKS = (
    core_schemas,
    ray_schemas,
    images,
    resources,
    probes,
    pod_security,
    temporary_files,
    references,
    network,
    rights,
    cron_jobs,
    ray_jobs,
    entry_points,
    sizes,
)

OVERLAY_CHECKS = {"cpu": (autoscaling,), "gpu": (autoscaling, gpu_workers), "kueue": (queueing,)}
"""What each overlay promises beside."""
