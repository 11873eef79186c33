"""The site of this process reserves, works in order, and gives its vnodes back."""

from __future__ import annotations

import pytest

from fedpilot.fabric import SchedulingPolicy, VirtualClusterManager
from fedpilot.fabric.testing.fake_cluster import FakeCluster, ManualClock, fake_machine
from fedpilot.mediator import (
    GangRequest,
    InProcessSite,
    Payload,
    Promise,
    Refusal,
    SiteContext,
)


def in_process(
    *amounts: float, clock: ManualClock | None = None
) -> tuple[InProcessSite, FakeCluster]:
    machines = [fake_machine(f"m{i}", CPU=cpus) for i, cpus in enumerate(amounts)]
    cluster = FakeCluster(machines, clock)
    manager = (
        VirtualClusterManager(cluster) if clock is None else VirtualClusterManager(cluster, clock)
    )
    return InProcessSite("local", manager), cluster


@pytest.mark.parametrize(
    ("cpus", "request_", "vnodes"),
    [
        pytest.param(
            (4,), GangRequest(name="g", resources={"CPU": 1.0}, workers=3), 3, id="as asked"
        ),
        pytest.param((4,), GangRequest(name="g", resources={"CPU": 1.0}), 4, id="as many as fit"),
        pytest.param(
            (4,),
            GangRequest(name="g", resources={"CPU": 1.0}, at_least=2, at_most=3),
            3,
            id="a range",
        ),
        pytest.param(
            (4,),
            GangRequest(name="g", resources={"CPU": 1.0}, at_least=2, at_most=9),
            4,
            id="a range of which a part fits",
        ),
        pytest.param((64,), GangRequest(name="g", resources={"CPU": 1.0}), 16, id="at most 16"),
        pytest.param(
            (4, 4),
            GangRequest(name="g", resources={"CPU": 3.0}, policy=SchedulingPolicy.STRICT_SPREAD),
            2,
            id="by its policy",
        ),
    ],
)
def test_a_site_promises_vnodes(
    cpus: tuple[float, ...], request_: GangRequest, vnodes: int
) -> None:
    site, cluster = in_process(*cpus)
    assert site.prepare(request_).result(60) == Promise("local", vnodes)
    site.release()
    assert cluster.groups() == ()
    site.release()


@pytest.mark.parametrize("workers", [9, None])
def test_a_site_that_can_never_hold_it_refuses_at_once(workers: int | None) -> None:
    site, cluster = in_process(4)
    cpus = 1.0 if workers else 5.0
    answer = site.prepare(GangRequest(name="g", resources={"CPU": cpus}, workers=workers)).result(
        60
    )
    assert isinstance(answer, Refusal)
    assert "can never give" in answer.reason
    assert cluster.groups() == ()


def test_a_site_whose_resources_are_taken_refuses_after_the_time_given() -> None:
    clock = ManualClock()
    site, cluster = in_process(4, clock=clock)
    other = InProcessSite("other", VirtualClusterManager(cluster, clock))
    other.prepare(GangRequest(name="o", resources={"CPU": 3.0}, workers=1))
    answer = site.prepare(
        GangRequest(name="g", resources={"CPU": 2.0}, workers=1, timeout_s=7)
    ).result(60)
    assert isinstance(answer, Refusal)
    assert clock.now == 7
    other.release()
    retry = site.prepare(GangRequest(name="g", resources={"CPU": 2.0}, workers=1)).result(60)
    assert retry == Promise("local", 1)


def test_a_site_works_only_after_it_was_prepared_and_checked() -> None:
    site, _ = in_process(1)
    with pytest.raises(RuntimeError):
        site.start(lambda _: None).result(60)
    with pytest.raises(RuntimeError):
        site.deliver(Payload(kind="round"), "k", "training")


class Stubborn:
    """A workload that cannot be stopped."""

    def prepare(self, spec: Payload, site: SiteContext) -> None: ...

    def stop(self) -> None:
        raise RuntimeError("will not stop")


def test_a_workload_that_cannot_be_stopped_does_not_keep_the_vnodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "fedpilot.mediator.federation.in_process_site.load_workload", lambda _name: Stubborn()
    )
    site, cluster = in_process(1)
    site.prepare(GangRequest(name="g", resources={"CPU": 1.0}, workers=1))
    site.check("w", Payload(kind="spec"))
    with pytest.raises(RuntimeError, match="will not stop"):
        site.release().result(60)
    assert cluster.groups() == ()
