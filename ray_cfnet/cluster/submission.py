"""Jobs on a Ray cluster: what a driver knows about its own, and how a person sends one.

Tokens come from Ray's own variables (RAY_AUTH_MODE, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH); nothing here reads or
repeats them.
"""

import asyncio
import json
import logging
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray_cfnet.config import Config
from ray_cfnet.errors import InputError, JobError

_DEFAULT_GRACE_S = 3.0
_LOOK_EVERY_S = 0.5
_PACKAGE = Path(__file__).parents[1]


def submission_id() -> str | None:
    """The id under which `ray job submit` started this process; None for any other."""
    try:
        # Ray 2.60 tells a driver in no other way.
        return str(json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"])
    except (KeyError, TypeError, ValueError):
        return None


def stop_grace_s() -> float | None:
    """How long `ray job stop` waits between SIGTERM and SIGKILL; None where no such job runs."""
    return None if submission_id() is None else float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", _DEFAULT_GRACE_S))


def check_places(config: Config, bundle: str | None, writes: bool = True) -> None:
    """Raises InputError for a relative path: a job's directory is a copy, on one node, and goes with the job.

    A job that `writes` no output has no use for output.path, unless the bundle is looked for below it.
    """
    output = config.output.path if writes or bundle is None else None
    places = {"table.path": config.table.path, "output.path": output, "--bundle": bundle}
    relative = [
        f"{name} {place}"
        for name, place in places.items()
        if place is not None and "://" not in place and not Path(place).expanduser().is_absolute()
    ]
    if relative:
        raise InputError(
            f"a job on a cluster cannot use a path relative to where it was sent from: {', '.join(relative)}",
            "give s3:// or an absolute path that every node has, for example with --input, --output or --bundle",
        )


@dataclass(frozen=True)
class SubmittedJob:
    """A job that a cluster has taken."""

    client: Any
    id: str
    dashboard: str

    def follow(self, on_log: Callable[[str], None]) -> tuple[str, int]:
        """Its log until it ends, then its status and exit code. Raises JobError when the cluster is lost."""
        from aiohttp import ClientError  # Ray follows logs by it and lets its errors through

        try:
            asyncio.run(self._tail(on_log))
            while not (details := self.client.get_job_info(self.id)).status.is_terminal():
                time.sleep(_LOOK_EVERY_S)
        except (OSError, RuntimeError, ClientError) as error:
            raise JobError(
                f"lost the cluster while following job {self.id}; it may still run, ray job status {self.id} tells "
                f"({type(error).__name__})"
            ) from error
        if details.status == "SUCCEEDED":
            return str(details.status), 0
        return str(details.status), details.driver_exit_code or 1

    async def _tail(self, on_log: Callable[[str], None]) -> None:
        async for lines in self.client.tail_job_logs(self.id):
            on_log(lines)


def submit(command: str, file: Path, arguments: list[str], address: str | None) -> SubmittedJob:
    """Sends `ray-cfnet COMMAND --config FILE ARGUMENTS` to a cluster, with this version's own code.

    What travels is this package and the one file, so that it does not matter where it is sent from. Raises
    InputError when the cluster cannot be reached or does not know the token, JobError when it refuses the job or is
    lost meanwhile.
    """
    client = _connect(address)
    with tempfile.TemporaryDirectory(prefix="ray-cfnet-") as directory:
        shutil.copytree(_PACKAGE, Path(directory, "ray_cfnet"), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(file, Path(directory, file.name))
        words = ["python", "-m", "ray_cfnet", command, "--config", file.name, *arguments]
        try:
            job_id = client.submit_job(entrypoint=shlex.join(words), runtime_env={"working_dir": directory})
        except RuntimeError as error:
            raise JobError(f"the cluster refused the job: {error}") from error
        except OSError as error:
            raise JobError(
                f"lost the cluster while sending the job; it may have it, ray job list tells ({type(error).__name__})"
            ) from error
    return SubmittedJob(client, job_id, f"{client.get_address()}/#/jobs/{job_id}")


def _connect(address: str | None) -> Any:
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    for name in ("ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if address is not None:
        address = address if "://" in address else f"http://{address}"
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray prefers its variables to what it is told
    where = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "this machine"
    try:
        return JobSubmissionClient(address)
    except AuthenticationError:
        raise InputError(
            f"the cluster at {where} wants another token",
            "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file with the cluster's token",
        ) from None
    except Exception as error:  # whatever Ray, requests or a resolver raise: the address is what can be changed
        raise InputError(
            f"no Ray cluster can be reached at {where} ({type(error).__name__})",
            "pass --address http://HEAD:8265, the cluster's dashboard; on Kubernetes first "
            "kubectl port-forward service/HEAD-SERVICE 8265",
        ) from None
