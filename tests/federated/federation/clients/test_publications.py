"""What clients publish lies at sites, by key, until all that take of it have read it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from federations import CLIENTS, SOON_S, Lab, in_time
from fedpilot.federated import Federation
from fedpilot.federated.core.state import Array, State, digest
from fedpilot.federated.errors import FederatedError
from fedpilot.federated.federation.clients.publications import StateGone
from fedpilot.federated.federation.clients.topology_manager import TopologyManager
from fedpilot.federated.site.object_store import GlobalObjectStore
from fedpilot.mediator import InProcessSite, Payload
from graph_runs import NAMES, over
from lying_sites import Change, LyingSite

HOME = NAMES[0]
"""The site of the first clients; each site has four."""


class ListeningSite(InProcessSite):
    """A site that counts the orders which it gets."""

    orders: ClassVar[Counter[tuple[str, str]]] = Counter()
    counting: ClassVar[threading.Lock] = threading.Lock()
    together: ClassVar[threading.Barrier | None] = None
    """Where readers wait with the answers to their first orders at `north`."""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        kind = self.name, order.kind
        with self.counting:
            self.orders[kind] += 1
            nth = self.orders[kind]
        answer = super().deliver(order, key, purpose)
        if self.together and kind == ("north", "node.give") and nth <= self.together.parties:
            self.together.wait(SOON_S)
        return answer


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """By site and kind: how many orders of a kind a site has got."""
    counted: Counter[tuple[str, str]] = Counter()
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", ListeningSite)
    monkeypatch.setattr(ListeningSite, "orders", counted)
    return counted


def moved(model: State, by: float) -> dict[str, Array]:
    return {name: np.asarray(array + by, array.dtype) for name, array in model.items()}


def topology_of(federation: Federation) -> TopologyManager:
    assert federation.topology is not None
    return federation.topology


def stores(federation: Federation) -> Mapping[str, GlobalObjectStore]:
    """By site."""
    mediator: Any = federation.gang.mediator
    return {name: site._workload._models._store for name, site in mediator._sites.items()}


def keys(federation: Federation) -> dict[str, tuple[str, ...]]:
    return {name: store.keys() for name, store in stores(federation).items()}


def test_a_state_lies_at_the_site_of_its_client_by_run_client_and_round(lab: Lab) -> None:
    with over(lab, NAMES) as federation:
        node, model = federation["client_5"], federation.state
        key = node.publish(model)
        assert key == "test/client_5/round_1"
        assert keys(federation) == {"east": (), "north": (key,), "west": ()}
        again = topology_of(federation).publish("client_5", moved(model, 1), 7)
        assert again == "test/client_5/round_7"
        assert keys(federation)["north"] == (again,), "a client's later state is instead of it"
        with pytest.raises(FederatedError, match="client_5 has published no state for round 1"):
            topology_of(federation).published("client_5", "client_5")


def test_equal_states_of_a_sites_clients_are_kept_once(lab: Lab) -> None:
    with over(lab, NAMES[:1]) as federation:
        model = federation.state
        for client in ("client_3", "client_4", "client_5"):
            federation[client].publish(model)
        store = stores(federation)[HOME]
        assert store.size() == 3
        assert store.memory_bytes == sum(array.nbytes for array in model.values())


def test_another_site_fetches_a_state_once_for_all_its_readers(
    lab: Lab, orders: Counter[tuple[str, str]]
) -> None:
    """And each site drops it with the last of its own readers."""
    with over(lab, NAMES, name="complete") as federation:
        topology = topology_of(federation)
        federation["client_0"].publish(federation.state)
        for client in range(CLIENTS):
            assert any(store.size() for store in stores(federation).values())
            found = topology.published("client_0", f"client_{client}")
            assert digest(found) == digest(federation.state)
        assert keys(federation) == dict.fromkeys(NAMES, ())
        kept = {site: orders[site, "node.keep"] for site in NAMES}
        assert kept == dict.fromkeys(NAMES, 1), "published at one site, fetched by two"
        for client in (0, 4, 11):
            with pytest.raises(StateGone, match=r"client_0 published for round 1 is gone"):
                topology.published("client_0", f"client_{client}")
        kept = {site: orders[site, "node.keep"] for site in NAMES}
        assert kept == dict.fromkeys(NAMES, 1)


def test_threads_that_read_at_a_time_fetch_once(
    lab: Lab, orders: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though all of them have heard that it is not there."""
    with over(lab, NAMES, name="complete") as federation, ThreadPoolExecutor(4) as threads:
        topology, wanted = topology_of(federation), digest(federation.state)
        federation["client_0"].publish(federation.state)
        monkeypatch.setattr(ListeningSite, "together", threading.Barrier(4))

        def read(client: int) -> str:
            return digest(topology.published("client_0", f"client_{client}"))

        assert list(threads.map(read, (4, 5, 6, 7))) == [wanted] * 4
    assert orders["north", "node.keep"] == 1


