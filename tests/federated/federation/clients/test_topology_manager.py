"""Users ask who exchanges with whom, and over which channel."""

from __future__ import annotations

import numpy as np
import pytest

from federations import CLIENTS, Lab, on_a_graph
from fedpilot.federated import UnknownClient
from fedpilot.federated.core.topology.mixing import UNIT
from fedpilot.federated.errors import FederatedError
from fedpilot.federated.federation.clients.topology_manager import (
    Channel,
    HybridTopologyManager,
    Location,
    NotANeighbor,
    TopologyManager,
)
from graph_runs import NAMES, over


def test_on_a_ring_a_client_hears_of_two_others_at_its_site(lab: Lab) -> None:
    topology = lab.federation(**on_a_graph()).topology
    assert type(topology) is TopologyManager
    assert topology.neighbors("client_0") == ("client_1", f"client_{CLIENTS - 1}")
    assert topology.neighbors("client_5", 7) == ("client_4", "client_6")
    assert topology.channel("client_0", "client_5") is Channel.INSIDE
    assert ("client_3", "client_4") in set(topology.edges())
    assert len(list(topology.edges())) == 2 * CLIENTS
    with pytest.raises(UnknownClient):
        topology.neighbors("client_99")
    with pytest.raises(UnknownClient):
        topology.locate("client_99")
    with pytest.raises(ValueError, match="rounds count from 1"):
        topology.neighbors("client_0", 0)


def test_a_matching_has_other_pairs_in_each_round(lab: Lab) -> None:
    topology = lab.federation(**on_a_graph("matching")).topology
    assert topology is not None
    assert topology.changes
    found = {topology.neighbors("client_0", number) for number in range(1, 9)}
    assert len(found) > 1
    assert {len(each) for each in found} == {1}


def test_on_a_directed_graph_who_gives_does_not_take(lab: Lab) -> None:
    topology = lab.federation(**on_a_graph("exponential", "push_sum")).topology
    assert topology is not None
    assert topology.neighbors("client_4", 2) == ("client_2",)
    assert ("client_2", "client_4") in set(topology.edges(2))
    assert ("client_4", "client_2") not in set(topology.edges(2))


def test_over_several_sites_it_knows_where_clients_are_after_the_start(lab: Lab) -> None:
    with over(lab, NAMES) as federation:
        topology = federation.topology
        assert type(topology) is HybridTopologyManager
        assert topology.neighbors("client_3") == ("client_2", "client_4")
        with pytest.raises(RuntimeError, match="call `start` first"):
            topology.locate("client_0")
        federation.start()
        assert [topology.locate(f"client_{i}").site for i in (0, 5, 11)] == list(NAMES)
        assert topology.channel("client_0", "client_1") is Channel.INSIDE
        assert topology.channel("client_3", "client_4") is Channel.CROSSING


def test_in_a_star_there_is_none(lab: Lab) -> None:
    assert lab.federation().topology is None


@pytest.mark.parametrize("sites", [1, 3])
def test_a_materialized_node_is_found_at_its_site_and_worker(sites: int, lab: Lab) -> None:
    with over(lab, NAMES[:sites]) as federation:
        topology, node = federation.topology, federation["client_7"]
        assert topology is not None
        node.materialize()
        found = topology.locate("client_7")
        assert found == Location(NAMES[1] if sites > 1 else NAMES[0], "worker 0")
        assert found.vnode == 0
        assert topology.locate("client_6") == Location(found.site)
        node.release()
        assert topology.locate("client_7") == Location(found.site)


# -- states of single clients --------------------------------------------------------------------


@pytest.mark.parametrize("sites", [1, 3])
def test_a_client_mixes_what_it_and_its_neighbors_have_published(sites: int, lab: Lab) -> None:
    """As a round does: with one client trained from the global model, and the graph's weights."""
    with over(lab, NAMES[:sites]) as federation:
        node = federation["client_4"]
        assert node.neighbors == ("client_3", "client_5")
        results = [federation[f"client_{at}"].train() for at in (3, 4, 5)]
        for result in results:
            federation[result.client_id].publish(result.state)
        mixed = node.aggregate()
    third = UNIT // 3
    weights = (third, UNIT - 2 * third, third)
    for name, array in mixed.items():
        wanted = sum(w / UNIT * r.state[name] for w, r in zip(weights, results, strict=True))
        np.testing.assert_allclose(array, wanted, rtol=1e-5, atol=1e-7)


def test_a_client_keeps_the_weights_of_neighbors_that_have_published_nothing(lab: Lab) -> None:
    with lab.federation(**on_a_graph()) as federation:
        topology = federation.topology
        assert topology is not None
        model = federation.state
        topology.publish("client_4", model)
        topology.publish("client_5", model)
        found = [(state.client, weight) for state, weight in topology.around("client_4")]
    assert found == [(4, UNIT - UNIT // 3), (5, UNIT // 3)]


def test_a_state_is_for_neighbors_only(lab: Lab) -> None:
    with lab.federation(**on_a_graph()) as federation:
        topology, model = federation.topology, federation.state
        assert topology is not None
        topology.publish("client_4", model)
        for by in ("client_3", "client_4", "client_5"):
            assert topology.published("client_4", by).keys() == model.keys()
        with pytest.raises(NotANeighbor, match="client_4 is no neighbor of client_6"):
            topology.published("client_4", "client_6")
        with pytest.raises(FederatedError, match="client_3 has published no state"):
            topology.published("client_3", "client_4")
        with pytest.raises(FederatedError, match="client_3 has published no state"):
            topology.around("client_3")
        with pytest.raises(UnknownClient):
            topology.publish("client_99", model)


def test_on_a_directed_graph_a_state_goes_one_way(lab: Lab) -> None:
    with lab.federation(**on_a_graph("exponential", "push_sum")) as federation:
        topology, model = federation.topology, federation.state
        assert topology is not None
        topology.publish("client_4", model)
        topology.publish("client_5", model)
        assert topology.published("client_4", "client_5").keys() == model.keys()
        with pytest.raises(NotANeighbor):
            topology.published("client_5", "client_4")


def test_what_was_published_stays_as_it_was(lab: Lab) -> None:
    with lab.federation(**on_a_graph()) as federation:
        topology = federation.topology
        assert topology is not None
        model = {name: array.copy() for name, array in federation.state.items()}
        topology.publish("client_4", model)
        for array in model.values():
            array += 1
        kept = topology.published("client_4", "client_4")
        assert all((kept[name] == array).all() for name, array in federation.state.items())


def test_without_a_graph_there_are_no_neighbors(lab: Lab) -> None:
    node = lab.federation()["client_4"]
    for use in (lambda: node.neighbors, node.aggregate, lambda: node.publish({})):
        with pytest.raises(ValueError, match="client_4 is on no graph"):
            use()
