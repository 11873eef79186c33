"""`fedpilot cluster tree`: bars lie where shares lie, and whoever holds something is seen."""

from __future__ import annotations

from itertools import pairwise

import pytest

from cluster_documents import NOW, A, B, held, machine, printed, shared, vnode, waiting
from fedpilot.fabric.cli.terminal.tree import picture

PICTURE = """\
Ray cluster of 2 machines

  in all  ██████··  6 of 8 CPU held
  host-a  ██████··  3 of 4 CPU held
  host-b  ██████··  3 of 4 CPU held

Ray cluster                   CPU                               8 CPU
├── vision    ● active        ████░░░░························  2 CPU
│   work: 1 running, 2 waiting for room
│   host-a: 1 CPU in 1 fixed-size vnode
│   host-b: 1 CPU in 1 fixed-size vnode
├── speech    ● active        ········▒▒▒▒▒▒▒▒░░░░············  3 CPU
│   2 CPU borrowed from the Ray cluster for another 42 s
│   host-a: 3 CPU in a flexible vnode
│   └── eval  ● active        ········░░░░░░░░················  2 CPU
│       host-a: 2 CPU in 1 fixed-size vnode
├── default   ● active        ····················████········  1 CPU
│   what runs on Ray outside all virtual clusters
├── tabular   ○ waiting, 1st  wants 5 CPU
│   2 CPU are free
│   asked 1 min 40 s ago, gives up in 10 min
└── genomics  ○ waiting, 2nd  wants 1 CPU
    tabular is before it
    asked 1 min 40 s ago

█ in use   ▒ handed on to those inside   ░ held and idle   · the rest of the Ray cluster"""


def test_the_picture() -> None:
    assert printed(picture(shared(), NOW)) == PICTURE


def test_the_picture_of_an_empty_cluster_says_what_to_do() -> None:
    assert "fedpilot cluster create" in printed(picture({"machines": [], "clusters": []}, NOW))


@pytest.mark.parametrize(
    ("places", "said"),
    [
        pytest.param(["a/0", "a/1", "b@", "c@", "d@", "e@", "f@"], None, id="all are shown"),
        pytest.param(
            [*"abcdef", "g/0"], "and 1 vnode more on 1 machine", id="one of another machine"
        ),
        pytest.param(
            [*"abcdef", "g/0", "g/1", "g@", "h/0"],
            "and 4 vnodes more on 2 machines",
            id="two kinds on one machine",
        ),
        pytest.param(
            [*"abcdef", "a@"], "and 1 vnode more on 1 machine", id="one of a machine that is shown"
        ),
    ],
)
def test_vnodes_that_are_not_shown_are_counted(places: list[str], said: str | None) -> None:
    nodes = [vnode(f"{name[1:] or '/'}{n}", name[0] * 56, 1) for n, name in enumerate(places)]
    machines = [machine(name * 56, 4, 1) for name in "abcdefgh"]
    drawn = printed(picture({"machines": machines, "clusters": [held("job", *nodes)]}, NOW))
    assert [line.strip(" │") for line in drawn.splitlines() if " more on " in line] == (
        [said] if said else []
    )


def test_gpus_have_a_bar_of_their_own_and_equal_hosts_are_told_apart() -> None:
    document = shared()
    document["machines"] = [machine(A, 4, 1, "vm", GPU=1), machine(B, 4, 1, "vm", memory=2.0**31)]
    drawn = printed(picture(document, NOW), width=120)
    assert "CPU               GPU               8 CPU, 1 GPU, 2 GiB memory" in drawn
    assert f"vm ({A[:8]}): 3 CPU in a flexible vnode" in drawn


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param({"flex_resource_min": {"CPU": 2}}, False, id="nobody reserves memory"),
        pytest.param({"flex_resource_min": {"memory": 2**30}}, True, id="one asks for some"),
    ],
)
def test_memory_has_a_column_where_somebody_reserves_it(
    spec: dict[str, object], told: bool
) -> None:
    document = shared()
    document["machines"] = [machine(each, 4, 1, memory=2.0**35) for each in (A, B)]
    document["clusters"] += [waiting("new", 3, 1, "", spec=spec)]
    drawn = printed(picture(document, NOW), width=120)
    assert ("0 of 32 GiB memory held" in drawn) is told


@pytest.mark.parametrize("count", [7, 40, 500])
def test_bars_lie_side_by_side_and_none_is_invisible(count: int) -> None:
    clusters = [held(f"t{n:03}", vnode(f"t{n:03}/0", A, 1)) for n in range(count)]
    document = {"machines": [machine(A, count, 0)], "clusters": clusters}
    lines = printed(picture(document, NOW), width=160).splitlines()
    bars = [line.split("● active  ")[1][:32] for line in lines if "● active  " in line]
    assert len(bars) == count
    assert all(len(bar) == 32 and set(bar) <= {"░", "·"} and "░" in bar for bar in bars)
    for before, after in pairwise(bars):
        assert before.index("░") <= after.index("░")
