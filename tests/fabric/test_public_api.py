"""What fabric offers, and that asking for it does not load Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedpilot import fabric

SOURCE = Path(__file__).parents[2] / "src"
ASK = """
import sys
import fedpilot.fabric, fedpilot.fabric.testing.fake_cluster
fedpilot.fabric.local_machine()
print(sorted({name.partition(".")[0] for name in sys.modules} & {"ray", "torch", "grpc", "numpy"}))
"""


def test_importing_fabric_loads_neither_ray_nor_torch() -> None:
    answer = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    assert list(fabric.__all__) == sorted(fabric.__all__)
    for name in fabric.__all__:
        assert getattr(fabric, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        fabric.Nothing  # noqa: B018
