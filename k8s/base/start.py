"""Creates the RayJob of a day from its suspended template: python start.py TEMPLATE

The RayJob's name holds the date, so a second start of the same day fails with AlreadyExists, which is success here.
The date is DATE, or today in TIME_ZONE less DAYS_BACK; it and the other variables are filled into the entry point.
The RayJob belongs to the Job this runs in (JOB_NAME, JOB_UID): the CronJob's history limits clean up both.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from string import Template
from typing import Any
from zoneinfo import ZoneInfo

# The entry point goes through a shell, twice.
PLAIN = re.compile(r"[A-Za-z0-9_.,:/=@%+\[\]-]+")


def day(environment: Mapping[str, str]) -> str:
    """The date to work on, as YYYY-MM-DD."""
    if given := environment.get("DATE"):
        return date.fromisoformat(given).isoformat()
    today = datetime.now(ZoneInfo(environment["TIME_ZONE"])).date()
    return (today - timedelta(days=int(environment["DAYS_BACK"]))).isoformat()


def rayjob(template: dict[str, Any], day: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The RayJob to create. Raises ValueError for a variable that is missing or no plain word."""
    entrypoint = Template(template["spec"]["entrypoint"])
    values = {name: environment.get(name, "") for name in entrypoint.get_identifiers()} | {"DATE": day}
    for name, value in values.items():
        if not PLAIN.fullmatch(value):
            raise ValueError(f"{name} is {value!r}: give it one plain word in the ConfigMap ray-cfnet-settings")
    name = template["metadata"]["name"]
    labels = {**template["metadata"].get("labels", {}), "ray-cfnet/date": day}
    if queue := environment.get("QUEUE"):
        labels["kueue.x-k8s.io/queue-name"] = queue
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": environment["JOB_NAME"], "uid": environment["JOB_UID"]}
    return {
        "apiVersion": template["apiVersion"],
        "kind": template["kind"],
        "metadata": {"name": f"{name}-{day}", "labels": labels, "ownerReferences": [owner]},
        "spec": {**template["spec"], "suspend": False, "entrypoint": entrypoint.substitute(values)},
    }


def kubectl(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["kubectl", *arguments], input=given, capture_output=True, text=True, check=False)


def main(template_name: str) -> int:
    found = kubectl("get", "rayjobs.ray.io", template_name, "-o", "json")
    if found.returncode:
        print(found.stderr, file=sys.stderr, end="")
        return found.returncode
    try:
        job = rayjob(json.loads(found.stdout), day(os.environ), os.environ)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    created = kubectl("create", "-f", "-", given=json.dumps(job))
    if created.returncode and "(AlreadyExists)" in created.stderr:
        print(f"{job['metadata']['name']} was started before; nothing to do")
        return 0
    print(created.stdout, end="")
    print(created.stderr, file=sys.stderr, end="")
    return created.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
