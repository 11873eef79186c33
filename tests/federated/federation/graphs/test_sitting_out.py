"""On a graph with a quorum the clients of an absent site sit rounds out, and continue later."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import CLIENTS, Lab, Log, in_time, raising
from fedpilot.federated import Federation, RunResult
from fedpilot.federated.core.rounds.participation import BelowQuorum, SiteRefused, TooFewSites
from fedpilot.federated.federation.coordinator.coordinator import Coordinator
from fedpilot.federated.federation.setup.global_model import GlobalModel
from fedpilot.federated.federation.verify import Replay
from graph_runs import NAMES, digests_over, over, run_over
from lying_sites import LyingSite
from pairings import paired
from records import Archive
from shaky_sites import ShakySite

ROUNDS = 6
QUORUM = {
    "participation__quorum": 0.5,
    "federation__rounds": ROUNDS,
    "federation__number_of_clients": CLIENTS,
}
SITES = "fedpilot.federated.federation.sites.sources.InProcessSite"


def brings_back(patch: pytest.MonkeyPatch, federation: Federation, site: str, after: int) -> None:
    """Have a site back when a round is over, before the next one."""
    step = Coordinator.step

    def stepping(self: Coordinator, model: GlobalModel) -> Any:
        if model.round_number == after and (mediator := federation.gang.mediator) is not None:
            ShakySite.sites[site].gone = False
            mediator.readmit(site).result(60)
        return step(self, model)

    patch.setattr(Coordinator, "step", stepping)


@pytest.fixture
def shaky(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Site north is lost with an order of the second round."""
    monkeypatch.setattr(SITES, ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {"north": {9}})
    monkeypatch.setattr(ShakySite, "amid", False)
    monkeypatch.setattr(ShakySite, "sites", {})
    return monkeypatch


def check_one_site_repeats_it(lab: Lab, run: RunResult) -> None:
    """The records of the clients that counted determine every round's model."""
    found = Archive(lab.runs.parent, ExitStack()).verify(run.folder.name, how=Replay.ALL)
    assert not found.differs
    assert found.replayed is not None
    assert (found.replayed.start, found.replayed.last) == (0, ROUNDS)


GRAPHS: dict[str, dict[str, Any]] = {
    "ring": {},
    "matching": {},
    "complete": {},
    "k_connected": {"graph__degree": 4, "graph__mixing_steps": 3},
    "torus": {"strategy": "push_sum"},
}


@pytest.mark.parametrize(
    ("name", "order"),
    [
        *(("ring", 6), ("ring", 9), ("ring", 12), ("torus", 9)),
        *(pytest.param("ring", order, marks=pytest.mark.soak) for order in (7, 8, 10, 11)),
        *(
            pytest.param(name, 9, marks=pytest.mark.soak)
            for name in ("matching", "complete", "k_connected")
        ),
    ],
)
def test_clients_of_a_lost_site_sit_out_and_the_others_go_on(
    name: str, order: int, lab: Lab, shaky: pytest.MonkeyPatch
) -> None:
    shaky.setattr(ShakySite, "moments", {"north": {order}})
    log = Log()
    run = in_time(lambda: run_over(lab, NAMES, log, name=name, **GRAPHS[name], **QUORUM))
    there = {row["round"]: row["clients"] for row in run.rows}
    assert there[1] == CLIENTS or there[1] < CLIENTS <= there[1] + 5
    assert {there[number] for number in range(3, ROUNDS + 1)} == {CLIENTS - there_at("north", log)}
    assert all("north" in event["reason"] for event in log.of("round_quorum"))
    check_one_site_repeats_it(lab, run)


@pytest.mark.parametrize(("order", "strategy"), paired([7, 9], ["dpsgd", "push_sum"]))
def test_sums_do_without_the_clients_of_a_lost_site(
    order: int, strategy: str, lab: Lab, shaky: pytest.MonkeyPatch
) -> None:
    """All exchange with the first client, which is at another site than the lost one."""
    shaky.setattr(ShakySite, "moments", {"north": {order}})
    keys = {"name": "tree", "strategy": strategy, "graph__branching": CLIENTS - 1}
    sites = {**keys, "federation__assignment": "round_robin", "graph__mixing_steps": 2}
    run = in_time(lambda: run_over(lab, NAMES, **sites, **QUORUM))
    assert {row["clients"] for row in run.rows[2:]} == {CLIENTS - CLIENTS // len(NAMES)}
    check_one_site_repeats_it(lab, run)


def there_at(site: str, log: Log) -> int:
    """How many clients a site has of the ring, by those that did not count."""
    said = log.of("round_quorum")[-1]
    return int(said["of"] - said["clients"])


@pytest.mark.parametrize(
    ("name", "back"),
    [
        *(("ring", 4), ("torus", 3)),
        pytest.param("ring", 2, marks=pytest.mark.soak),
        *(
            pytest.param(name, 3, marks=pytest.mark.soak)
            for name in ("matching", "complete", "k_connected")
        ),
    ],
)
def test_a_returned_site_continues_from_the_models_of_its_last_round_that_counted(
    name: str, back: int, lab: Lab, shaky: pytest.MonkeyPatch
) -> None:
    keys = {"name": name, **GRAPHS[name], **QUORUM}
    with over(lab, NAMES, **keys) as federation:
        brings_back(shaky, federation, "north", back)
        run = in_time(federation.run)
    there = [row["clients"] for row in run.rows]
    assert there[back:] == [CLIENTS] * (ROUNDS - back)
    assert max(there[1:back]) < CLIENTS
    check_one_site_repeats_it(lab, run)


def test_what_a_lost_site_saved_of_a_round_that_did_not_count_is_dropped(
    lab: Lab, shaky: pytest.MonkeyPatch
) -> None:
    """Lost as it mixed for the last time, the site may have saved the round: it goes back."""
    shaky.setattr(ShakySite, "amid", True)
    shaky.setattr(ShakySite, "moments", {"north": {11}})
    log = Log()
    with over(lab, NAMES, log, **QUORUM) as federation:
        brings_back(shaky, federation, "north", 3)
        run = in_time(federation.run)
    assert log.of("site_lost")
    check_one_site_repeats_it(lab, run)


def test_a_resumed_run_knows_who_sat_out(lab: Lab, shaky: pytest.MonkeyPatch) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=4)
    with over(lab, NAMES, stop, **QUORUM) as federation, pytest.raises(KeyboardInterrupt):
        in_time(federation.run)
    (folder,) = lab.runs.iterdir()
    shaky.setattr(ShakySite, "moments", {})
    with over(lab, NAMES, **QUORUM) as federation:
        resumed = in_time(lambda: federation.resume(folder.name))
    assert [row["clients"] for row in resumed.rows][-2:] == [CLIENTS] * 2
    check_one_site_repeats_it(lab, resumed)
    assert len(digests_over(resumed.folder, ROUNDS)) == CLIENTS


