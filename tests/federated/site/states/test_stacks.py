"""Models of all clients go into the file and come back as one stack."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fedpilot.federated.errors import RunRefused
from fedpilot.federated.site.states.client_states import ClientStates, rows_of
from fedpilot.federated.site.states.layouts import Layout, Stack


def state(client: int, round_number: int, floats: int = 4) -> dict[str, np.ndarray]:
    return {
        "of": np.array([client, round_number]),
        "w": np.full(floats, client + round_number / 7, dtype=np.float32),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "clients.sqlite"


LAYOUT = Layout.of(state(0, 0))


def stack(clients: list[int], round_number: int) -> Stack:
    made = Stack.zeros(LAYOUT, len(clients))
    for at, client in enumerate(clients):
        for name, array in state(client, round_number).items():
            made.columns[name][at] = array
    return made


def test_states_that_are_alike_come_and_go_as_a_stack(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save_stack(1, np.array([2, 4]), LAYOUT, [stack([2, 4], 1)])
        states.save_stack(1, np.array([9]), LAYOUT, [stack([9], 1)])
        one_by_one = states.load([4, 2, 9], 3)
        assert {client: kept["of"].tolist() for client, kept in one_by_one.items()} == {
            client: [client, 1] for client in (4, 2, 9)
        }
        found = states.load_stack(np.array([4, 2, 9]), 2).columns
        assert found["of"].tolist() == [[4, 1], [2, 1], [9, 1]]
        assert found["w"][1].tobytes() == state(2, 1)["w"].tobytes()


@pytest.mark.parametrize("missing", ["in that round", "altogether"])
def test_a_stack_lacks_no_client(missing: str, path: Path) -> None:
    """An older state is no stand-in: a power cut may have taken the newer one."""
    with closing(ClientStates(path)) as states:
        states.save_stack(1, np.array([2, 4]), LAYOUT, [stack([2, 4], 1)])
        states.save_stack(2, np.array([4]), LAYOUT, [stack([4], 2)])
        other = 2 if missing == "in that round" else 3
        with pytest.raises(RunRefused, match=r"lacks what 1 of 2 clients had after round 2"):
            states.load_stack(np.array([4, other]), 3)


def test_a_stack_of_states_that_differ_is_refused(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save(1, {3: state(3, 1, floats=5), 4: state(4, 1)})
        with pytest.raises(RunRefused, match=r"states of different shapes"):
            states.load_stack(np.array([4, 3]), 2)


def test_a_stack_with_a_spoilt_row_is_refused(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save_stack(1, np.array([2, 4]), LAYOUT, [stack([2, 4], 1)])
        with rows_of(path).open("r+b") as file:
            file.seek(-70, 2)
            file.write(b"spoilt")
        with pytest.raises(RunRefused, match=r"client 4 was left with by round 1 is spoilt"):
            states.load_stack(np.array([2, 4]), 2)


def test_clients_that_sat_out_continue_from_the_round_that_left_them(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        states.save_stack(1, np.array([2, 4]), LAYOUT, [stack([2, 4], 1)])
        states.save_stack(2, np.array([4]), LAYOUT, [stack([4], 2)])
        states.forget_round(1)
        states.commit(2)
        found = states.load_stack(np.array([4, 2]), 3, np.array([2, 1])).columns
        assert found["of"].tolist() == [[4, 2], [2, 1]]
        with pytest.raises(RunRefused, match=r"lacks what 1 of 2 clients"):
            states.load_stack(np.array([4, 2]), 3, np.array([1, 1]))


def test_what_did_not_count_is_dropped_before_it_takes_the_place_of_what_did(path: Path) -> None:
    with closing(ClientStates(path)) as states:
        for number in (1, 2, 3):
            states.save_stack(number, np.array([2, 4, 6]), LAYOUT, [stack([2, 4, 6], number)])
        states.forget_uncounted(np.array([2, 4]), np.array([1, 2]))
        states.commit(3)
        found = states.load_stack(np.array([2, 4, 6]), 4, np.array([1, 2, 3])).columns
        assert found["of"].tolist() == [[2, 1], [4, 2], [6, 3]]
