"""Runs whose sites are lost and come back end in the same bits, or say what they lacked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from calm_runs import CalmRuns
from federations import Lab, in_time, raising, timeless
from fedpilot.federated import Event, Federation
from fedpilot.federated.core.rounds.participation import TooFewSites
from fedpilot.federated.federation.coordinator.coordinator import Coordinator
from fedpilot.federated.federation.setup.global_model import GlobalModel
from fedpilot.mediator import GangRequest, Payload, Refusal
from fedpilot.mediator.core.reservation import Answer
from fedpilot.mediator.federation.futures import done
from pairings import paired
from shaky_sites import SITES, Moments, Region, ShakySite, returning


@pytest.fixture
def region(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Region:
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {})
    return Region(lab)


TRAINED_AT_SITES = {"evaluation__where": "sites", "evaluation__clients": "all"}
HOW: dict[str, tuple[bool, dict[str, Any]]] = {
    "before its work, judged here": (False, {}),
    "amid its work, judged at sites": (True, TRAINED_AT_SITES),
    "before its work, judged at sites": (False, TRAINED_AT_SITES),
    "amid its work, judged here": (True, {}),
}


@pytest.mark.parametrize(
    ("moments", "how"),
    paired(
        [
            pytest.param({"west": {0}}, id="with the first round"),
            pytest.param({"west": {1}}, id="with the first judging"),
            pytest.param({"north": {4}}, id="in the middle of the run"),
            pytest.param({"east": {1}}, id="the one that tries out and judges"),
            pytest.param({"west": {2}, "north": {3}}, id="two of three"),
            pytest.param({"west": {2}, "north": {2}}, id="two in one round"),
            pytest.param({"west": {2}, "north": {3}}, id="another during the redo"),
        ],
        list(HOW),
    ),
)
def test_a_lost_site_changes_no_bit(
    moments: Moments, how: str, calm: CalmRuns, region: Region
) -> None:
    amid, keys = HOW[how]
    reference = calm.run(resources__workers=1, **keys)
    result = in_time(region.federation(moments, amid=amid, **keys).run)
    assert result.digest == reference.digest
    assert timeless(result.rows) == timeless(reference.rows)
    lost = region.log.of("site_lost")
    assert {event["site"] for event in lost} <= set(moments)
    assert all("cable" in event["reason"] for event in lost)


@settings(
    max_examples=settings().max_examples // 8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    moments=st.dictionaries(
        st.sampled_from(SITES), st.sets(st.integers(1, 6), min_size=1, max_size=1), max_size=2
    ),
    amid=st.booleans(),
)
def test_whatever_is_lost_when_the_model_is_the_same(
    moments: Moments, amid: bool, calm: CalmRuns, region: Region
) -> None:
    keys = {"federation__rounds": 2, **TRAINED_AT_SITES}
    expected = calm.run(resources__workers=1, **keys).digest
    result = in_time(region.federation(moments, amid=amid, **keys).run)
    assert result.digest == expected
    assert all(row["clients"] == 6 for row in result.rows)


def test_a_site_that_a_model_never_reached_is_lost_and_the_run_goes_on(
    calm: CalmRuns, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was full when the model came; the next order names a model that it has not."""
    reached = ShakySite.deliver

    def deliver(site: ShakySite, order: Payload, key: str, purpose: str) -> Future[Payload]:
        if site.name == "west" and order.kind == "round":
            order = replace(order, tensors={})
        return reached(site, order, key, purpose)

    expected = calm.run(resources__workers=1).digest
    monkeypatch.setattr(ShakySite, "deliver", deliver)
    result = in_time(region.federation().run)
    assert result.digest == expected
    (lost,) = region.log.of("site_lost")
    assert lost["site"] == "west"
    assert lost["reason"].startswith("model ")
    assert lost["reason"].endswith(" has not arrived there")


def test_a_lost_sites_clients_are_said_to_be_elsewhere(lab: Lab, region: Region) -> None:
    federation = region.federation({"west": {0}})
    in_time(federation.run)
    (lost,) = region.log.of("site_lost")
    assert lost == {"site": "west", "reason": "the cable was cut", "clients": 4}
    text = federation[federation.client_id(11)].explain()
    assert "was at site west until round 1, which was lost: the cable was cut" in text


