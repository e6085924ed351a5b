"""In processes of their own: how memory is freed is a setting of the whole process."""

import subprocess
import sys

import pytest

BATCHES = """
import resource, sys
import numpy as np
from ray_cfnet.cluster.allocation import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
def batch():
    np.ones(5_000_000)  # 40 MB: above what glibc ever keeps by itself
batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's setting")
def test_freed_memory_serves_the_next_batch_without_new_pages() -> None:
    faults = {}
    for how in ("kept", "given back"):
        command = [sys.executable, "-c", BATCHES, how]
        faults[how] = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert faults["kept"] * 10 < faults["given back"]
