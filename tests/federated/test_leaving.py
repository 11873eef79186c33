"""What the gate of declared data lets out of an answer, a kind at a time."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from fedpilot.federated.core.execution import Execution, Kind, Measured, choose
from fedpilot.federated.engine.trainers import OWN_REASONS
from fedpilot.federated.site.leaving import IN_THE_LOG, Leaving
from fedpilot.mediator import Payload
from fedpilot.mediator.core.disclosure import Declaration, Disclosed, Disclosure, Residency
from fedpilot.mediator.errors import PolicyRefused

SECRET = "ValueError: patient anna, 1.87 m"
ALONE = Measured(Execution(Kind.SEQUENTIAL, 64), 1.0)


def gate(residency: Residency = Residency.PINNED, **told: Any) -> Leaving:
    return Leaving(
        "paris",
        Declaration(
            name="scans",
            dataset_type="npz",
            input_shape=(6,),
            dtype="float32",
            num_classes=3,
            clients={"arise": "column", "column": "patient"},
            residency=residency,
            disclose=Disclosed(**told),
        ),
    )


def faster(gain: float) -> str:
    together = [Measured(Execution(Kind.FOLDED, 16), 1.0 / gain)]
    return choose(ALONE, together, ()).reason


def reason_of(reason: str) -> str:
    header = {"execution": ["sequential", 64], "reason": reason}
    left = gate().payload(Payload(kind="chosen", header=header))
    assert left.header["execution"] == ["sequential", 64]
    return str(left.header["reason"])


@pytest.mark.parametrize(
    "reason",
    [
        *sorted(OWN_REASONS),
        faster(20),
        faster(1.01),
        faster(0.5),
        choose(ALONE, (), ()).reason,
        "a client is work enough by itself: 12.3 s for a few steps of one client",
    ],
)
def test_why_an_execution_was_chosen_leaves_in_words_of_ours(reason: str) -> None:
    assert reason_of(reason) == reason


@pytest.mark.parametrize(
    "reason",
    [
        f"the trial failed: {SECRET}",
        choose(ALONE, (), [f"mapped: {SECRET}"]).reason,
        f"{faster(20)}; {SECRET}",
        f"{faster(20)}\n",
    ],
)
def test_what_users_code_said_in_a_trial_is_in_the_log(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert reason_of(reason) == IN_THE_LOG
    assert reason in caplog.text


def a_sum(clients: int, **told: Any) -> Payload:
    partial = {"clients": clients, "weight": 9, "tally": [9, 0, 5, 0], "refused": []}
    return Payload(kind="partial", header={"partial": partial, "digests": {}, **told})


def a_tally(clients: int, on: str = "clients") -> Payload:
    return Payload(kind="tally", header={"tally": [9, 5, 5, 0], "clients": clients, "on": on})


OF_ONE = [
    pytest.param(a_sum(1), id="a sum"),
    pytest.param(a_sum(0), id="a sum of nobody, with somebody's losses"),
    pytest.param(a_sum(4, fewest=1), id="a sum with a step of one client"),
    pytest.param(a_tally(1), id="a tally"),
]


@pytest.mark.parametrize("counts", [Disclosure.NONE, Disclosure.ROUNDED, Disclosure.NOISED])
@pytest.mark.parametrize("answer", OF_ONE)
def test_an_answer_of_one_client_stays_where_its_samples_are_not_told(
    answer: Payload, counts: Disclosure
) -> None:
    with pytest.raises(PolicyRefused) as raised:
        gate(counts=counts).payload(answer)
    assert raised.value.rule == "datasets.scans.disclose.counts of site.yaml"
    assert "`counts: exact`, or rounds with more clients" in raised.value.allowed


@pytest.mark.parametrize("answer", OF_ONE)
@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"counts": Disclosure.EXACT}, id="samples are told"),
        pytest.param({"residency": Residency.MOVABLE}, id="sites take over single clients"),
    ],
)
def test_an_answer_of_one_client_leaves_where_it_may(told: Any, answer: Payload) -> None:
    assert gate(**told).payload(answer).header == answer.header


@pytest.mark.parametrize("answer", [a_sum(2), a_sum(3, fewest=2), a_tally(2), a_tally(1, "test")])
def test_what_is_of_several_clients_or_of_none_leaves(answer: Payload) -> None:
    assert gate().payload(answer).header == answer.header
