"""Each kind of schedule gives the rates of PyTorch's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from fedpilot.federated.algorithms import learning_rate
from fedpilot.federated.config.schema import Schedule, Training

BASE, FINAL, DECAY = 0.3, 0.02, 7
KINDS: dict[str, tuple[dict[str, Any], Callable[[Any], LRScheduler]]] = {
    "step": (
        {"kind": "step", "gamma": 0.5, "every": 3},
        lambda optimizer: lr_scheduler.StepLR(optimizer, 3, 0.5),
    ),
    "exponential": (
        {"kind": "exponential", "gamma": 0.9},
        lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    ),
    "cosine": (
        {"kind": "cosine", "decay_rounds": DECAY, "final_rate": FINAL},
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, DECAY, FINAL),
    ),
    "linear": (
        {"kind": "linear", "decay_rounds": DECAY, "final_rate": FINAL},
        lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, FINAL / BASE, DECAY),
    ),
}


def rates(keys: dict[str, Any] | None, rounds: int = DECAY + 1) -> list[float]:
    schedule = None if keys is None else Schedule(**keys)
    training = Training(learning_rate=BASE, schedule=schedule)
    return [learning_rate(training, number) for number in range(1, rounds + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_that_of_pytorch(kind: str) -> None:
    keys, make = KINDS[kind]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=BASE)
    scheduler, expected = make(optimizer), []
    for _ in range(DECAY + 1):
        expected += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert rates(keys) == pytest.approx(expected, rel=1e-8)
    assert len(set(expected)) > 2


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_after_the_decay_it_stays_at_the_final_rate(kind: str) -> None:
    assert rates(KINDS[kind][0], 40)[DECAY:] == [FINAL] * (40 - DECAY)
    to_nothing = {"kind": kind, "decay_rounds": DECAY}
    assert rates(to_nothing, 40)[DECAY:] == [0.0] * (40 - DECAY)


@pytest.mark.parametrize("kind", ["constant", *KINDS])
def test_the_schedule_begins_after_a_linear_warm_up(kind: str) -> None:
    keys = KINDS[kind][0] if kind in KINDS else {"kind": kind}
    found = rates({**keys, "warmup_rounds": 4}, 4 + DECAY)
    assert found[:4] == pytest.approx([BASE / 4, BASE / 2, 3 * BASE / 4, BASE])
    assert found[4:] == rates(keys, DECAY)


def test_without_a_schedule_it_is_that_of_the_config_to_the_last_bit() -> None:
    odd = 0.1 + 1e-15
    for schedule in (None, Schedule()):
        assert learning_rate(Training(learning_rate=odd, schedule=schedule), 9) == odd


@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(0, 5),
    st.floats(FINAL, 1e12),
    st.integers(1, 10**9),
)
def test_no_digit_of_it_depends_on_a_mathematical_library(
    kind: str, warmup: int, base: float, number: int
) -> None:
    """Their last bits differ, and nine digits have the same bits everywhere."""
    schedule = Schedule(**KINDS[kind][0], warmup_rounds=warmup)
    found = learning_rate(Training(learning_rate=base, schedule=schedule), number)
    assert 0.0 <= found <= max(base, FINAL) * (1 + 1e-8)
    assert found in (base, float(f"{found:.9g}"))
