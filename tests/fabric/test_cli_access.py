"""What commands share: an interruption is heard once, and again by those who ask again."""

from __future__ import annotations

import os
import signal
import time

import pytest

from fedpilot.fabric.cli_access import UNDISTURBED_S, interruptions


def test_what_follows_from_an_interruption_is_not_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    before = signal.getsignal(signal.SIGINT)
    with interruptions():
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)  # it leaves Ray by now
        now += UNDISTURBED_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before