def test_single_clients_are_asked_at_their_next_site(lab: Lab, region: Region) -> None:
    with region.federation({"west": {0}}) as federation:
        name = federation.client_id(11)
        trained = in_time(federation[name].train)
        with lab.federation() as alone:
            expected = in_time(alone[name].train)
    assert trained.state.keys() == expected.state.keys()
    assert all((trained.state[n] == expected.state[n]).all() for n in expected.state)


def test_orders_have_keys_that_a_coordinator_started_anew_finds_again(
    lab: Lab, region: Region
) -> None:
    names = iter(("one", "two"))

    def keys_of_two_rounds() -> list[str]:
        stop = raising(KeyboardInterrupt(), "round_started", nth=3)
        made = region.federation(None, stop)
        with pytest.raises(KeyboardInterrupt):
            made.run(run_id=next(names))
        return sorted(k for site in ShakySite.sites.values() for k in site.keys if "/" in k)

    first, second = keys_of_two_rounds(), keys_of_two_rounds()
    assert first == second
    assert len(set(first)) == len(first) == 2 * 3 + 2


# -- sites that return ------------------------------------------------------------------------


def test_a_run_waits_for_the_return_of_the_last_site(calm: CalmRuns, region: Region) -> None:
    reference = calm.run(resources__workers=1)
    federation = region.federation({site: {3} for site in SITES})
    federation._events.observers.append(returning(federation, "north"))
    result = in_time(federation.run)
    assert result.digest == reference.digest
    assert region.log.of("site_returned")[0]["site"] == "north"


def test_a_site_that_returns_is_given_work_back_bit_by_bit(
    lab: Lab, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"federation__rounds": 8}
    reference = lab.run(resources__workers=1, **keys)
    federation = region.federation({"west": {1}}, **keys)

    step = Coordinator.step

    def stepping(self: Coordinator, model: GlobalModel) -> Any:
        if model.round_number == 3:
            ShakySite.sites["west"].gone = False
            self._run.mediator.readmit("west").result(60)
        return step(self, model)

    monkeypatch.setattr(Coordinator, "step", stepping)
    result = in_time(federation.run)
    assert result.digest == reference.digest
    shares = [
        sum(len(range(*each)) for each in order.header["share"])
        for order in ShakySite.sites["west"].orders
        if order.kind == "round"
    ]
    assert shares == [4, 4, 1, 2, 3, 4, 4]
    assert [event["site"] for event in region.log.of("site_returned")] == ["west"]


def drained(
    federation: Federation, site: str, *, before: int, patch: pytest.MonkeyPatch
) -> Federation:
    """A federation that drains a site before a round."""
    step = Coordinator.step

    def stepping(self: Coordinator, model: GlobalModel) -> Any:
        if model.round_number + 1 == before:
            self._run.mediator.orders.drain(site, "drain by alice", round_number=before).result(60)
        return step(self, model)

    patch.setattr(Coordinator, "step", stepping)
    return federation


