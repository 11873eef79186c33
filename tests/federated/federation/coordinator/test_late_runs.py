"""What a site hands up after its round was closed counts in the next, whenever that is run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, ClassVar

import pytest

from federations import Log, by_groups, one_by_one, raising, timeless
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import ConfigError, Event, Federation, RunRefused, RunResult
from fedpilot.federated.core.sums.staleness import weight_of
from fedpilot.federated.federation.coordinator.gather import Gather
from fedpilot.federated.federation.verify import Replay
from fedpilot.federated.site.workers.node import FederatedNode
from fedpilot.mediator import InProcessSite, Payload
from records import Archive

SITES = ("east", "north", "west")
POLL_S = 0.005


class SlowSite(InProcessSite):
    """A site with a slow link: some of its rounds' answers come when the test says so."""

    slow: ClassVar[set[tuple[str, int]]] = set()
    """Sites and rounds."""
    kept: ClassVar[dict[tuple[str, int], tuple[Future[Payload], Payload]]] = {}
    """Their answers, on their way."""

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        worked = super().deliver(order, key, purpose)
        which = self.name, order.header.get("round", 0)
        if order.kind != "round" or which not in self.slow:
            return worked
        answer: Future[Payload] = Future()
        worked.add_done_callback(lambda made: self.kept.update({which: (answer, made.result())}))
        return answer

    @classmethod
    def arrive(cls) -> None:
        """All that is on its way comes."""
        for answer, made in cls.kept.values():
            answer.set_result(made)
        cls.kept.clear()


class Hasty(Gather):
    """Its clock stands still until only slow answers are missing; then all deadlines are over."""

    _now = 0.0

    def __init__(self, query: Any, mediator: Any, rules: Any, _clock: Any) -> None:
        super().__init__(query, mediator, rules, lambda: self._now)

    def _wait(self, seconds: float | None) -> None:
        missing = {(each.part.site, self._query.round_number) for each in self._open.values()}
        if missing and missing <= SlowSite.kept.keys():
            self._now += 1e6
        super()._wait(POLL_S)


class Links:
    """An archive whose runs are over three sites, some of them slow."""

    def __init__(self, archive: Archive) -> None:
        self.archive = archive
        self.log = Log()

    def federation(
        self, *slow: tuple[str, int], observe: Callable[[Event], None] | None = None, **keys: Any
    ) -> Federation:
        SlowSite.slow = set(slow)
        SlowSite.kept.clear()
        self.log = Log()
        observers = [self.log, *([observe] if observe else [])]
        cluster = FakeCluster([fake_machine("a", CPU=8)])
        config = self.archive.config(**(CARRY | keys))
        return Federation(config, observers=observers, cluster=cluster, sites=SITES)

    def run(self, run_id: str, *slow: tuple[str, int], **options: Any) -> RunResult:
        with self.federation(*slow, **options) as federation:
            return federation.run(run_id=run_id)


CARRY: dict[str, Any] = {
    "federation__clients_per_round": 12,
    "federation__rounds": 3,
    "participation__deadline_s": 1000.0,
    "participation__quorum": 0.1,
    "participation__late_updates": "carry",
}


