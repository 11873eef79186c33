"""What goes wrong in a run is named, and nothing that was done is lost."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest

from federations import COHORT, Lab, Log, federation_rows, in_time, raising, trains
from fedpilot.federated import (
    ClientFailed,
    ConfigError,
    Event,
    FederatedError,
    NodeState,
    NoUsableUpdate,
    RunResult,
    WorkersExhausted,
)
from fedpilot.federated.errors import WorkersNotUp
from fedpilot.federated.site.workers.node import FederatedNode
from fedpilot.mediator import ReservationRefused


def test_after_a_client_failed_the_same_federation_works_on(lab: Lab, user_code: str) -> None:
    federation = lab.federation(
        **{"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": 3.0}}
    )
    with pytest.raises(ClientFailed) as caught:
        in_time(federation.run)
    fine = next(each for each in federation if trains(federation, each))
    assert in_time(lambda: federation[fine].train()).samples > 0
    assert in_time(lambda: federation[caught.value.client_id].evaluate()).samples > 0


def test_workers_that_are_not_up_in_time_end_the_run_with_how_busy_it_was(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    may = threading.Event()
    hello = FederatedNode.hello

    def slow(self: FederatedNode) -> dict[str, Any]:
        assert may.wait(60)
        return hello(self)

    monkeypatch.setattr(FederatedNode, "hello", slow)
    federation = lab.federation(resources__start_timeout=0.05)
    with pytest.raises(WorkersNotUp, match=r"0 of 2 workers were up after 0.05 s \(load ") as late:
        federation.run(run_id="r")
    may.set()
    assert late.value.exits_with == 4
    assert not (lab.runs / "r").exists()


def test_a_client_whose_training_raises_ends_the_run_and_is_named(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Fragile", "model__options": {"limit": 3.0}}
    federation = lab.federation(**keys)
    with pytest.raises(ClientFailed, match="this sample is too much for me") as caught:
        federation.run(run_id="r")
    assert caught.value.client_id in federation
    assert not trains(federation, caught.value.client_id)
    assert federation[caught.value.client_id].state is NodeState.FAILED
    manifest = json.loads((lab.runs / "r" / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert caught.value.client_id in manifest["failure"]


def test_an_update_that_is_not_finite_is_refused_and_the_run_goes_on(
    lab: Lab, user_code: str
) -> None:
    log = Log()
    keys = {"model__model_type": f"{user_code}:Explosive", "model__options": {"limit": 3.5}}
    federation = lab.federation(log, **keys)
    result = federation.run()
    refused = log.of("update_refused")
    assert refused
    assert all(each["client"] in federation for each in refused)
    assert sum(row["refused"] for row in result.rows) == len(refused)
    for row in result.rows:
        assert row["refused"] + row["clients"] == COHORT
        assert np.isfinite(row["train_loss"])
    again = lab.run(**keys, resources__workers=4)
    assert again.digest == result.digest


def test_a_round_in_which_every_update_is_refused_ends_the_run(lab: Lab, user_code: str) -> None:
    keys = {"model__model_type": f"{user_code}:Explosive", "model__options": {"limit": -9.0}}
    with pytest.raises(NoUsableUpdate, match="learning_rate") as caught:
        lab.run(**keys)
    assert caught.value.round_number == 1
    assert len(caught.value.refused) == COHORT


@pytest.mark.parametrize("workers", [1, 3])
def test_a_sum_out_of_range_repeats_the_round_more_coarsely(workers: int, lab: Lab) -> None:
    log = Log()
    result = lab.run(
        log, training__learning_rate=1e9, federation__rounds=2, resources__workers=workers
    )
    assert log.of("grid_coarsened")
    other = lab.run(training__learning_rate=1e9, federation__rounds=2, resources__workers=2)
    assert result.digest == other.digest


def test_a_training_that_diverged_beyond_any_grid_says_so(lab: Lab) -> None:
    with pytest.raises(FederatedError, match="learning_rate"):
        lab.run(training__learning_rate=1e32)


def test_work_that_kills_every_worker_ends_the_run_and_it_can_be_resumed(
    lab: Lab, reference: RunResult
) -> None:
    federation = lab.federation(resources__workers=1, resources__worker_restarts=2)
    for nth in range(6, 30):
        lab.cluster.faults.kill_at("train", nth)
    with pytest.raises(WorkersExhausted, match="training"):
        in_time(lambda: federation.run(run_id="r"))
    assert lab.federation().resume("r").digest == reference.digest


def test_workers_that_cannot_start_are_an_error_and_nothing_is_left(lab: Lab) -> None:
    federation = lab.federation(resources__worker_restarts=1)
    for nth in range(1, 20):
        lab.cluster.faults.kill_at("hello", nth)
    with pytest.raises(WorkersExhausted):
        in_time(federation.start)
    assert lab.cluster.groups() == ()


def test_a_gang_that_cannot_be_had_is_refused_and_nothing_is_left(lab: Lab) -> None:
    federation = lab.federation(resources__workers=9)
    with pytest.raises(ReservationRefused, match="8 CPU"):
        federation.run()
    assert lab.cluster.groups() == ()


def test_a_model_without_anything_to_train_is_refused_before_anything_starts(
    lab: Lab, user_code: str
) -> None:
    with pytest.raises(ConfigError, match=r"model\.model_type"):
        lab.federation(model__model_type=f"{user_code}:Frozen")


def test_an_observer_that_raises_does_not_lose_the_run(lab: Lab, reference: RunResult) -> None:
    federation = lab.federation(raising(ValueError("a bug in a callback"), "round_finished", 2))
    with pytest.raises(ValueError, match="a bug in a callback"):
        federation.run(run_id="r")
    assert lab.federation().resume("r").digest == reference.digest


def test_a_federation_that_is_closed_amid_a_run_keeps_what_was_done(lab: Lab) -> None:
    def closing(event: Event) -> None:
        if event.name == "round_finished" and event.fields["round"] == 2:
            federation.close()

    federation = lab.federation(closing)
    with pytest.raises(FederatedError):
        in_time(lambda: federation.run(run_id="r"))
    assert (lab.runs / "r" / "config.yaml").exists()
    assert len(federation_rows(lab, "r")) == 2
