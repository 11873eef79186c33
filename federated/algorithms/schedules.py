"""The clients' learning rate in a round, by the formulas of `torch.optim.lr_scheduler`.

With t = 0 in the first round after the warm-up, b the rate of the config, f the final one and d the
rounds of the decay:

    step:        b x gamma^(t // every)
    exponential: b x gamma^t
    cosine:      f + (b - f) x (1 + cos(pi x t / d)) / 2    (Loshchilov and Hutter 2017, "SGDR")
    linear:      b + (f - b) x t / d

In round r of w warm-up rounds it is b x r / w (Goyal et al. 2017, "Accurate, large minibatch SGD").
"""

from __future__ import annotations

import math

from ..config.schema import Schedule, Training


def learning_rate(training: Training, round_number: int) -> float:
    """The rate of all local steps of a round, from 1 on."""
    schedule, base = training.schedule, training.learning_rate
    if schedule is None:
        return base
    after = round_number - 1 - schedule.warmup_rounds
    if after < 0:
        rate = base * (round_number / schedule.warmup_rounds)
    else:
        rate = _after_warmup(schedule, base, after)
    # Mathematical libraries differ in the last bit, and no machine may decide bits of a model.
    return base if rate == base else float(f"{rate:.9g}")


def _after_warmup(schedule: Schedule, base: float, rounds: int) -> float:
    final = schedule.final_rate or 0.0
    done = min(1.0, rounds / (schedule.decay_rounds or 1))
    if schedule.kind == "cosine":
        return final + (base - final) * (1.0 + math.cos(math.pi * done)) / 2.0
    if schedule.kind == "linear":
        return base + (final - base) * done
    if schedule.kind == "constant":
        return base
    changes = rounds // (schedule.every or 1)
    return base * float((schedule.gamma or 1.0) ** changes)
