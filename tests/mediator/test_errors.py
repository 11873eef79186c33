"""The mediator's errors travel by pickle."""

from __future__ import annotations

import pickle

import pytest

from fedpilot.mediator import (
    MediatorError,
    ReservationRefused,
    SiteUnreachable,
    UnknownWorkload,
)


@pytest.mark.parametrize(
    "error",
    [
        ReservationRefused({"a": "full", "b": "gone"}),
        SiteUnreachable("a", "gone"),
        UnknownWorkload("x", ("federated",)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_errors_survive_a_pickle(error: MediatorError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
