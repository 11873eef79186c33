"""The models that a site keeps are those of the round that asks, wherever they lie."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fedpilot.federated.core.state import Array, TensorRole
from fedpilot.federated.core.topology.edges import Edges
from fedpilot.federated.core.topology.mixing import metropolis
from fedpilot.federated.site.rounds.client_models import (
    ModelsInMemory,
    largest_of,
    mix_models,
    squares_of,
)
from fedpilot.federated.site.rounds.partial_sums import SumForm, TakenSums
from fedpilot.federated.site.states.layouts import Layout
from fedpilot.federated.site.states.shared_memory import SharedStack, Spill

LAYOUT = Layout.of({"w": np.zeros(3, np.float32)})


def test_a_round_that_is_trained_again_does_not_begin_with_what_it_became(tmp_path: Path) -> None:
    memory = ModelsInMemory(LAYOUT, 1 << 20, Spill(tmp_path, 1))
    memory.keep(3, memory.room(2), memory.room(2))
    assert memory.take(2) is None
    assert memory.take(3) is None  # its memory may hold anything by now


def test_what_is_kept_is_given_once(tmp_path: Path) -> None:
    memory = ModelsInMemory(LAYOUT, 1 << 20, Spill(tmp_path, 1))
    models, spare = memory.room(2), memory.room(2)
    memory.keep(3, models, spare)
    assert memory.take(3) is models
    assert memory.take(3) is None
    assert memory.room(2) is spare
    assert memory.room(2) not in (models, spare)


@pytest.mark.parametrize(
    ("limit", "spills"),
    [pytest.param(384, False, id="both fit"), pytest.param(383, True, id="both do not fit")],
)
def test_models_lie_in_a_file_if_they_and_those_of_the_next_round_do_not_fit(
    limit: int, spills: bool, tmp_path: Path
) -> None:
    room = ModelsInMemory(LAYOUT, limit, Spill(tmp_path, 128)).room(3)
    assert (room.at_once == 128) == spills
    assert len([*room.blocks(slice(0, 3))]) == (2 if spills else 1)
    assert not list(tmp_path.iterdir())


def mixed(spill: Spill | None, kind: str, edges: Edges) -> tuple[Array, int]:
    """What becomes of models with a wide tensor and a narrow one, and how far they are apart."""
    wide, clients = 40_000, edges.nodes
    layout = Layout.of({"w": np.zeros((2, wide // 2), kind), "b": np.zeros(3, kind)})
    models, into = (SharedStack(layout, clients, spill) for _ in range(2))
    random = np.random.default_rng(3)
    for column in models.stack.columns.values():
        column[...] = random.normal(size=column.shape)
    mean = {name: column[0] / 2 for name, column in models.stack.columns.items()}
    exponents, everybody = {"w": 20, "b": 25}, slice(0, clients)
    sizes = largest_of(models, everybody, mean, exponents)
    roles = dict.fromkeys(exponents, TensorRole.TRAINED)
    form = SumForm(mean=mean, roles=roles, exponents=exponents, pushes=False)
    with ThreadPoolExecutor(2) as threads:
        mixing, nothing = metropolis(edges), TakenSums(clients, form)
        mix_models(models, into, clients, mean, sizes, mixing, exponents, nothing, threads)
    return into.stack.rows, squares_of(into, np.arange(clients), mean, exponents)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
@pytest.mark.parametrize("at_once", [1, 1 << 18, 1 << 21])
def test_spilled_models_are_mixed_block_by_block_into_the_same_bits(
    at_once: int, kind: str, tmp_path: Path
) -> None:
    ring, chords = np.arange(9), np.array([0, 0, 0, 2])
    ends = np.concatenate([ring, chords]), np.concatenate([(ring + 1) % 9, [3, 5, 7, 6]])
    edges = Edges.of(9, np.concatenate(ends), np.concatenate(ends[::-1]))
    within, apart = mixed(None, kind, edges)
    beyond, also_apart = mixed(Spill(tmp_path, at_once), kind, edges)
    assert beyond.tobytes() == within.tobytes()
    assert also_apart == apart
