"""A client can be asked alone: to train, to evaluate, to merge; whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from federations import (
    ALONE,
    CLIENTS,
    COHORT,
    EXECUTIONS,
    SEED,
    SOON_S,
    Lab,
    Log,
    computed,
    in_time,
    merged_by_hand,
    open_gate,
    shut_gate,
    trains,
)
from fedpilot.fabric import FabricError
from fedpilot.fabric.testing.fake_cluster import FakeCluster, ManualClock
from fedpilot.federated import (
    ClientFailed,
    FederatedError,
    Federation,
    NodeState,
    TrainResult,
    UnknownClient,
    WorkersExhausted,
)
from fedpilot.federated.core.population.sampling import cohort
from fedpilot.federated.core.state import digest
from fedpilot.mediator import Payload


def test_a_node_trains_alone_as_it_does_in_a_chunk(lab: Lab) -> None:
    """Whichever way: a single VirtualNode is a chunk of one."""
    for execution in EXECUTIONS:
        with lab.federation(**computed(execution, federation__rounds=1)) as federation:
            chosen = [federation.client_id(int(i)) for i in cohort(CLIENTS, 9, SEED, 1)]
            start = dict(federation.state)
            results = [federation[client].train() for client in chosen]
            merged = merged_by_hand(start, results)
            federation.run()
            for name, array in federation.state.items():
                np.testing.assert_allclose(merged[name], array, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("unknown", ["client_12", "client_-1", "client_01", "nobody", ""])
def test_a_client_that_does_not_exist_is_a_key_error(unknown: str, lab: Lab) -> None:
    federation = lab.federation()
    with pytest.raises(KeyError) as caught:
        _ = federation[unknown]
    assert isinstance(caught.value, UnknownClient)
    assert unknown not in federation
    assert "client_3" in federation
    assert 3 not in federation


def test_two_nodes_of_one_id_are_equal(lab: Lab) -> None:
    first, second = lab.federation(), lab.federation()
    assert first["client_1"] == first["client_1"]
    assert len({first["client_1"], first["client_1"]}) == 1
    assert first["client_1"] != first["client_2"]
    assert first["client_1"] != second["client_1"]
    assert first["client_1"] != "client_1"


def test_training_a_client_twice_gives_the_same_bits_and_moves_nothing(lab: Lab) -> None:
    with lab.federation() as federation:
        before = digest(federation.state)
        node = federation["client_3"]
        first = node.train()
        federation["client_4"].train()
        second = node.train()
        assert digest(first.state) == digest(second.state) != before
        assert (first.samples, first.loss) == (second.samples, second.loss)
        assert digest(federation.state) == before
        assert federation.round == 0


def test_a_client_can_start_from_any_model(lab: Lab) -> None:
    with lab.federation() as federation:
        zeros = {name: np.zeros_like(array) for name, array in federation.state.items()}
        node = federation["client_3"]
        assert digest(node.train(zeros).state) != digest(node.train().state)
        assert digest(node.train(zeros).state) == digest(node.train(zeros).state)
        judged_zeros = node.evaluate(zeros)
        assert judged_zeros.loss == pytest.approx(np.log(3), rel=1e-6)
        assert judged_zeros.client_id == "client_3"


def test_many_clients_train_at_a_time(lab: Lab) -> None:
    with lab.federation(resources__workers=3) as federation:
        alone = [federation[f"client_{i}"].train() for i in range(8)]

        async def everybody() -> list[TrainResult]:
            nodes = [federation[f"client_{i}"] for i in range(8)]
            return await asyncio.wait_for(
                asyncio.gather(*(node.train_async() for node in nodes)), SOON_S
            )

        together = asyncio.run(everybody())
        assert [digest(r.state) for r in together] == [digest(r.state) for r in alone]
        assert [r.loss for r in together] == [r.loss for r in alone]

        async def judging() -> list[float]:
            nodes = [federation[f"client_{i}"] for i in range(8)]
            found = await asyncio.gather(*(node.evaluate_async() for node in nodes))
            return [each.accuracy for each in found]

        assert asyncio.run(judging()) == [
            federation[f"client_{i}"].evaluate().accuracy for i in range(8)
        ]


def test_results_do_not_change_when_the_worker_goes_on(lab: Lab) -> None:
    with lab.federation(resources__workers=1) as federation:
        first = federation["client_1"].train()
        before = digest(first.state)
        federation["client_2"].train()
        federation.run()
        assert digest(first.state) == before


def test_a_round_is_what_its_clients_train_merged(lab: Lab) -> None:
    with lab.federation(federation__rounds=1) as federation:
        chosen = [federation.client_id(int(i)) for i in cohort(CLIENTS, COHORT, SEED, 1)]
        start = dict(federation.state)
        results = [federation[client].train() for client in chosen]
        merged = federation[chosen[0]].aggregate(results)
        by_hand = merged_by_hand(start, results)
        federation.run()
        for name, array in federation.state.items():
            assert merged[name].dtype == array.dtype
            np.testing.assert_allclose(merged[name], array, rtol=3e-7, atol=3e-8)
            np.testing.assert_allclose(by_hand[name], array, rtol=3e-7, atol=3e-8)


def test_merging_does_not_depend_on_the_order_nor_on_who_merges(lab: Lab) -> None:
    with lab.federation(model__model_type="mlp") as federation:
        results = [federation[f"client_{i}"].train() for i in range(6)]
        first = federation["client_0"].aggregate(results)
        assert digest(federation["client_5"].aggregate(results)) == digest(first)
        for shift in range(1, 6):
            order = results[shift:] + results[:shift]
            assert digest(federation["client_0"].aggregate(order)) == digest(first)


def test_merging_one_model_gives_that_model_and_none_is_refused(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_1"]
        result = node.train()
        merged = node.aggregate([result])
        for name, array in result.state.items():  # to the rounding of its move, in float32
            moved = np.abs(array - federation.state[name]).max(initial=0.0)
            np.testing.assert_allclose(merged[name], array, rtol=1.2e-7, atol=1.2e-7 * moved)
        with pytest.raises(ValueError, match="nothing to aggregate"):
            node.aggregate([])


def test_merging_a_model_that_is_not_finite_is_refused(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_1"]
        good = node.train()
        nan = {name: np.full_like(array, np.nan) for name, array in good.state.items()}
        bad = TrainResult(client_id="client_2", state=nan, samples=3, loss=0.0)
        with pytest.raises(ClientFailed, match="finite"):
            node.aggregate([good, bad])


def test_a_node_says_where_it_is_and_what_happened_to_it(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_5"]
        node.train()
        text = node.explain()
        assert "client_5: materialized at worker" in text
        assert f"holds {node.evaluate().samples} samples" in text
        assert "site: local" in text
        for event in ("request", "bind"):
            assert event in text
        node.release()
        assert node.state is NodeState.RELEASED
        assert "release() was called" in node.explain()
        node.release()
        assert node.state is NodeState.RELEASED
        node.train()
        assert node.state is NodeState.MATERIALIZED


def test_the_clients_of_a_round_are_released_and_hosted_ones_stay(lab: Lab) -> None:
    with lab.federation(federation__rounds=1) as federation:
        chosen = [federation.client_id(int(i)) for i in cohort(CLIENTS, COHORT, SEED, 1)]
        hosted = federation[chosen[0]].materialize()
        federation.run()
        assert hosted.state is NodeState.MATERIALIZED
        for client in chosen[1:]:
            assert federation[client].state is NodeState.RELEASED
            assert "round 1" in federation[client].explain()
        for client in set(federation) - set(chosen):
            assert federation[client].state is NodeState.VIRTUAL


def test_a_client_that_fails_alone_is_failed_and_can_be_asked_again(
    lab: Lab, user_code: str
) -> None:
    with lab.federation(
        **{"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": 3.0}}
    ) as federation:
        bad = next(each for each in federation if not trains(federation, each))
        node = federation[bad]
        with pytest.raises(ClientFailed, match=bad):
            node.train()
        assert node.state is NodeState.FAILED
        assert "too much for me" in node.explain()
        assert node.evaluate().samples > 0
        assert node.state is NodeState.MATERIALIZED


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        threading.Event().wait(0.01)


def host_of(node: Any, federation: Federation, cluster: FakeCluster) -> str:
    number = federation.nodes.show(node.index)["worker"].removeprefix("worker ")
    workers = [worker.name for group in cluster.groups() for worker in group.workers]
    return next(name for name in reversed(workers) if name.split("/")[-2] == number)


def test_a_node_whose_worker_died_trains_again_to_the_same_bits(lab: Lab) -> None:
    log = Log()
    with lab.federation(log) as federation:
        node, other = federation["client_1"], federation["client_2"]
        first = node.train()
        other.materialize()
        lab.cluster.kill_worker(host_of(node, federation, lab.cluster))
        second = in_time(node.train)
        assert digest(second.state) == digest(first.state)
        assert log.of("worker_lost")
        assert node.state is other.state is NodeState.MATERIALIZED
        assert "lose" in node.explain()


def test_nodes_of_a_worker_that_died_are_pending(lab: Lab) -> None:
    with lab.federation(resources__workers=1) as federation:
        node, other = federation["client_1"].materialize(), federation["client_2"].materialize()
        lab.cluster.kill_worker(host_of(node, federation, lab.cluster))
        in_time(other.train)
        assert node.state is NodeState.PENDING
        assert "was lost" in node.explain()
        node.release()
        assert node.state is NodeState.RELEASED


def test_when_a_worker_is_gone_for_good_new_nodes_go_to_the_others(lab: Lab) -> None:
    with lab.federation(resources__workers=2, resources__worker_restarts=0) as federation:
        node = federation["client_1"].materialize()
        lab.cluster.kill_worker(host_of(node, federation, lab.cluster))
        with pytest.raises(WorkersExhausted):
            in_time(node.train)
        for client in ("client_2", "client_3", "client_1"):
            assert in_time(federation[client].train).samples > 0


def test_a_node_that_is_idle_for_long_gives_its_place_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.site.workers.pool.TICK_S", 0.01)
    with lab.federation(resources__node_idle_timeout=0.05) as federation:
        node = federation["client_1"]
        first = node.train()
        until(lambda: node.state is NodeState.RELEASED)
        assert "idle" in node.explain()
        assert digest(node.train().state) == digest(first.state)


def test_a_node_that_waits_for_its_turn_is_not_idle(lab: Lab, user_code: str) -> None:
    """Long training of others is no reason to take a node's place, still less to break the pool."""
    code = shut_gate(user_code)
    clock = ManualClock()
    with lab.federation(**{"model__model_type": f"{user_code}:Slow", **ALONE}) as federation:
        federation.start()
        workload = federation.gang.mediator._sites["local"]._workload  # type: ignore[union-attr]
        workload._placement._clock = clock
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        asked = [ask(node, "node.train") for node in nodes]
        clock.advance(10 * federation.config.resources.node_idle_timeout)
        workload._nodes.evict_idle()
        code.GATE.set()
        for answer in asked:
            in_time(answer.result)
        assert [node.state for node in nodes] == [NodeState.MATERIALIZED] * 5


