"""Users ask who exchanges with whom, and over which channel."""

from __future__ import annotations

import pytest

from federations import CLIENTS, Lab, on_a_graph
from fedpilot.federated import UnknownClient
from fedpilot.federated.federation.topology_manager import (
    Channel,
    HybridTopologyManager,
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
        assert [topology.locate(f"client_{i}") for i in (0, 5, 11)] == list(NAMES)
        assert topology.channel("client_0", "client_1") is Channel.INSIDE
        assert topology.channel("client_3", "client_4") is Channel.CROSSING


def test_in_a_star_there_is_none(lab: Lab) -> None:
    assert lab.federation().topology is None
