"""Where the members of a gang go, and why they go nowhere."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedpilot.fabric.core.records import SchedulingPolicy
from fedpilot.fabric.core.scheduling.node_choice import Machines, NoPlaces
from fedpilot.fabric.core.scheduling.records import GangSpec, Strategy
from scheduling_situations import GPU, facts, gang, workload

PACK, STRICT_PACK = SchedulingPolicy.PACK, SchedulingPolicy.STRICT_PACK
SPREAD, STRICT_SPREAD = SchedulingPolicy.SPREAD, SchedulingPolicy.STRICT_SPREAD


def places(
    gpus: list[int], asked: GangSpec, *, spread: bool = False, shares: bool = False
) -> object:
    """The machine of each member by number; the reason if there is none."""
    snapshot = facts(gpus, {"A": 1}, each_gpu=shares).snapshot()
    strategy = Strategy.SPREAD if spread else Strategy.BINPACK
    found = Machines(snapshot).choose(
        "default",
        asked,
        [part.least for part in asked.parts],
        (),
        free=snapshot.free,
        devices=snapshot.devices,
        strategy=lambda pool, request: strategy,
    )
    return found.text if isinstance(found, NoPlaces) else sorted(found)


@pytest.mark.parametrize(
    ("gpus", "asked", "machines"),
    [
        pytest.param([4, 2], gang((1, 1)), [(0, 1)], id="the machine with the least left"),
        pytest.param([2, 3], gang((1, 4)), [(0, 0), (0, 0), (0, 1), (0, 1)], id="fill, go on"),
        pytest.param([4, 8], gang((4, 1), (1, 1), policy=PACK), [(0, 1), (1, 1)],
                     id="unequal members packed on the one machine that holds both"),
        pytest.param([3, 4], gang((1, 4), policy=PACK), [(0, 1)] * 4, id="one machine, not two"),
        pytest.param([1, 5, 3], gang((1, 7), policy=PACK), [(0, 1)] * 5 + [(0, 2)] * 2,
                     id="the roomiest machine, then the tightest for the rest"),
        pytest.param([2, 2], gang((1, 2), policy=SPREAD), [(0, 0), (0, 1)], id="spread apart"),
        pytest.param([2, 1], gang((1, 2), policy=STRICT_SPREAD), [(0, 0), (0, 1)], id="each alone"),
    ],
)  # fmt: skip
def test_a_gang_gets_these_machines(gpus: list[int], asked: GangSpec, machines: object) -> None:
    assert places(gpus, asked) == machines


@pytest.mark.parametrize(
    ("gpus", "asked", "why"),
    [
        pytest.param([2, 1], gang((2, 2)), "found room for 1", id="too few"),
        pytest.param([2, 2], gang((1, 3), policy=STRICT_PACK), "found room for 2", id="one"),
        pytest.param([9], gang((1, 2), policy=STRICT_SPREAD), "found 1", id="machines, not room"),
        pytest.param([4, 4], gang((4, 1), (1, 1), policy=STRICT_PACK), "no machine has room",
                     id="unequal members that must share a machine"),
    ],
)  # fmt: skip
def test_a_gang_gets_no_machines(gpus: list[int], asked: GangSpec, why: str) -> None:
    found = places(gpus, asked)
    assert isinstance(found, str)
    assert why in found


def test_spreading_takes_the_machine_with_the_largest_part_left() -> None:
    assert places([2, 4], gang((1, 3)), spread=True) == [(0, 0), (0, 1), (0, 1)]


def test_shares_do_not_cross_gpus() -> None:
    assert places([2], gang((0.6, 2)), shares=True) == [(0, 0), (0, 0)]
    assert places([1], gang((0.6, 2)), shares=True) != [(0, 0), (0, 0)]


@given(
    gpus=st.lists(st.integers(1, 4), min_size=1, max_size=6),
    asked=st.sampled_from([0.3, 0.5, 1, 2]),
    policy=st.sampled_from([None, *SchedulingPolicy]),
    changes=st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.3, 1, 2])), max_size=12),
)
def test_a_ranking_that_is_kept_up_to_date_chooses_what_a_new_search_chooses(
    gpus: list[int],
    asked: float,
    policy: SchedulingPolicy | None,
    changes: list[tuple[int, float]],
) -> None:
    kept = facts(gpus, {"A": 1}, each_gpu=True)
    snapshot = kept.snapshot()
    machines, seeks = Machines(snapshot), gang((asked, 1), policy=policy)
    changed: list[int] = []
    for number, (machine, amount) in enumerate(changes):
        free, devices = kept.snapshot().free, kept.snapshot().devices
        found = machines.fullest("default", seeks.parts[0], free, devices, changed)
        chosen = Machines(snapshot).choose(
            "default", seeks, [1], (), free=free, devices=devices,
            strategy=lambda pool, request: Strategy.BINPACK,
        )  # fmt: skip
        assert found == (None if isinstance(chosen, NoPlaces) else chosen[0][1])
        machine %= len(gpus)
        if free[machine, 0] >= round(amount * GPU):
            kept.add(workload(f"w{number}", 0, gang((amount, 1)), on=[machine]))
            changed.append(machine)


@given(
    gpus=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    asked=st.sampled_from([0.3, 1, 2, 5]),
    policy=st.sampled_from([None, *SchedulingPolicy]),
)
def test_a_lone_member_could_run_if_an_empty_machine_has_a_place(
    gpus: list[int], asked: float, policy: SchedulingPolicy | None
) -> None:
    alone = gang((asked, 1), policy=policy)
    machines = Machines(facts(gpus, {"A": 1}, each_gpu=True).snapshot())
    assert machines.could_run("default", alone) == isinstance(
        places(gpus, alone, shares=True), list
    )