def ask(node: Any, kind: str) -> Any:
    """The future of what a node was asked; the order is delivered by the time this returns."""
    nodes = node._federation
    key, state = nodes.model_or(None)
    header = {"client": node.index, "model": key, "round": 1}
    return nodes.ask_node(node.index, Payload(kind=kind, header=header, tensors=state))


def test_a_node_may_be_released_while_its_training_waits(lab: Lab, user_code: str) -> None:
    code = shut_gate(user_code)
    with lab.federation(**{"model__model_type": f"{user_code}:Slow", **ALONE}) as federation:
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        asked = [ask(node, "node.train") for node in nodes]
        released = ask(nodes[4], "node.release")
        code.GATE.set()
        for answer in [*asked[:4], released]:
            in_time(answer.result)
        assert in_time(nodes[4].train).samples > 0, "the federation is none the worse for it"


def test_a_node_may_be_released_while_it_trains_and_fails(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": -9.0}}
    with lab.federation(**keys, **ALONE) as federation:
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        asked = [ask(node, "node.train") for node in nodes]
        released = [ask(node, "node.release") for node in nodes]
        for answer in asked:
            with pytest.raises(ClientFailed):
                in_time(answer.result)
        for answer in released:
            in_time(answer.result)
        assert in_time(nodes[4].evaluate).samples > 0


def test_nodes_may_be_materialized_while_a_round_trains_them(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Slow", "federation__rounds": 1, **ALONE}
    open_gate(user_code)
    whole = lab.run(**keys)
    code = shut_gate(user_code)
    with lab.federation(**keys) as federation, ThreadPoolExecutor(1) as threads:
        running = threads.submit(federation.run)
        assert code.ARRIVED.acquire(timeout=SOON_S)
        chosen = cohort(CLIENTS, COHORT, SEED, 1)
        nodes = [federation[federation.client_id(int(i))] for i in chosen]
        asked = [ask(node, "node.materialize") for node in nodes]
        code.GATE.set()
        assert running.result(SOON_S).digest == whole.digest
        for answer in asked:
            in_time(answer.result)
        assert [node.state for node in nodes] == [NodeState.MATERIALIZED] * COHORT


def test_more_nodes_than_a_worker_hosts_evict_the_longest_unused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.site.workers.node.NODES_HOSTED", 3)
    with lab.federation(resources__workers=1) as federation:
        nodes = [federation[f"client_{i}"].materialize() for i in range(5)]
        assert [node.state for node in nodes] == [NodeState.RELEASED] * 2 + [
            NodeState.MATERIALIZED
        ] * 3
        assert "more recent" in nodes[0].explain()
        assert nodes[0].train().samples > 0


def test_what_a_closed_federation_is_asked_ends(lab: Lab, user_code: str) -> None:
    code = shut_gate(user_code)
    federation = lab.federation(**{"model__model_type": f"{user_code}:Slow", **ALONE})
    node = federation["client_1"].materialize()
    answer = ask(node, "node.train")
    in_time(federation.close)
    code.GATE.set()
    with pytest.raises((FederatedError, FabricError)):
        answer.result(SOON_S)
    assert lab.cluster.groups() == ()
    assert node.state is NodeState.VIRTUAL
