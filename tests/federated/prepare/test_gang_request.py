"""A federation starts when somebody needs it, once, and leaves nothing when it ends."""

from __future__ import annotations

import gc
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from federations import CLIENTS, COHORT, Lab, Log
from fedpilot.federated import Event, NodeState, register_model
from fedpilot.federated.prepare.gang_request import set_aside


def test_nothing_is_started_until_somebody_needs_it(lab: Lab) -> None:
    with lab.federation() as federation:
        node = federation["client_7"]
        assert len(federation) == CLIENTS
        assert list(federation) == [f"client_{i}" for i in range(CLIENTS)]
        assert federation.describe().number_of_clients == CLIENTS
        assert (federation.round, federation.cohort_size) == (0, COHORT)
        assert node.state is NodeState.VIRTUAL
        assert "client_7: virtual" in node.explain()
        assert "not assigned" in node.explain()
        assert repr(node) == "<VirtualNode client_7 virtual>"
        node.release()
        assert lab.cluster.groups() == ()
        assert node.materialize() is node
        assert len(lab.cluster.groups()) == 1
        assert node.state is NodeState.MATERIALIZED
    assert lab.cluster.groups() == ()
    federation.close()


def test_a_gang_bears_the_id_of_its_run_its_user_and_its_site(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPILOT_USER", "alice@example.org")
    names: list[str] = []

    def look(event: Event) -> None:
        if event.name == "gang_reserved":
            names.extend(group.name for group in lab.cluster.groups())

    with lab.federation(look) as federation:
        federation.run(run_id="try-7")
    (name,) = names
    assert re.fullmatch(r"try-7-alice-example\.org-[0-9a-f]{6}-local/0", name)


def test_a_federation_starts_once_whoever_asks(lab: Lab) -> None:
    log = Log()
    federation = lab.federation(log)
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda i: federation[f"client_{i}"].train(), range(8)))
    assert [result.client_id for result in results] == [f"client_{i}" for i in range(8)]
    assert len(log.of("gang_reserved")) == 1


def test_a_federation_of_a_million_clients_starts_at_once(lab: Lab) -> None:
    started = time.perf_counter()
    with lab.federation(
        federation__number_of_clients=1_000_000,
        federation__rounds=2,
        data__data_distribution_kind="bootstrap",
        data__samples_per_client=[5, 20],
        evaluation__where="sites",
    ) as federation:
        result = federation.run()
        node = federation["client_999999"]
        assert 5 <= node.train().samples <= 20
    assert result.rounds == 2
    assert result.rows[0]["clients"] == COHORT
    assert time.perf_counter() - started < 10  # O(population) in Python would take much longer


def test_a_model_that_was_registered_anew_is_the_new_one(lab: Lab) -> None:
    def define(width: int) -> None:
        @register_model("mine_for_the_test_of_registration")
        def mine(input_shape: tuple[int, ...], num_classes: int) -> torch.nn.Module:
            return torch.nn.Sequential(
                torch.nn.Linear(input_shape[0], width), torch.nn.Linear(width, num_classes)
            )

    sizes = []
    for width in (2, 5):
        define(width)
        with lab.federation(model__model_type="mine_for_the_test_of_registration") as federation:
            sizes.append(federation.parameters)
            federation["client_0"].train()
    assert sizes == [6 * 2 + 2 + 2 * 3 + 3, 6 * 5 + 5 + 5 * 3 + 3]


def test_a_run_hides_what_there_is_from_the_search_for_garbage_and_gives_it_back(lab: Lab) -> None:
    frozen: list[int] = []

    def count(event: Event) -> None:
        if event.name == "round_started":
            frozen.append(gc.get_freeze_count())

    lab.run(count, federation__rounds=1)
    assert max(frozen) > 0
    assert gc.get_freeze_count() == 0


def test_what_somebody_else_hid_stays_hidden() -> None:
    gc.freeze()
    try:
        with set_aside():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
