"""The connection to Ray: the cluster that RAY_ADDRESS names, or one on this machine for this process."""

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from ray_cfnet.cluster.stopping import told_on_sigterm


@contextmanager
def ray_session(min_cpus: int = 2) -> Iterator[None]:
    """Connects for the length of the block; a session that is already open stays as it is.

    `ray job submit` sets RAY_ADDRESS, so a job finds its own cluster. Without it Ray starts here, with at
    least `min_cpus` logical CPUs so that workers of a small machine do not wait for each other.

    SIGTERM ends the block with a StoppedError, Ray's start and end included.
    """
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray 2.60 warns about a change of GPU variables that does not concern CPU actors.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with told_on_sigterm():
        with told_on_sigterm():  # Ray puts a handler of its own in its place; leaving this block brings ours back
            _start(min_cpus)
        try:
            yield
        finally:
            ray.shutdown()


def is_alone() -> bool:
    """Whether Ray is this machine's and this process's: nothing will ever join it."""
    return not os.environ.get("RAY_ADDRESS")


def _start(min_cpus: int) -> None:
    if not is_alone():
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    else:
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its notices would stand among our lines
        # A process less: nobody takes this machine away.
        os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
        # Idle processes end after a while: each wakes a hundred times a second, on cores that have work. Not after
        # Ray's one second: those that encode a stream would begin anew for every unit.
        os.environ.setdefault("RAY_num_workers_soft_limit", "0")
        os.environ.setdefault("RAY_idle_worker_killing_time_threshold_ms", "10000")
        cpus = max(os.cpu_count() or 1, min_cpus)
        with _hushed_stderr():
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )


@contextmanager
def _hushed_stderr() -> Iterator[None]:
    """Holds back what Ray's start prints from C++, which no logger can silence; an error lets it out."""
    with tempfile.TemporaryFile() as held:
        kept = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
