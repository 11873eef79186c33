"""Commands in virtual clusters that are looked at often."""

from __future__ import annotations

import pytest

from fedpilot.fabric.jobs import confine, running_command


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks follow quickly on one another."""
    for name in ("WATCH_S", "FIRST_POLL_S", "LAST_POLL_S"):
        monkeypatch.setattr(confine, name, 0.02)
    for module in (confine, running_command):
        monkeypatch.setattr(module, "GRACE_S", 0.5)
