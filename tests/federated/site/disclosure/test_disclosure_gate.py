"""What the gate of declared data lets out of an answer, a kind at a time."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.federated.site.disclosure.disclosure_gate import DisclosureGate
from fedpilot.mediator import Payload
from fedpilot.mediator.core.rules.disclosure import Declaration, Disclosed, Disclosure, Residency
from fedpilot.mediator.errors import PolicyRefused

SECRET = "ValueError: patient anna, 1.87 m"


def gate(residency: Residency = Residency.PINNED, **told: Any) -> DisclosureGate:
    return DisclosureGate(
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


def a_sum(clients: int, **told: Any) -> Payload:
    partial = {"clients": clients, "weight": 9, "tally": [9, 0, 5, 0], "refused": []}
    return Payload(kind="partial", header={"partial": partial, "digests": {}, **told})


def a_tally(clients: int, on: str = "clients") -> Payload:
    return Payload(kind="tally", header={"tally": [9, 5, 5, 0], "clients": clients, "on": on})


@pytest.mark.parametrize("counts", [Disclosure.NONE, Disclosure.ROUNDED, Disclosure.NOISED])
def test_how_good_single_clients_models_are_stays_where_their_samples_are_not_told(
    counts: Disclosure,
) -> None:
    order = Payload(kind="evaluate_nodes")
    with pytest.raises(PolicyRefused, match="counts"):
        gate(counts=counts).check(order)
    gate(counts=Disclosure.EXACT).check(order)


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
