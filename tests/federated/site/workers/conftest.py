"""A setting for pools of workers that looks at its gang without pause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fedpilot.federated.site.workers import gang_watch, pool as pool_module
from pools import Setting


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Setting]:
    monkeypatch.setattr(pool_module, "TICK_S", 0.01)
    monkeypatch.setattr(gang_watch, "LOOK_S", 0.01)
    with ExitStack() as undo:
        yield Setting(undo)
