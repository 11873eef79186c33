"""Workers come and leave between a minimum and a maximum, at any piece: the bits stay the same."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from elastic_gangs import SharedCluster
from federations import CLIENTS, Lab, Log, on_a_graph
from fedpilot.federated import Event, Federation
from fedpilot.federated.core.rounds import chunking
from fedpilot.federated.core.state import digest
from fedpilot.federated.site.workers import gang_watch, pool as pool_module
from fedpilot.federated.site.workers.node import FederatedNode

pytestmark = pytest.mark.timeout(120)
ELASTIC = {"min": 2, "max": 4}
STAR = {"federation__rounds": 2, "federation__clients_per_round": 12}
ACTIONS = ("grow", "take", "notice", "withdraw", "crash of a machine", "preempt")
SOON_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TICK_S", 0.01)
    monkeypatch.setattr(gang_watch, "LOOK_S", 0.002)
    monkeypatch.setattr(chunking, "SHORT_S", 0.0)  # several pieces in the shortest rounds
    monkeypatch.setattr(chunking, "LEAST_S", 0.0)


class Counted:
    """Which pieces began, how often, and on which vnodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: Counter[tuple[int, tuple[int, ...]]] = Counter()
        self.at: set[str] = set()
        for name in ("train", "train_nodes"):
            monkeypatch.setattr(FederatedNode, name, self._counting(getattr(FederatedNode, name)))

    def _counting(self, train: Callable[..., Any]) -> Callable[..., Any]:
        def counting(node: Any, attempt: Any, clients: Any, *args: Any) -> Any:
            self.begun[attempt.round_number, tuple(clients.tolist())] += 1
            self.at.add(threading.current_thread().name.rpartition("/")[0])
            return train(node, attempt, clients, *args)

        return counting

    @property
    def again(self) -> int:
        """Pieces that began once more."""
        return sum(self.begun.values()) - len(self.begun)

    @property
    def clients(self) -> int:
        """Clients in all pieces, each once for each way in which it was cut into one."""
        return sum(len(clients) for _, clients in self.begun)


class Shared:
    """A federation on a Ray that teams share, and what happens to its gang."""

    def __init__(
        self,
        lab: Lab,
        monkeypatch: pytest.MonkeyPatch,
        *observers: Callable[[Event], None],
        **keys: Any,
    ) -> None:
        self.log = Log()
        self.cluster = SharedCluster(monkeypatch)
        self.manager = self.cluster.manager
        self.taken = 0
        config = lab.config(resources__workers=ELASTIC, resources__worker_restarts=0, **keys)
        self.federation = Federation(config, observers=[self.log, *observers], cluster=self.cluster)

    def at(self, method: str, nth: int, act: Callable[[], object]) -> None:
        """Do something as the nth call of a method begins."""
        self.cluster.steps.at[method, nth] = lambda: act() and None

    def act(self, action: str) -> None:
        """One of `ACTIONS`."""
        manager, surplus = self.manager, self.manager.surplus
        match action:
            case "grow":
                manager.grow()
            case "take" | "crash of a machine" if surplus:
                self.taken += 1
                manager.take(surplus[0])
            case "notice" if surplus:
                manager.notice(surplus[0], 10.0)
            case "withdraw" if surplus:
                manager.withdraw(surplus[0])
            case "preempt":
                manager.preempt()
                threading.Timer(0.05, manager.give_back).start()

    def run(self) -> str:
        with self.federation as federation:
            return federation.run().digest


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """How runs end on two workers that stay."""
    known: dict[str, str] = {}
    with ExitStack() as undo:
        lab = Lab(tmp_path_factory.mktemp("calm"), undo)

        def digest(**keys: Any) -> str:
            if str(keys) not in known:
                known[str(keys)] = lab.run(**keys).digest
            return known[str(keys)]

        yield digest