@pytest.mark.parametrize(
    "name", [pytest.param("ring", id="a ring"), pytest.param("complete", id="all with all")]
)
def test_mixtures_have_the_same_bits_on_however_many_sites(name: str, lab: Lab) -> None:
    found: list[list[str]] = []
    for sites in (1, 2, 3):
        with over(lab, NAMES[:sites], name=name) as federation:
            nodes = [federation[client] for client in federation]
            for at, node in enumerate(nodes):
                node.publish(moved(federation.state, at / 8))
            found.append([digest(node.aggregate()) for node in nodes])
            assert not any(store.size() for store in stores(federation).values())
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == CLIENTS


def test_a_mixture_has_the_bits_of_the_same_sum_of_results(lab: Lab) -> None:
    """What is read by key and what comes along with an order are summed alike."""
    with over(lab, NAMES, name="complete") as federation:
        results = [federation[client].train() for client in federation]
        for result in results:
            federation[result.client_id].publish(result.state)
        node = federation["client_6"]
        weights = {each.client: weight for each, weight in topology_of(federation).around(node.id)}
        weighted = [replace(each, samples=weights[at]) for at, each in enumerate(results)]
        assert digest(node.aggregate(weighted)) == digest(node.aggregate())


def test_a_state_that_is_published_again_is_read_everywhere(lab: Lab) -> None:
    with over(lab, NAMES, name="complete") as federation:
        topology, model = topology_of(federation), federation.state
        for by in (1.0, 2.0):
            federation["client_0"].publish(moved(model, by))
            for reader in ("client_1", "client_4", "client_8"):
                found = topology.published("client_0", reader)
                assert digest(found) == digest(moved(model, by)), reader


def test_a_client_that_mixes_again_after_the_last_reader_is_told(lab: Lab) -> None:
    with over(lab, NAMES) as federation:
        for client in ("client_3", "client_4", "client_5"):
            federation[client].publish(federation.state)
        topology = topology_of(federation)
        for reader in ("client_2", "client_3"):
            topology.published("client_3", reader)
        federation["client_4"].aggregate()
        with pytest.raises(StateGone, match="client_3 published for round 1 is gone: all that"):
            federation["client_4"].aggregate()


def test_an_aggregation_that_fails_has_read_nothing(lab: Lab) -> None:
    with over(lab, NAMES[:1]) as federation:
        nodes = [federation[f"client_{at}"] for at in (3, 4, 5)]
        for node in nodes:
            node.publish(federation.state)
        nodes[0].publish(moved(federation.state, np.nan))
        for reader in ("client_5", "client_6"):
            topology_of(federation).published("client_5", reader)
        with pytest.raises(FederatedError, match="finite"):
            nodes[1].aggregate()
        nodes[0].publish(federation.state)
        assert digest(nodes[1].aggregate()) == digest(federation.state)


def test_beyond_the_limit_states_lie_on_disk_and_are_the_same(lab: Lab) -> None:
    with over(lab, NAMES, resources__store_bytes="1") as federation:
        nodes = [federation[f"client_{at}"] for at in (3, 4, 5)]
        for at, node in enumerate(nodes):
            node.publish(moved(federation.state, at / 8))
        assert [store.memory_bytes for store in stores(federation).values()] == [0, 0, 0]
        spilled = nodes[1].aggregate()
    with over(lab, NAMES) as federation:
        for at, node in enumerate(nodes):
            federation[node.id].publish(moved(federation.state, at / 8))
        assert digest(federation["client_4"].aggregate()) == digest(spilled)


def test_what_is_no_model_of_the_federation_is_not_published(lab: Lab) -> None:
    with over(lab, NAMES[:1]) as federation:
        state = {**federation.state, "more": np.zeros(3)}
        with pytest.raises(FederatedError, match="not the state of the federation's model: 'more'"):
            federation["client_4"].publish(state)
        federation.start()
        assert keys(federation) == {HOME: ()}


def changed(change: Callable[[Array], Array]) -> Change:
    """Another state than the one that was published."""
    return lambda answer: replace(
        answer, tensors={name: change(array) for name, array in answer.tensors.items()}
    )


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        pytest.param(changed(lambda a: a[..., :1]), "of shape", id="another shape"),
        pytest.param(changed(lambda a: a.astype("f8")), "float64 of shape", id="another type"),
        pytest.param(changed(lambda a: a + 1), "the state is", id="other numbers"),
        pytest.param(lambda a: replace(a, header={"readers": 4}), "a list", id="no readers"),
    ],
)
def test_a_site_that_gives_another_state_is_named(
    lie: Change, said: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no other site has kept what it gave."""
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", LyingSite)
    monkeypatch.setattr(LyingSite, "about", "node.give")
    monkeypatch.setattr(LyingSite, "lies", {HOME: lie})
    with over(lab, NAMES) as federation:
        for client in ("client_3", "client_4", "client_5"):
            federation[client].publish(federation.state)
        with pytest.raises(Exception, match=f"{HOME}.*{said}"):
            in_time(federation["client_4"].aggregate)
        assert keys(federation)["north"] == ("test/client_4/round_1", "test/client_5/round_1")