@pytest.fixture
def links(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> Links:
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", SlowSite)
    monkeypatch.setattr("fedpilot.federated.federation.coordinator.gather.Gather", Hasty)
    return Links(archive)


def arriving(at_round: int) -> Callable[[Event], None]:
    """An observer by whom what is late comes as soon as a round begins."""

    def observe(event: Event) -> None:
        if event.name == "round_started" and event.fields["round"] == at_round:
            SlowSite.arrive()

    return observe


def test_what_is_late_counts_in_the_next_round(links: Links) -> None:
    result = links.run("r", ("west", 1), observe=arriving(2))
    assert [row["clients"] for row in result.rows] == [8, 12, 12]
    assert [row["late"] for row in result.rows] == [0, 4, 0]
    (late,) = links.log.of("late_counted")
    whole, first = result.rows[1]["samples"], result.rows[0]["samples"]
    assert late == {
        **{"round": 2, "of_round": 1, "clients": 4, "sites": ["west"]},
        "weight": weight_of(whole - first, 1, 0.5),
    }
    journal = result.folder / "journal"
    told = json.loads((journal / "round-000002.counted.json").read_text())
    assert [each["round"] for each in told["late"]] == [1]
    assert (journal / "round-000002.late.safetensors").exists()
    discarding = {"participation__late_updates": "discard"}
    without = links.run("d", ("west", 1), observe=arriving(2), **discarding)
    assert without.rows[0]["model"] == result.rows[0]["model"]
    assert without.rows[1]["model"] != result.rows[1]["model"]
    assert "late" not in without.rows[1]


@pytest.mark.parametrize("strategy", [pytest.param("fedavg", marks=pytest.mark.soak), "fedadam"])
def test_what_was_late_counts_again_when_the_run_is_resumed_and_verified(
    strategy: str, links: Links
) -> None:
    by = {"federation__aggregation_strategy": strategy}
    whole = links.run("whole", ("west", 1), observe=arriving(2), **by)
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)

    def observe(event: Event) -> None:
        arriving(2)(event)
        stop(event)

    rare: dict[str, Any] = by | {"outputs__checkpoint_every": 10}
    with pytest.raises(KeyboardInterrupt):
        links.run("r", ("west", 1), observe=observe, **rare)
    with links.federation(**rare) as federation:
        result = federation.resume("r")
    assert links.log.of("round_started")[0]["round"] == 2, "the round of the late update ran again"
    assert links.log.of("late_counted") == []
    assert result.digest == whole.digest
    assert timeless(result.rows) == timeless(whole.rows)
    found = links.archive.verify("r", how=Replay.ALL)
    assert found.failure is None
    assert not found.differs


def test_a_late_update_that_was_spoilt_in_the_journal_is_refused(links: Links) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)

    def observe(event: Event) -> None:
        arriving(2)(event)
        stop(event)

    rare = {"outputs__checkpoint_every": 10}
    with pytest.raises(KeyboardInterrupt):
        links.run("r", ("west", 1), observe=observe, **rare)
    path = links.archive.runs / "r" / "journal" / "round-000002.late.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with links.federation(**rare) as federation, pytest.raises(RunRefused, match="another update"):
        federation.resume("r")


def test_what_is_later_than_allowed_is_discarded(links: Links) -> None:
    late = links.run("late", ("west", 1), observe=arriving(3))
    (discarded,) = links.log.of("late_discarded")
    assert discarded == {"round": 3, "of_round": 1, "site": "west", "reason": "it is too late"}
    never = links.run("never", ("west", 1))
    assert late.digest == never.digest
    assert [row["late"] for row in late.rows] == [0, 0, 0]


def test_several_sites_and_rounds_may_be_late_at_once(links: Links) -> None:
    slow = [("west", 1), ("north", 1), ("west", 2)]
    result = links.run("r", *slow, observe=arriving(3), participation__most_rounds_late=2)
    assert [row["clients"] for row in result.rows] == [4, 8, 12]
    assert [row["late"] for row in result.rows] == [0, 0, 12]
    counted = [(each["of_round"], each["sites"]) for each in links.log.of("late_counted")]
    assert counted == [(1, ["north", "west"]), (2, ["west"])]


def test_groups_may_be_late_too(links: Links) -> None:
    groups = by_groups(3, federation__rounds=3)
    whole = links.run("whole", ("west", 1), observe=arriving(2), **groups)
    assert [row["clients"] for row in whole.rows] == [8, 12, 12]
    assert [row["late"] for row in whole.rows] == [0, 4, 0]
    never = links.run("never", ("west", 1), **groups)
    assert never.rows[0]["model"] == whole.rows[0]["model"]
    assert never.rows[1]["model"] != whole.rows[1]["model"]
    found = links.archive.verify("whole", how=Replay.ALL)
    assert (found.failure, found.differs) == (None, False)