def test_a_site_that_is_drained_is_not_said_to_be_lost(
    calm: CalmRuns, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = calm.run(resources__workers=1)
    federation = drained(region.federation(), "west", before=2, patch=monkeypatch)
    result = in_time(federation.run)
    assert result.digest == reference.digest
    (told,) = region.log.of("site_drained")
    assert (told["site"], told["reason"], told["clients"] > 0) == (
        "west",
        "drain by alice",
        True,
    )
    assert region.log.of("site_lost") == []


@pytest.mark.parametrize("went", ["site_lost", "site_drained"])
def test_a_site_that_comes_back_while_no_coordinator_is_there_is_said_to_return_once(
    went: str, lab: Lab, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(number: int) -> Callable[[Event], None]:
        return raising(KeyboardInterrupt(), "round_finished", round=number)

    moments = {"west": {1}} if went == "site_lost" else None
    federation = region.federation(moments, interrupted(2))
    with monkeypatch.context() as patch:
        if went == "site_drained":
            drained(federation, "west", before=2, patch=patch)
        with pytest.raises(KeyboardInterrupt):
            in_time(lambda: federation.run(run_id="r"))
    federation.close()
    assert [event["site"] for event in region.log.of(went)] == ["west"]
    with pytest.raises(KeyboardInterrupt):
        in_time(lambda: region.federation(None, interrupted(3)).resume("r"))
    names = [event.name for event in region.log]
    assert names.index("workers_ready") < names.index("site_returned")
    assert names.index("site_returned") < names.index("round_started")
    assert region.log.of("site_returned") == [{"site": "west"}]
    in_time(lambda: region.federation().resume("r"))
    assert region.log.of("site_returned") == []


def test_a_site_that_comes_back_after_the_next_coordinator_began_is_said_to_return_once(
    lab: Lab, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"sites__min_sites": 2}
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    federation = region.federation({"west": {0}}, stop, **keys)
    with pytest.raises(KeyboardInterrupt):
        in_time(lambda: federation.run(run_id="r"))
    federation.close()
    prepare, step, away = ShakySite.prepare, Coordinator.step, {"west"}

    def preparing(self: ShakySite, request: GangRequest) -> Future[Answer]:
        if self.name in away:
            return done(lambda: Refusal(self.name, "its Ray is gone"))
        return prepare(self, request)

    def stepping(self: Coordinator, model: GlobalModel) -> Any:
        if model.round_number == 2:
            assert region.log.of("site_returned") == []
            away.clear()
            self._run.mediator.readmit("west").result(60)
        return step(self, model)

    monkeypatch.setattr(ShakySite, "prepare", preparing)
    monkeypatch.setattr(Coordinator, "step", stepping)
    in_time(lambda: region.federation(**keys).resume("r"))
    assert region.log.of("site_returned") == [{"site": "west"}]


def test_a_run_without_any_site_ends_with_what_it_lacks_and_is_resumed(
    calm: CalmRuns, region: Region
) -> None:
    reference = calm.run(resources__workers=1)
    federation = region.federation(
        {site: {3} for site in SITES}, participation__wait_for_sites_s=0.05
    )
    with pytest.raises(TooFewSites, match="at least 1 of 3 sites are needed, 0 are there"):
        in_time(lambda: federation.run(run_id="r"))
    federation.close()
    assert in_time(lambda: region.federation().resume("r")).digest == reference.digest


def test_clients_with_memories_wait_for_their_site(
    lab: Lab, region: Region, user_code: str
) -> None:
    federation = region.federation(
        {"west": {1}},
        training__client_update=f"{user_code}:plain_sgd",
        participation__wait_for_sites_s=0.05,
    )
    with pytest.raises(TooFewSites, match="clients wait for site west"):
        in_time(federation.run)
    assert region.log.of("site_lost")[0]["clients"] == 0


def test_a_quorum_goes_on_without_a_site_and_again_without_it_when_resumed(
    lab: Lab, region: Region
) -> None:
    keys = {
        **TRAINED_AT_SITES,
        "participation__replacement": False,
        "participation__quorum": 0.25,
        "federation__clients_per_round": 12,
    }
    stop = raising(KeyboardInterrupt(), "round_finished", round=1)
    federation = region.federation({"west": {0}}, stop, **keys)
    with pytest.raises(KeyboardInterrupt):
        in_time(lambda: federation.run(run_id="r"))
    federation.close()
    (first,) = region.log.of("round_finished")
    reasons = [(event["clients"], event["of"]) for event in region.log.of("round_quorum")]
    assert reasons == [(8, 12), (8, 12)]
    assert first["clients"] == 8
    records = sorted(path.name for path in (lab.runs / "r" / "journal").glob("round-*.json"))
    assert records == ["round-000001.counted.json", "round-000001.judged.json"]
    result = in_time(lambda: region.federation(**keys).resume("r"))
    for fact in ("model", "clients", "samples", "train_loss", "accuracy", "loss"):
        assert result.rows[0][fact] == first[fact]
    assert [row["clients"] for row in result.rows] == [8, 12, 12, 12]
