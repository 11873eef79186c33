"""What others have asked of Ray's autoscaler stays, whatever becomes of our part and of us."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.core.ray_clusters.demand import PublishedDemand, merged
from fedpilot.fabric.core.resources import Resources
from fedpilot.fabric.manager.files.ledger_file import LedgerFile
from fedpilot.fabric.ray.control_plane.autoscaler import Autoscaler

FIFTY = ['{"CPU": 1.0}'] * 50
TWO, THREE = Resources.of({"CPU": 2}), Resources.of({"CPU": 3})


class Ray:
    """The request of a Ray cluster; whoever asks replaces it."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.written = 0
        self.dies = False

    def read(self) -> Sequence[str]:
        return list(self.requests)

    def write(self, requests: Sequence[str]) -> None:
        if self.dies:
            raise ConnectionError("the manager dies before it has written")
        self.requests, self.written = list(requests), self.written + 1

    def encode(self, amounts: Sequence[Mapping[str, float]]) -> Sequence[str]:
        return [json.dumps(each) for each in amounts]


class Manager:
    """One that dies and begins again, and finds its ledger."""

    def __init__(self, ray: Ray, path: Path) -> None:
        self.ray, self.path = ray, path
        self.file = LedgerFile(path)
        self.autoscaler = Autoscaler(ray, self.file)

    def ask(self, *ours: Resources) -> None:
        asyncio.run(self.autoscaler.ask(ours))

    def again(self) -> None:
        self.file.close()
        self.ray.dies = False
        self.file = LedgerFile(self.path)
        self.autoscaler = Autoscaler(self.ray, self.file)


@pytest.fixture
def ray() -> Ray:
    return Ray()


@pytest.fixture
def manager(ray: Ray, tmp_path: Path) -> Manager:
    return Manager(ray, tmp_path / "ledger.sqlite")


def test_nobody_who_lacks_nothing_asks_for_anything(ray: Ray, manager: Manager) -> None:
    ray.requests = list(FIFTY)
    manager.ask()
    manager.again()
    manager.ask()
    assert (ray.requests, ray.written) == (FIFTY, 0)


def test_our_part_comes_and_goes_beside_that_of_others(ray: Ray, manager: Manager) -> None:
    ray.requests = list(FIFTY)
    manager.ask(TWO)
    assert ray.requests == [*FIFTY, '{"CPU": 2.0}']
    manager.again()
    manager.ask(TWO, THREE)
    assert ray.requests == [*FIFTY, '{"CPU": 2.0}', '{"CPU": 3.0}']
    manager.again()
    manager.ask()
    assert ray.requests == FIFTY
    assert ray.written == 3


def test_what_others_ask_for_later_replaces_their_part_not_ours(ray: Ray, manager: Manager) -> None:
    manager.ask(TWO)
    ray.requests = list(FIFTY)  # as Ray's `request_resources` does
    manager.ask(TWO)
    assert ray.requests == [*FIFTY, '{"CPU": 2.0}']
    ray.requests = []
    manager.again()
    manager.ask(TWO)
    assert ray.requests == ['{"CPU": 2.0}']
    manager.ask()
    assert ray.requests == []


def test_a_manager_that_dies_before_it_has_written_knows_its_part(
    ray: Ray, manager: Manager
) -> None:
    ray.requests = list(FIFTY)
    manager.ask(TWO)
    ray.dies = True
    with pytest.raises(ConnectionError):
        manager.ask(THREE)
    manager.again()
    manager.ask(THREE)
    assert ray.requests == [*FIFTY, '{"CPU": 3.0}']
    manager.ask()
    assert ray.requests == FIFTY


some = st.lists(st.sampled_from("abc"), max_size=4)


@given(st.lists(st.tuples(some, st.none() | some), max_size=6))
def test_there_is_always_their_part_and_ours(
    steps: list[tuple[list[str], list[str] | None]],
) -> None:
    there: list[str] = []
    theirs: list[str] = []
    last = PublishedDemand()
    for ours, replaced in steps:
        if replaced is not None and sorted(replaced) not in (
            sorted(last.all),  # nobody can tell that from what we wrote
            sorted(last.others + last.before),
        ):
            there = theirs = replaced
        last = merged(there, last, ours)
        there = list(last.all)
        assert sorted(there) == sorted([*theirs, *ours])
