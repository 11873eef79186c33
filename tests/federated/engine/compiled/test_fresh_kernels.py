"""A process that compiles the kernel computes what one computes that finds it in the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clients import Clients, dense
from fedpilot.federated.core.execution.facts import ExecutionKind
from fedpilot.federated.core.state import digest
from module_builders import OPTIMIZERS

SIZES = (23, 40, 7)


def digests() -> list[str]:
    """Of what clients become in two rounds, by optimizer."""
    found = []
    for training in OPTIMIZERS.values():
        clients = Clients(dense, sizes=SIZES, training={**training, "number_of_epochs": 2})
        trained = clients.train(kind=ExecutionKind.COMPILED)
        found += [f"{client} {digest(after.state)}" for client, after in trained.items()]
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_who_compiles_computes_the_same_bits(tmp_path: Path) -> None:
    """A callee compiled by itself may round otherwise than its copy in the caller's code."""
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    compiled, loaded = (
        subprocess.run(
            [sys.executable, __file__],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    )
    assert any(tmp_path.rglob("dense.train_clients*.nbc")), "the first one compiled"
    assert compiled == loaded
    assert len(set(compiled.splitlines())) == len(OPTIMIZERS) * len(SIZES)


if __name__ == "__main__":
    print("\n".join(digests()))
