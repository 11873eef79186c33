"""A state that was put comes back as the same bits, from memory or from disk, or with an error."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedpilot.federated.core.state import State, digest, nbytes
from fedpilot.federated.errors import FederatedError
from fedpilot.federated.site.object_store import INLINE_BYTES, GlobalObjectStore, SharedModels
from fedpilot.federated.site.workers.lru import KEEP
from fedpilot.mediator import SiteLost

KB = 1000


def state(number: int, size: int = KB) -> dict[str, np.ndarray]:
    """A state of `size` bytes, and of bits that no other number has."""
    return {"w": np.full(size // 4, number, dtype=np.float32)}


class Fabric:
    """Counts what is put into it."""

    def __init__(self) -> None:
        self.stored: list[Any] = []

    def put(self, value: Any) -> str:
        self.stored.append(value)
        return f"handle {len(self.stored)}"


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


@pytest.fixture
def store(fabric: Fabric, tmp_path: Path) -> GlobalObjectStore:
    """One that has room for three states of the usual size."""
    return GlobalObjectStore(fabric.put, limit_bytes=3 * KB, folder=tmp_path)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_a_state_is_found_by_its_key_and_by_its_digest(store: GlobalObjectStore) -> None:
    name = store.put("global", state(1))
    assert name == digest(state(1))
    assert digest(store.get("global")) == digest(store.get(name)) == name
    assert "global" in store
    assert name in store


def test_equal_states_are_kept_once(store: GlobalObjectStore) -> None:
    assert store.put("a", state(1)) == store.put("b", state(1))
    assert store.memory_bytes == KB
    store.delete("a")
    assert digest(store.get("b")) == digest(state(1))
    store.delete("b")
    assert store.memory_bytes == 0


def test_a_key_that_is_put_again_moves_and_what_it_left_is_dropped(
    store: GlobalObjectStore,
) -> None:
    first = store.put("global", state(1))
    second = store.put("global", state(2))
    assert digest(store.get("global")) == second
    assert first not in store
    store.put("global", state(2))
    store.delete("global")
    store.delete("global")
    assert second not in store


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(digest(state(1)), digest(state(1))[:12], id="by digest"),
        pytest.param("round/3/client_7", "round/3/client_7", id="by key"),
    ],
)
def test_what_is_not_here_is_named(name: str, said: str, store: GlobalObjectStore) -> None:
    for ask in (store.get, store.shared):
        with pytest.raises(FederatedError, match=f"^model {said} is not at this site$"):
            ask(name)


def test_a_digest_is_no_key_of_another_state(store: GlobalObjectStore) -> None:
    name = digest(state(1))
    assert store.put(name, state(1)) == name
    with pytest.raises(FederatedError, match="the digest of another"):
        store.put(name, state(2))
    assert digest(store.get(name)) == name


def test_what_is_given_out_cannot_be_changed(store: GlobalObjectStore, tmp_path: Path) -> None:
    store.put("a", state(1))
    for number in (2, 3, 4):
        store.put(str(number), state(number))
    assert len(files(tmp_path)) == 1
    for key in ("4", "a"):
        with pytest.raises(ValueError, match="read-only"):
            store.get(key)["w"][0] = 5.0


def test_it_tells_its_keys_and_how_many_they_are(store: GlobalObjectStore) -> None:
    assert (store.keys(), store.size()) == ((), 0)
    for key in ("run/client_0/round_1", "run/client_1/round_1"):
        store.put(key, state(1))
    assert store.keys() == ("run/client_0/round_1", "run/client_1/round_1")
    assert store.size() == 2
    assert store.digest_of("run/client_1/round_1") == digest(state(1))
    store.delete("run/client_0/round_1")
    assert (store.keys(), store.size()) == (("run/client_1/round_1",), 1)
    assert store.digest_of("run/client_0/round_1") is None


# -- counted readers --------------------------------------------------------------------------


def test_a_state_goes_with_the_last_of_its_readers(
    store: GlobalObjectStore, tmp_path: Path
) -> None:
    name = store.put("a", state(1, 9 * KB), readers=(4, 5, 6))
    assert len(files(tmp_path)) == 1
    assert store.finish("a", [5, 9]) == {5}
    assert store.finish("a", [5]) == frozenset(), "a reader counts once"
    assert digest(store.get("a")) == name, "it may read again"
    assert store.finish("a", [4, 6]) == {4, 6}
    assert "a" not in store
    assert name not in store
    assert files(tmp_path) == []


def test_the_readers_of_a_key_leave_its_state_to_other_keys(store: GlobalObjectStore) -> None:
    name = store.put("a", state(1), readers=[4])
    store.put("b", state(1), readers=[4])
    store.put("kept", state(2))
    assert store.finish("a", [4]) == {4}
    assert store.finish("kept", [4]) == store.finish("missing", [4]) == frozenset()
    assert digest(store.get("b")) == name
    assert store.keys() == ("b", "kept")


def test_a_key_that_is_put_again_waits_for_all_its_readers(store: GlobalObjectStore) -> None:
    store.put("a", state(1), readers=[4, 5])
    store.finish("a", [4])
    store.put("a", state(2), readers=[4, 5])
    store.finish("a", [5])
    assert digest(store.get("a")) == digest(state(2))
    store.finish("a", [4])
    assert store.size() == 0
    store.put("a", state(3), readers=[4])
    store.put("a", state(3))
    assert store.finish("a", [4]) == frozenset(), "nobody is waited for any more"
    assert "a" in store


# -- spilling ---------------------------------------------------------------------------------


def test_the_least_recently_used_goes_to_disk_and_comes_back(
    store: GlobalObjectStore, tmp_path: Path
) -> None:
    names = [store.put(str(number), state(number)) for number in range(3)]
    store.get("0")
    store.put("3", state(3))
    assert [file.stem for file in files(tmp_path)] == [names[1]]
    assert digest(store.get("1")) == names[1]
    assert store.memory_bytes == 3 * KB
    assert len(files(tmp_path)) == 2
    for key in "0123":
        store.delete(key)
    assert files(tmp_path) == []


def test_a_state_larger_than_the_limit_lives_on_disk(store: GlobalObjectStore) -> None:
    name = store.put("large", state(1, 10 * KB))
    assert store.memory_bytes == 0
    assert digest(store.get("large")) == name
    assert store.memory_bytes == 0


ODD: dict[str, np.ndarray] = {
    "count": np.array(7),
    "empty": np.zeros((0, 3), dtype=np.float16),
    "mask": np.array([True, False]),
    "turned": np.arange(6.0).reshape(2, 3).T,
    "view": np.arange(20, dtype=np.uint8)[::3],
    "big-endian": np.arange(3, dtype=">f4"),
}


@pytest.mark.parametrize(
    "odd",
    [pytest.param({name: array}, id=name) for name, array in ODD.items()]
    + [pytest.param({}, id="no tensors"), pytest.param(ODD, id="all of them")],
)
def test_every_kind_of_tensor_survives_the_disk(odd: State, tmp_path: Path) -> None:
    store = GlobalObjectStore(Fabric().put, limit_bytes=-1, folder=tmp_path)
    name = store.put("odd", odd)
    assert len(files(tmp_path)) == 1
    back = store.get("odd")
    assert digest(back) == name
    assert {n: (np.shape(a), a.tolist()) for n, a in back.items()} == {
        n: (np.shape(a), a.tolist()) for n, a in odd.items()
    }


def spoil_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(spoil_bit, id="a bit flipped"),
        pytest.param(lambda file: file.write_bytes(file.read_bytes()[:-7]), id="cut short"),
        pytest.param(lambda file: file.write_bytes(b""), id="emptied"),
        pytest.param(Path.unlink, id="removed"),
    ],
)
def test_a_spoilt_file_is_an_error_until_the_state_is_put_again(spoil: Any, tmp_path: Path) -> None:
    store = GlobalObjectStore(Fabric().put, limit_bytes=0, folder=tmp_path)
    name = store.put("a", state(1))
    spoil(files(tmp_path)[0])
    for _ in range(2):
        with pytest.raises(FederatedError, match=f"model {name[:12]} was moved to disk.*spoilt"):
            store.get("a")
    store.put("a", state(1))
    assert digest(store.get("a")) == name


def test_a_disk_without_room_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "missing"
    store = GlobalObjectStore(Fabric().put, limit_bytes=KB, folder=folder)
    store.put("a", state(1))
    with pytest.raises(FederatedError, match="must go to disk, since 1000 bytes may be in memory"):
        store.put("b", state(2))
    folder.mkdir()
    assert {digest(store.get(key)) for key in "ab"} == {digest(state(1)), digest(state(2))}


def test_closing_removes_its_files_and_only_those(store: GlobalObjectStore, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    for number in range(5):
        store.put(str(number), state(number))
    assert len(files(tmp_path)) == 2
    store.close()
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with pytest.raises(FederatedError, match="not at this site"):
        store.get("0")
    with pytest.raises(FederatedError, match="closed"):
        store.put("0", state(0))


# -- what workers are sent --------------------------------------------------------------------


def test_a_small_state_is_sent_as_it_is(store: GlobalObjectStore, fabric: Fabric) -> None:
    store.put("small", state(1))
    assert digest(store.shared("small")) == digest(state(1))
    assert fabric.stored == []


def test_a_large_state_is_stored_in_the_fabric_once_while_it_is_here(
    store: GlobalObjectStore, fabric: Fabric
) -> None:
    large = state(1, INLINE_BYTES + 4)
    name = store.put("large", large)
    assert store.shared("large") == store.shared(name) == "handle 1"
    assert [digest(stored) for stored in fabric.stored] == [name]
    assert store.memory_bytes == 0
    store.delete("large")
    store.put("large", large)
    assert store.shared("large") == "handle 2"


# -- properties -------------------------------------------------------------------------------

STATES = [state(number, size * KB) for number, size in enumerate((0, 1, 1, 2, 3, 9, 120, 150))]
NAMES = [digest(each) for each in STATES]
KEYS = st.sampled_from("abcdef")
READERS = st.sets(st.integers(0, 3), min_size=1)
LIMIT = 10 * KB


class AgainstDicts(RuleBasedStateMachine):
    """The store does what a dictionary of keys would do."""

    @initialize()
    def open(self) -> None:
        self.fabric = Fabric()
        self.store = GlobalObjectStore(self.fabric.put, limit_bytes=LIMIT)
        self.keys: dict[str, int] = {}
        self.waiting: dict[str, set[int]] = {}
        self.handles: dict[str, str] = {}

    def present(self) -> set[str]:
        return {NAMES[i] for i in self.keys.values()}

    @rule(key=KEYS, which=st.integers(0, len(STATES) - 1), known=st.booleans())
    def put(self, key: str, which: int, known: bool) -> None:
        told = NAMES[which] if known else None
        assert self.store.put(key, STATES[which], known=told) == NAMES[which]
        self.keys[key] = which
        self.waiting.pop(key, None)

    @rule(key=KEYS, which=st.integers(0, len(STATES) - 1), readers=READERS)
    def put_for(self, key: str, which: int, readers: set[int]) -> None:
        self.store.put(key, STATES[which], readers=readers)
        self.keys[key] = which
        self.waiting[key] = set(readers)

    @rule(key=KEYS, readers=READERS)
    def finish(self, key: str, readers: set[int]) -> None:
        waiting = self.waiting.get(key, set())
        assert self.store.finish(key, readers) == waiting & readers
        waiting -= readers
        if key in self.waiting and not waiting:
            del self.keys[key], self.waiting[key]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        self.store.delete(key)
        self.keys.pop(key, None)
        self.waiting.pop(key, None)

    @rule(key=KEYS)
    def get(self, key: str) -> None:
        if key in self.keys:
            assert digest(self.store.get(key)) == NAMES[self.keys[key]]
        else:
            with pytest.raises(FederatedError):
                self.store.get(key)

    @rule(name=st.sampled_from(NAMES))
    def share(self, name: str) -> None:
        if name in self.present():
            sent = self.store.shared(name)
            if nbytes(STATES[NAMES.index(name)].values()) <= INLINE_BYTES:
                assert digest(sent) == name
            else:
                assert self.handles.setdefault(name, sent) == sent

    @invariant()
    def what_is_wanted_is_here_and_the_memory_is_bounded(self) -> None:
        present = self.present()
        self.handles = {n: h for n, h in self.handles.items() if n in present}
        assert {name for name in NAMES if name in self.store} == present
        assert set(self.store.keys()) == self.keys.keys()
        assert self.store.size() == len(self.keys)
        assert self.store.memory_bytes <= LIMIT

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


TestAgainstDicts = AgainstDicts.TestCase
TestAgainstDicts.settings = settings(
    max_examples=settings().max_examples // 3, stateful_step_count=30
)


def test_threads_get_what_they_ask_for(tmp_path: Path) -> None:
    store = GlobalObjectStore(Fabric().put, limit_bytes=3 * KB, folder=tmp_path)
    wrong: list[str] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(150):
                which = dice.randrange(4)
                name = store.put(f"{seed}", STATES[which + 1], known=NAMES[which + 1])
                if digest(store.get(f"{seed}")) != name:
                    wrong.append(name)
                store.delete(f"{seed}")
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert store.memory_bytes == 0
    store.close()


# -- the models of rounds and of single nodes -------------------------------------------------


def test_a_round_may_use_a_model_that_came_before(store: GlobalObjectStore, fabric: Fabric) -> None:
    models = SharedModels("oslo", fabric.put, store)
    for number in range(KEEP):
        models.of_round(NAMES[number], STATES[number])
    for number in range(KEEP):
        _, shared = models.of_round(NAMES[number], {})
        assert (shared.key, digest(shared.content)) == (NAMES[number], NAMES[number])
    models.of_round(NAMES[KEEP], STATES[KEEP])
    with pytest.raises(SiteLost, match="has not arrived there"):
        models.of_round(NAMES[0], {})


@pytest.mark.parametrize("size", [INLINE_BYTES, INLINE_BYTES + 4])
def test_a_single_nodes_model_goes_with_its_work(
    size: int, store: GlobalObjectStore, fabric: Fabric
) -> None:
    models = SharedModels("oslo", fabric.put, store)
    inline = size <= INLINE_BYTES
    sent = state(1, size)
    assert models.of_one("key", sent).content == (sent if inline else "handle 1")
    assert fabric.stored == ([] if inline else [sent])