def test_a_site_whose_models_cannot_be_is_done_without(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(answer: Any) -> Any:
        tensors = {name: np.full_like(array, np.nan) for name, array in answer.tensors.items()}
        return replace(answer, tensors=tensors)

    monkeypatch.setattr(SITES, LyingSite)
    monkeypatch.setattr(LyingSite, "about", "give_states")
    monkeypatch.setattr(LyingSite, "lies", {"west": spoilt})
    log = Log()
    run = in_time(lambda: run_over(lab, NAMES, log, **QUORUM))
    assert {event["site"] for event in log.of("site_lost")} == {"west"}
    assert all("is not finite" in event["reason"] for event in log.of("site_lost"))
    assert len({row["clients"] for row in run.rows}) == 1
    check_one_site_repeats_it(lab, run)


def test_a_graph_that_would_fall_apart_waits_for_the_site(
    lab: Lab, shaky: pytest.MonkeyPatch
) -> None:
    keys = {**QUORUM, "federation__assignment": "round_robin", "participation__wait_for_sites_s": 0}
    with pytest.raises(TooFewSites, match=r"site north.*parts that never meet: client_0"):
        in_time(lambda: run_over(lab, NAMES, **keys))


def test_a_liar_whose_clients_hold_the_graph_together_ends_the_run(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SITES, LyingSite)
    monkeypatch.setattr(LyingSite, "about", "give_states")
    monkeypatch.setattr(LyingSite, "lies", {"west": lambda answer: replace(answer, tensors={})})
    with pytest.raises(SiteRefused, match=r"west.*parts that never meet.*more edges"):
        in_time(lambda: run_over(lab, NAMES, federation__assignment="round_robin", **QUORUM))


def test_the_only_round_of_gossip_that_trains_waits_for_all_clients(
    lab: Lab, shaky: pytest.MonkeyPatch
) -> None:
    shaky.setattr(ShakySite, "moments", {"north": {2}})
    keys = {**QUORUM, "strategy": "gossip", "participation__wait_for_sites_s": 0}
    with pytest.raises(TooFewSites, match="north"):
        in_time(lambda: run_over(lab, NAMES, **keys))


def test_a_round_waits_for_a_site_without_which_a_weight_would_vanish(
    lab: Lab, shaky: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each client gives to many, and gets from few that are there."""
    shaky.setattr(ShakySite, "moments", {"north": {2}})
    count = 30
    there, away = range(count // 2), range(count // 2, count)
    edges = [(a, (a + 1) % len(there)) for a in there]
    edges += [(0, a) for a in away]
    edges += [(b, a) for a in there[1:] for b in away]
    edges += [(a, b) for a in there[1:] for b in there[:a]]
    graph = np.zeros((count, count), dtype=int)
    for of, to in edges:
        graph[of, to] = 1
    file = tmp_path / "chain.csv"
    np.savetxt(file, graph, fmt="%d", delimiter=",")
    keys = {
        **QUORUM,
        "name": "custom",
        "strategy": "push_sum",
        "graph__file": str(file),
        "federation__number_of_clients": count,
        "federation__assignment": "capacity",
        "participation__wait_for_sites_s": 0,
    }
    with pytest.raises(TooFewSites, match=r"north.*next to nothing of all push-sum weight"):
        in_time(lambda: run_over(lab, ("east", "north"), **keys))


def test_fewer_clients_than_the_quorum_end_the_run(lab: Lab, shaky: pytest.MonkeyPatch) -> None:
    keys = {**QUORUM, "participation__quorum": 0.9, "participation__wait_for_sites_s": 0}
    with pytest.raises((BelowQuorum, TooFewSites), match="north"):
        in_time(lambda: run_over(lab, NAMES, **keys))
