"""What a process becomes that works for a federation."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from fedpilot.federated.engine.modules import settle

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(16 << 20, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
usual = faults()
settle(1, "cpu")
faults()
print(usual, faults())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this libc is not glibc")
def test_a_worker_keeps_the_memory_that_it_frees() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    usual, settled = map(int, done.stdout.split())
    assert settled * 4 < usual
