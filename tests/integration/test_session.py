"""The Ray of this machine alone."""

import os

import ray


def test_rays_processes_do_not_push_others_off_their_core() -> None:
    @ray.remote(num_cpus=0)
    def policy() -> int:
        return os.sched_getscheduler(0)

    assert ray.get(policy.remote()) == os.SCHED_BATCH
