"""A worker's fast sum is the sum that `Partial.add` gives, bit for bit, however it is taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedpilot.federated.core.state import Array, TensorRole
from fedpilot.federated.core.sums.partial import RANGE_BITS, Partial, Reference, Tally, grid
from fedpilot.federated.engine.compiled import sums as compiled_sums
from fedpilot.federated.engine.compiled.sums import BLOCK
from fedpilot.federated.engine.sums import device_sums, summing
from fedpilot.federated.engine.sums.summing import EXACT, RunningSum

ROLES = {
    "weight": TensorRole.TRAINED,
    "scale": TensorRole.TRAINED,
    "statistic": TensorRole.STATISTIC,
    "batches": TensorRole.COUNTER,
    "frozen": TensorRole.CONSTANT,
}
SHAPES = {"weight": (2, 3), "scale": (), "statistic": (4,), "batches": (), "frozen": (2,)}


@dataclass(frozen=True)
class Client:
    state: dict[str, Array]
    weight: int
    loss: float


def name_of(index: int) -> str:
    return f"client_{index}"


def slowly(start: dict[str, Array], clients: Sequence[Client], coarser: int = 0) -> Partial:
    reference = Reference.of(start, ROLES, coarser)
    partial = Partial(reference.exponents)
    for index, client in enumerate(clients):
        tally = Tally().add(client.weight, 0, client.loss)
        partial.add(name_of(index), client.state, client.weight, tally, reference)
    return partial


def tensors(state: dict[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(array)) for name, array in state.items()}


def running(start: dict[str, Array], coarser: int = 0) -> RunningSum:
    like = tensors(start)
    made = RunningSum(like, ROLES, name_of)
    made.begin(like, grid(start, ROLES, coarser))
    return made


def add(total: RunningSum, clients: Sequence[Client], which: Sequence[int]) -> None:
    """Add some clients as one chunk."""
    some = [clients[index] for index in which]
    trained = {
        name: torch.from_numpy(np.stack([client.state[name] for client in some]))
        for name in some[0].state
    }
    total.add(
        np.array(which, dtype=np.int64),
        trained,
        np.array([client.weight for client in some], dtype=np.int64),
        np.array([client.loss for client in some], dtype=np.float64),
    )


def quickly(
    start: dict[str, Array],
    clients: Sequence[Client],
    chunks: Sequence[Sequence[int]] | None = None,
    coarser: int = 0,
) -> Partial:
    total = running(start, coarser)
    for chunk in [range(len(clients))] if chunks is None else chunks:
        add(total, clients, list(chunk))
    return total.take()


def everything(partial: Partial) -> dict[str, Any]:
    """All that a Partial says; sums that overflowed are not to be used and do not count."""
    over = set(partial.overflowed)
    return {
        "sums": {
            n: (a.dtype, a.shape, a.tolist()) for n, a in partial.sums.items() if n not in over
        },
        "bounds": dict(partial.bounds),
        "largest": {n: np.asarray(a).tolist() for n, a in partial.largest.items()},
        "weight": partial.weight,
        "clients": partial.clients,
        "refused": sorted(partial.refused),
        "tally": partial.tally.to_json() if partial.clients else None,
        "overflowed": partial.overflowed,
    }


SPECIAL = (0.0, -0.0, 1.0, 2.0**-14, -(2.0**-24), 65504.0, 1e30, -3e38, 1e300, 5e-324, 1e-40)
NO_NUMBERS = (math.nan, math.inf, -math.inf)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[dict[str, Array], list[Client]]:
    """A model and its clients: tame, tiny, huge, and a few that are no numbers at all."""
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    dice = np.random.default_rng(draw(st.integers(0, 2**32)))
    largest = np.finfo(dtype).max

    def state(*, spoilt: bool) -> dict[str, Array]:
        scale = 10.0 ** draw(st.sampled_from([-12, -3, 0, 0, 0, 2, 20]))
        made = {}
        for name, shape in SHAPES.items():
            values = np.asarray(dice.normal(size=shape) * scale)
            odd = dice.random(size=shape) < draw(st.sampled_from([0.0, 0.0, 0.1]))
            values = np.where(odd, dice.choice(SPECIAL, size=shape), values)
            if spoilt:
                values = np.where(dice.random(shape) < 0.2, dice.choice(NO_NUMBERS), values)
            within = np.clip(values, -largest, largest) if not spoilt else values
            with np.errstate(over="ignore"):
                made[name] = within.astype(dtype)
        made["batches"] = np.array(draw(st.integers(0, 2**62)), dtype=np.int64)
        return made

    clients = [
        Client(
            state(spoilt=draw(st.integers(0, 9)) == 0),
            draw(st.one_of(st.integers(0, 50), st.integers(1, 10**9))),
            draw(st.one_of(st.floats(0, 1e6), st.sampled_from([0.5, 1.0, math.nan, math.inf]))),
        )
        for _ in range(draw(st.integers(1, 8)))
    ]
    return state(spoilt=False), [
        Client(each.state, each.weight, each.loss if each.weight else 0.0) for each in clients
    ]


@settings(max_examples=settings().max_examples // 2)
@given(rounds(), st.sampled_from([0, 8, 40]))
def test_it_is_the_sum_that_partial_add_gives(
    given_round: tuple[dict[str, Array], list[Client]], coarser: int
) -> None:
    start, clients = given_round
    quick, slow = (sum_up(start, clients, coarser=coarser) for sum_up in (quickly, slowly))
    assert everything(quick) == everything(slow)


@settings(max_examples=settings().max_examples // 3)
@given(rounds(), st.data())
def test_neither_order_nor_grouping_nor_taking_it_in_parts_matters(
    given_round: tuple[dict[str, Array], list[Client]], data: st.DataObject
) -> None:
    start, clients = given_round
    order = data.draw(st.permutations(range(len(clients))))
    total, merged = running(start), Partial(grid(start, ROLES))
    while order:
        count = data.draw(st.integers(1, len(order)))
        chunk, order = order[:count], order[count:]
        add(total, clients, chunk)
        if data.draw(st.booleans()):
            merged.merge(total.take())
    merged.merge(total.take())
    assert everything(merged) == everything(slowly(start, clients))


@pytest.mark.parametrize("tile", [1, 7, 1000, 1 << 24])
@settings(max_examples=settings().max_examples // 4)
@given(given_round=rounds())
def test_any_device_gives_the_same_sum(
    tile: int, given_round: tuple[dict[str, Array], list[Client]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summing, "compiled_sums", device_sums)
        patch.setattr(device_sums, "TILE", tile)
        assert everything(quickly(*given_round)) == everything(slowly(*given_round))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [BLOCK // 2 - 1, BLOCK // 2, BLOCK // 2 + 1, 3 * BLOCK + 17])
@pytest.mark.parametrize("on", [compiled_sums, device_sums])
def test_tensors_of_many_blocks(
    on: ModuleType, size: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summing, "compiled_sums", on)
    start, clients = started(size, dtype), plain(5, size, dtype)
    clients[3].state["weight"][1, -1] = math.nan  # the very last number
    for chunks in ([range(5)], [[0, 1, 2], [3], [4]]):
        assert everything(quickly(start, clients, chunks)) == everything(slowly(start, clients))


def plain(count: int, size: int, dtype: str = "float32", seed: int = 0) -> list[Client]:
    rng = np.random.default_rng(seed)
    clients = []
    for index in range(count):
        state = {name: rng.normal(size=shape).astype(dtype) for name, shape in SHAPES.items()}
        state["weight"] = (rng.normal(size=(2, size))).astype(dtype)
        state["batches"] = np.array(index)
        clients.append(Client(state, int(rng.integers(1, 1000)), float(rng.random())))
    return clients


def started(size: int, dtype: str = "float32") -> dict[str, Array]:
    return plain(1, size, dtype, seed=99)[0].state


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("size", [1, 7, 200_000])
def test_large_and_small_tensors(dtype: str, size: int) -> None:
    start, clients = started(size, dtype), plain(5, size, dtype)
    assert everything(quickly(start, clients)) == everything(slowly(start, clients))


def test_sums_beyond_what_float64_holds_exactly_go_on_in_integers() -> None:
    start, clients = started(3, "float64"), plain(300, 3, "float64")
    heavy = [Client(client.state, 1_000_003, client.loss) for client in clients]
    slow = slowly(start, heavy)
    assert EXACT < slow.bounds["weight"] < 1 << RANGE_BITS
    assert not slow.overflowed
    assert any(int(n) % 2 for n in slow.sums["weight"].ravel() if abs(int(n)) > EXACT)
    for chunk in (1, 7, 300):
        chunks = [range(s, min(300, s + chunk)) for s in range(0, 300, chunk)]
        assert everything(quickly(start, heavy, chunks)) == everything(slow)


def test_an_overflow_is_told_whatever_the_grouping() -> None:
    start, clients = started(3), plain(8, 3)
    for client in clients:
        client.state["scale"][...] = 1e9
    slow = slowly(start, [Client(c.state, 10**4, c.loss) for c in clients])
    assert slow.overflowed == ("scale",)
    for chunk in (1, 3, 8):
        heavy = [Client(c.state, 10**4, c.loss) for c in clients]
        chunks = [range(s, min(8, s + chunk)) for s in range(0, 8, chunk)]
        quick = quickly(start, heavy, chunks)
        assert everything(quick) == everything(slow), "the other tensors' sums are right"


def test_after_an_overflow_the_next_sum_is_right_again() -> None:
    start, clients = started(3), plain(4, 3)
    far = plain(1, 3)[0]
    far.state["weight"][...] = 3e9
    total = running(start)
    add(total, [Client(far.state, 10**6, 0.0)], [0])
    assert total.take().overflowed == ("weight",)
    add(total, clients, range(4))
    assert everything(total.take()) == everything(slowly(start, clients))


def test_a_new_round_measures_from_the_new_model() -> None:
    first, second, clients = started(3), plain(1, 3, seed=5)[0].state, plain(4, 3)
    total = running(first)
    add(total, clients, range(3))  # never taken: its attempt was given up
    total.begin(tensors(second), grid(second, ROLES, 8))
    add(total, clients, range(4))
    assert everything(total.take()) == everything(slowly(second, clients, coarser=8))


def test_a_tensor_that_did_not_move_is_a_sum_of_nothing() -> None:
    start, clients = started(3), plain(3, 3)
    for client in clients:
        for name in ("statistic", "scale"):
            client.state[name] = start[name]
    slow = slowly(start, clients)
    total = running(start)
    trained = {"weight": torch.from_numpy(np.stack([c.state["weight"] for c in clients]))}
    trained["batches"] = torch.tensor([int(c.state["batches"]) for c in clients])
    weights = np.array([c.weight for c in clients])
    total.add(np.arange(3), trained, weights, np.array([c.loss for c in clients]))
    assert everything(total.take()) == everything(slow)


def test_a_client_without_samples_adds_nothing_however_far_it_went() -> None:
    start, clients = started(3), plain(3, 3)
    clients[1] = Client({n: a.copy() for n, a in clients[1].state.items()}, 0, 0.0)
    clients[1].state["weight"][...] = 3e38
    for chunks in ([range(3)], [[1], [0, 2]], [[0], [1], [2]]):
        assert everything(quickly(start, clients, chunks)) == everything(slowly(start, clients))


def test_nothing_added_is_an_empty_sum() -> None:
    start = started(3)
    empty = running(start).take()
    assert everything(empty) == everything(Partial(grid(start, ROLES)))
    assert empty.sums == empty.bounds == {}


def test_when_all_are_refused_there_is_no_sum() -> None:
    start, clients = started(3), plain(3, 3)
    for client in clients:
        client.state["weight"][0, 0] = math.nan
    quick = quickly(start, clients)
    assert everything(quick) == everything(slowly(start, clients))
    assert quick.refused == ["client_0", "client_1", "client_2"]


def test_the_counters_of_a_refused_client_do_not_count() -> None:
    start, clients = started(3), plain(3, 3)
    clients[2].state["weight"][0, 0] = math.inf  # its counter is the largest
    for chunks in ([range(3)], [[2], [0, 1]]):
        assert int(quickly(start, clients, chunks).largest["batches"]) == 1


def test_what_was_taken_does_not_change_afterwards() -> None:
    start, clients = started(3), plain(4, 3)
    total = running(start)
    add(total, clients, [0, 1])
    first = total.take()
    before = everything(first)
    add(total, clients, [2, 3])
    total.take()
    total.begin(tensors(start), grid(start, ROLES))
    assert everything(first) == before


def test_channels_last_tensors_are_summed_in_their_own_order() -> None:
    torch.manual_seed(0)
    roles = {"w": TensorRole.TRAINED}
    start = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    trained = torch.randn(5, 4, 3, 2, 2)
    weights, losses = np.arange(1, 6), np.zeros(5)
    state = {"w": start.contiguous().numpy()}
    reference = Reference.of(state, roles)
    slow = Partial(reference.exponents)
    for index in range(5):
        tally = Tally().add(int(weights[index]), 0, 0.0)
        slow.add(str(index), {"w": trained[index].numpy()}, int(weights[index]), tally, reference)
    for arranged in (
        trained,
        torch.stack([t.to(memory_format=torch.channels_last) for t in trained]),
    ):
        total = RunningSum({"w": start}, roles, str)
        total.begin({"w": start}, reference.exponents)
        total.add(np.arange(5), {"w": arranged}, weights, losses)
        found = total.take()
        assert found.sums["w"].tolist() == slow.sums["w"].tolist()
        assert found.sums["w"].flags["C_CONTIGUOUS"]
