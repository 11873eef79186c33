"""Models in memory are those of the round that asks, or none."""

from __future__ import annotations

import numpy as np

from fedpilot.federated.site.rounds.client_models import ModelsInMemory
from fedpilot.federated.site.states.layouts import Layout

LAYOUT = Layout.of({"w": np.zeros(3, np.float32)})


def test_a_round_that_is_trained_again_does_not_begin_with_what_it_became() -> None:
    memory = ModelsInMemory(LAYOUT)
    memory.keep(3, memory.room(2), memory.room(2))
    assert memory.take(2) is None
    assert memory.take(3) is None  # its memory may hold anything by now


def test_what_is_kept_is_given_once() -> None:
    memory = ModelsInMemory(LAYOUT)
    models, spare = memory.room(2), memory.room(2)
    memory.keep(3, models, spare)
    assert memory.take(3) is models
    assert memory.take(3) is None
    assert memory.room(2) is spare
    assert memory.room(2) not in (models, spare)
