"""Workloads are found by their names; payloads weigh what their tensors do."""

from __future__ import annotations

import numpy as np
import pytest

from fedpilot.mediator import (
    Payload,
    UnknownWorkload,
    load_workload,
)


def test_payloads_weigh_what_their_tensors_weigh() -> None:
    assert Payload(kind="x", header={"a": "long text" * 100}).nbytes == 0
    assert Payload(kind="x", tensors={"a": np.zeros(3), "b": np.array(1, "i4")}).nbytes == 28


def test_a_workload_that_nobody_brings_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownWorkload, match=r"'baking'.*federated"):
        load_workload("baking")


def test_the_federated_workload_is_installed() -> None:
    assert type(load_workload("federated")).__name__ == "FederatedWorkload"