@settings(
    deadline=None,
    max_examples=settings().max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    history=st.lists(st.tuples(st.integers(1, 24), st.sampled_from(ACTIONS)), max_size=12),
    graph=st.booleans(),
)
def test_any_history_of_workers_gives_the_same_bits(
    history: list[tuple[int, str]],
    graph: bool,
    undisturbed: Callable[..., str],
    tmp_path: Path,
) -> None:
    keys = on_a_graph(federation__rounds=2) if graph else STAR
    method = "train_nodes" if graph else "train"
    calm = undisturbed(**keys)
    with pytest.MonkeyPatch.context() as patched, ExitStack() as undo:
        counted = Counted(patched)
        shared = Shared(Lab(tmp_path, undo), patched, **keys)
        begun = [(1, "grow"), (1, "grow"), *history]
        for nth in {nth for nth, _ in begun}:
            todo = [action for at, action in begun if at == nth]
            shared.at(method, nth, lambda todo=todo: [shared.act(each) for each in todo])  # type: ignore[misc]
        assert shared.run() == calm
    assert not shared.log.of("worker_lost"), "nothing counts against restarts"
    if not any(action == "preempt" for _, action in history):
        assert counted.clients == 2 * CLIENTS, "no sum is lost"
        assert counted.again <= shared.taken, "at most the piece in flight trains twice"


def test_workers_that_come_are_used_from_the_next_piece_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    came, counted = threading.Event(), Counted(monkeypatch)

    def sees(event: Event) -> None:
        if event.name == "worker_ready" and event.fields["worker"] == 2:
            came.set()

    def grow() -> None:
        shared.manager.grow()
        assert came.wait(SOON_S)

    shared = Shared(lab, monkeypatch, sees, **STAR)
    shared.at("train", 1, grow)
    shared.at("train", 2, lambda: came.wait(SOON_S))
    assert shared.run() == lab.run(**STAR).digest
    assert shared.log.of("worker_joined") == [{"site": "local", "worker": 2}]
    assert {at.rpartition("/")[2] for at in counted.at} == {"0", "1", "2"}


def test_a_worker_under_notice_ends_its_piece_and_leaves_with_nothing_lost(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = lab.run(**STAR).digest
    counted, shared = Counted(monkeypatch), Shared(lab, monkeypatch, **STAR)
    shared.at("hello", 1, lambda: [shared.manager.grow(), shared.manager.grow()])
    shared.at("train", 4, lambda: [shared.manager.notice(each) for each in shared.manager.surplus])
    assert shared.run() == calm
    assert sorted(each["worker"] for each in shared.log.of("worker_notice")) == [2, 3]
    assert sorted(each["worker"] for each in shared.log.of("worker_left")) == [2, 3]
    assert not any(each["held"] for each in shared.log.of("worker_left"))
    assert len(shared.manager.left) == 2
    assert counted.again == 0


def test_clients_that_are_hosted_at_a_worker_that_leaves_move_to_others(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"client_{n}" for n in range(4)]
    with lab.federation(**STAR) as calm:
        expected = {name: digest(calm[name].train().state) for name in names}
    seen = queue.SimpleQueue[str]()
    shared = Shared(lab, monkeypatch, lambda event: seen.put(event.name), **STAR)
    with shared.federation as federation:
        federation.start()
        for _ in range(2):
            shared.manager.grow()
        while len(shared.log.of("worker_ready")) < 4:
            seen.get(timeout=SOON_S)
        for name in names:
            federation[name].materialize()
        hosts = {federation[name].explanation()["worker"] for name in names}
        assert hosts == {"worker 0", "worker 1", "worker 2", "worker 3"}
        for node in shared.manager.surplus:
            shared.manager.take(node)
        while len(shared.log.of("worker_left")) < 2:
            seen.get(timeout=SOON_S)
        assert {name: digest(federation[name].train().state) for name in names} == expected
        hosts = {federation[name].explanation()["worker"] for name in names}
        assert hosts == {"worker 0", "worker 1"}
    assert not shared.log.of("worker_lost")
