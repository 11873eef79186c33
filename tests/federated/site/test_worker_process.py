"""What a process becomes that works for a federation."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from fedpilot.federated.engine.training.modules import settle

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.empty(8 << 20, dtype=torch.uint8).fill_(1) for _ in range(12)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

settle(1, "cpu")
print(min(faults() for _ in range(6)))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc is not glibc")
def test_a_worker_keeps_the_memory_that_it_frees() -> None:
    # glibc gives 96 MiB back to the system in about two of three processes, by where they lie.
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
        assert int(done.stdout) < 1_000  # of 24,576 pages
