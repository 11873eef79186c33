"""A run that is to stop stops, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedpilot.mediator.proto import federation_pb2 as pb
from fedpilot.mediator.server.runs.coordinator_process import CoordinatorProcess
from fedpilot.mediator.server.runs.run_states import BEFORE, RESUMABLE
from fedpilot.mediator.server.store import RunState, Store
from mediators import mediating
from runs_at_mediators import (
    run,
)


@pytest.mark.parametrize("state", RunState)
def test_a_run_that_is_to_stop_comes_into_no_state_but_an_end(state: RunState) -> None:
    ends = state in {*RESUMABLE, RunState.FINISHED}
    assert (RunState.STOPPING in BEFORE[state]) is ends


def test_a_stop_outlives_a_coordinator_that_starts_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        start, change = CoordinatorProcess.start, Store.set_run_state

        async def slowly(command: Any, log: Path) -> CoordinatorProcess:
            process = await start(command, log)
            await here.admin.stop_run(pb.RunRequest(run="run"))
            return process

        def noted(store: Store, id: str, state: RunState, **facts: Any) -> bool:
            if changed := change(store, id, state, **facts):
                states.append(state)
            return changed

        states: list[RunState] = []
        monkeypatch.setattr(CoordinatorProcess, "start", slowly)
        monkeypatch.setattr(Store, "set_run_state", noted)
        async with mediating(tmp_path / "m", end_s=0.2) as here:
            await here.submit("run", then="wait")
            assert (await here.ended("run"))["status"] == "stopped"
        assert states == [RunState.STOPPING, RunState.STOPPED]

    run(test())
