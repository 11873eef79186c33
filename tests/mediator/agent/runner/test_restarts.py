"""A local site whose runner dies gets the next one when it is asked to promise again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import fake_runner
from fedpilot.mediator import GangRequest, Payload, RunnerDied, RunnersSpent, SiteLost
from fedpilot.mediator.agent.runner.link import OrderTensors, RunnerLink
from fedpilot.mediator.agent.runner.process import RunnerProcess, RunnerSettings
from fedpilot.mediator.core.restarts import RestartSettings
from fedpilot.mediator.wire.blobs.store import BlobStore
from fedpilot.mediator.wire.references import Keeping

SOON_S = 60.0
HASTY = RestartSettings(first_pause_s=0.01, longest_pause_s=0.02)
PATIENT = RestartSettings(first_pause_s=3600.0, longest_pause_s=3600.0)
GANG = Payload(
    kind="gang", header=GangRequest(name="g", resources={"CPU": 1.0}, at_most=2).to_json()
)


class Owner:
    """Starts puppets, one after another, and owns the link to them."""

    def __init__(self, folder: Path, restarts: RestartSettings) -> None:
        self.settings = RunnerSettings(run="r", site="oslo", blobs=folder / "blobs")
        self.folder = folder / "r"
        self.started: list[RunnerProcess] = []
        self.doomed = 0
        """How many of the next ones are killed as soon as they are started."""
        self.orders = 0
        outbox = OrderTensors(Keeping(BlobStore(self.settings.blobs, 1 << 30), discard=True))
        self.link = RunnerLink(self.start(), outbox, start_next=self.start, restarts=restarts)

    def start(self) -> RunnerProcess:
        process = fake_runner.start(self.folder, self.settings)
        self.started.append(process)
        if self.doomed:
            self.doomed -= 1
            process.kill()
        return process

    def promises(self) -> bool:
        answer = self.link.ask("prepare", GANG, key="prepare").result(SOON_S)
        return answer.kind == "promised"

    def killed(self, round_number: int = 3) -> BaseException | None:
        """What becomes of an order that kills the runner."""
        self.orders += 1
        key = f"work/{self.orders}"
        answer = self.link.ask("work", Payload(kind="killed"), key=key, round_number=round_number)
        return answer.exception(SOON_S)

    def close(self) -> None:
        self.link.close()
        for process in self.started:
            process.kill()
            process.wait(SOON_S)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path, HASTY)
    yield made
    made.close()


def test_the_next_one_is_started_when_the_site_is_prepared_again(owner: Owner) -> None:
    assert owner.promises()
    error = owner.killed()
    assert isinstance(error, RunnerDied)
    assert "its runner was killed by SIGKILL" in error.reason
    assert owner.link.died
    assert len(owner.started) == 1, "nobody has asked for the next one yet"
    assert owner.promises()
    assert not owner.link.died
    assert len(owner.started) == 2


def test_one_that_dies_before_it_has_promised_is_followed_within_the_order(owner: Owner) -> None:
    assert owner.promises()
    assert isinstance(owner.killed(), RunnerDied)
    owner.doomed = 1
    assert owner.promises()
    assert len(owner.started) == 3


def test_a_crash_that_repeats_at_the_same_place_is_the_end_of_the_site(owner: Owner) -> None:
    for _ in range(2):
        assert owner.promises()
        assert type(owner.killed()) is RunnerDied
    assert owner.promises()
    error = owner.killed()
    assert isinstance(error, RunnersSpent)
    assert "3 times at work of round 3" in error.reason
    with pytest.raises(RunnersSpent, match="killed by SIGKILL"):
        owner.promises()
    assert len(owner.started) == 3


def test_closing_ends_the_wait_for_the_next_one(tmp_path: Path) -> None:
    owner = Owner(tmp_path, PATIENT)
    assert owner.promises()
    assert isinstance(owner.killed(), RunnerDied)
    waiting = owner.link.ask("prepare", GANG, key="again")
    owner.close()
    assert isinstance(waiting.exception(SOON_S), SiteLost)
    assert len(owner.started) == 1
