"""What two processes gain over one on this machine at all: python benchmarks/machine.py

Two virtual cores may be one real core. Small matrix products that share nothing and stay in the cache show how much two
processes can gain; no job gains more. Ratios of two workers or actors are told beside it.
"""

import json
import statistics
import subprocess
import sys

PRODUCTS = """
import sys, time, torch
torch.set_num_threads(1)
a = torch.randn(256, 256)
for _ in sys.stdin:
    started = time.perf_counter()
    for _ in range(4000):
        a @ a
    print(time.perf_counter() - started, flush=True)
"""


def two_over_one() -> float:
    """How many times the products of one process two processes make in the same time: 2 on two real, idle cores."""
    command, pipe = [sys.executable, "-c", PRODUCTS], subprocess.PIPE
    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) for _ in range(2)]  # noqa: S603

    def seconds(*chosen: subprocess.Popen[str]) -> float:
        for process in chosen:
            process.stdin.write("go\n")  # type: ignore[union-attr]
        return max(float(process.stdout.readline()) for process in chosen)  # type: ignore[union-attr]

    seconds(*processes)  # imports, and a warm cache
    ratios = []
    for _ in range(5):  # turn by turn, so that a busy neighbour slows both alike
        one, two = seconds(processes[0]), seconds(*processes)
        ratios.append(2 * one / two)
    for process in processes:
        process.communicate()
    return statistics.median(ratios)


def gains(speeds: list[float]) -> list[float]:
    """How many times the speed of one each run of two had; runs in turn: one, two, one, ..., one.

    Each run of two is compared with the runs before and after it: a machine's speed drifts by a tenth within minutes.
    """
    pairs = zip(speeds[1::2], speeds[:-1:2], speeds[2::2], strict=True)
    return [2 * two / (before + after) for two, before, after in pairs]


if __name__ == "__main__":
    print(json.dumps({"benchmark": "machine", "two_processes_over_one": round(two_over_one(), 4)}))