class Stuck:
    """A worker of `west` that does not come back with client 11 until the next round has begun.

    Where it is `alone`, it is the only worker, and its second client is the one that it stands at.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, alone: bool = False) -> None:
        self.alone = alone
        self.stands, self.gate = threading.Event(), threading.Event()
        self.others: list[int] = []
        self.answer: Future[Payload] = Future()
        original, deliver, stuck = FederatedNode.train, InProcessSite.deliver, self

        def train(node: Any, attempt: Any, clients: Any, *rest: Any) -> Any:
            (client,) = clients.tolist()
            if attempt.round_number > 1 and client >= 8:
                stuck.gate.set()
            done = original(node, attempt, clients, *rest)
            here = client >= 8 and len(stuck.others) == 1 if alone else client == 11
            if attempt.round_number == 1 and here:
                stuck.stands.set()
                assert stuck.gate.wait(60)
            elif attempt.round_number == 1 and client >= 8:
                stuck.others.append(client)
            return done

        def delivered(site: Any, order: Payload, key: str, purpose: str) -> Future[Payload]:
            answer = deliver(site, order, key, purpose)
            if (site.name, order.kind, order.header.get("round")) == ("west", "round", 1):
                stuck.answer = answer
            return answer

        monkeypatch.setattr(FederatedNode, "train", train)
        monkeypatch.setattr(InProcessSite, "deliver", delivered)
        monkeypatch.setattr(
            "fedpilot.federated.federation.coordinator.gather.Gather", self.asking()
        )

    def asking(self) -> type[Gather]:
        stuck = self

        class Closing(Gather):
            """Its deadlines are over once one worker of `west` stands and the other has trained."""

            _now = 0.0

            def __init__(self, query: Any, mediator: Any, rules: Any, _clock: Any) -> None:
                super().__init__(query, mediator, rules, lambda: self._now)

            def _wait(self, seconds: float | None) -> None:
                stands = stuck.stands.is_set() and len(stuck.others) >= (1 if stuck.alone else 2)
                open_ = {each.part.site for each in self._open.values()}
                if open_ == {"west"} and stands and not stuck.gate.is_set():
                    self._now += 1e6
                super()._wait(POLL_S)

        return Closing

    def arrives(self, event: Event) -> None:
        """The last round is not begun before the answer of the first is there."""
        if self.alone and event.name == "round_started" and event.fields["round"] == 2:
            self.gate.set()
        if event.name == "round_started" and event.fields["round"] == 3:
            assert wait([self.answer], timeout=60).done


def test_a_site_trains_the_next_round_while_one_of_its_workers_is_late(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    stuck = Stuck(monkeypatch)
    keys = {"evaluation__every": 9, "participation__most_rounds_late": 2}
    result = links.run("r", observe=stuck.arrives, **keys)
    assert links.log.of("late_discarded") == []
    (late,) = links.log.of("late_counted")
    assert (late["of_round"], late["sites"]) == (1, ["west"])
    assert late["clients"] in (3, 4), "what its other worker had is in it"
    assert [row["clients"] for row in result.rows] == [8, 12, 12]
    assert sum(row["late"] for row in result.rows) == late["clients"]


def test_a_late_answer_leaves_out_whom_nobody_had_begun(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one(monkeypatch)
    stuck = Stuck(monkeypatch, alone=True)
    keys = {
        "evaluation__every": 9,
        "participation__most_rounds_late": 2,
        "resources__workers": 1,
    }
    result = links.run("r", observe=stuck.arrives, **keys)
    assert links.log.of("late_discarded") == []
    assert links.log.of("site_refused") == []
    (late,) = links.log.of("late_counted")
    assert (late["of_round"], late["sites"]) == (1, ["west"])
    assert late["clients"] in (2, 3), "its worker had the next one already"
    assert [row["clients"] for row in result.rows] == [8, 12, 12]


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        pytest.param(
            {"federation__aggregation_strategy": "median"}, "late_updates", id="no weighted mean"
        ),
        pytest.param(
            {"training__client_update": "mine:update"}, "late_updates", id="clients that remember"
        ),
        pytest.param({"participation__deadline_s": None}, "late_updates", id="nobody is late"),
        pytest.param(
            {"participation__late_updates": "discard", "participation__most_rounds_late": 2},
            "most_rounds_late",
            id="a rule about what is discarded",
        ),
    ],
)
def test_what_cannot_be_late_is_refused_by_name(
    keys: dict[str, Any], key: str, archive: Archive
) -> None:
    with pytest.raises(ConfigError, match=f"participation.{key}"):
        archive.make(archive.config(**(CARRY | keys)))
