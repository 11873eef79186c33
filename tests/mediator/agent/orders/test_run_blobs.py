"""A site keeps the models that the next order may name, and no others."""

from __future__ import annotations

from fedpilot.mediator.agent.orders.order_transfers import KEPT, RunBlobs
from fedpilot.mediator.wire.messages import RunId

A, B = RunId("a"), RunId("b")


def test_the_last_models_of_a_run_stay() -> None:
    blobs = RunBlobs()
    assert KEPT == 2
    assert [blobs.used(A, f"m{n}") for n in range(4)] == [(), (), ("m0",), ("m1",)]
    assert blobs.ended(A) == ("m2", "m3")
    assert blobs.ended(A) == ()


def test_a_model_that_is_used_again_is_the_latest() -> None:
    blobs = RunBlobs()
    blobs.used(A, "first")
    blobs.used(A, "second")
    assert blobs.used(A, "first") == ()
    assert blobs.used(A, "third") == ("second",)


def test_what_another_run_uses_stays() -> None:
    blobs = RunBlobs()
    blobs.used(A, "same")
    blobs.used(B, "same")
    assert blobs.ended(A) == ()
    assert blobs.ended(B) == ("same",)
