"""Clients of a graph at several sites: the same bits, and only crossing edges cost network."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from calm_runs import CalmRuns
from federations import (
    CLIENTS,
    ROUNDS,
    Lab,
    Log,
    in_time,
    raising,
    timeless,
)
from fedpilot.federated.core.rounds.participation import SiteRefused
from fedpilot.federated.core.state import Array
from fedpilot.federated.errors import RunRefused, TrafficSpent
from fedpilot.mediator import InProcessSite, Payload
from fedpilot.mediator.core.assignment import STRATEGIES
from fedpilot.mediator.federation.futures import settle_as
from graph_runs import NAMES, digests_over, over, run_over
from lying_sites import Change, LyingSite
from pairings import paired
from shaky_sites import ShakySite, returning

GRAPHS: dict[str, dict[str, Any]] = {
    "ring": {},
    "complete": {},
    "matching": {},
    "k_connected": {"graph__degree": 4, "graph__mixing_steps": 3},
}


@pytest.mark.parametrize("sites", [pytest.param(2, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize(
    ("name", "assignment"), paired(GRAPHS, ["capacity", "locality", "round_robin"])
)
def test_however_many_sites_give_the_same_bits(
    name: str, sites: int, assignment: str, lab: Lab, calm: CalmRuns
) -> None:
    alone = calm.at_one_site(name=name, **GRAPHS[name])
    apart = run_over(
        lab,
        NAMES[:sites],
        name=name,
        federation__assignment=assignment,
        resources__workers=2,
        **GRAPHS[name],
    )
    assert apart.digest == alone.digest
    assert digests_over(apart.folder) == digests_over(alone.folder)
    assert timeless(apart.rows) == timeless(alone.rows)


def test_a_resumed_run_ends_in_the_same_bits(lab: Lab, calm: CalmRuns) -> None:
    alone = calm.at_one_site()
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with over(lab, NAMES, stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    with over(lab, NAMES) as federation:
        resumed = in_time(lambda: federation.resume("r"))
    assert resumed.digest == alone.digest
    assert digests_over(resumed.folder) == digests_over(alone.folder)


def test_clients_stay_where_their_models_are_whatever_the_sites_workers(
    lab: Lab, calm: CalmRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other numbers of workers a resumed run would deal them differently, as here."""
    alone = calm.at_one_site()
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with over(lab, NAMES, stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    monkeypatch.setitem(STRATEGIES, "locality", STRATEGIES["round_robin"])  # type: ignore[arg-type]
    with over(lab, NAMES) as federation:
        resumed = in_time(lambda: federation.resume("r"))
        found = federation[federation.client_id(0)].explanation()
    assert found["why"].endswith("the run was resumed, and its clients keep their sites")
    assert found["neighbors"] == {"east": 1, "west": 1}
    assert found["next_best"]["site"] in NAMES
    assert resumed.digest == alone.digest
    assert digests_over(resumed.folder) == digests_over(alone.folder)


def test_a_run_resumes_at_the_sites_of_its_clients_models_only(lab: Lab) -> None:
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with over(lab, NAMES, stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    with (
        over(lab, NAMES[:2]) as federation,
        pytest.raises(RunRefused, match="east, north, west, and it resumes at east, north"),
    ):
        in_time(lambda: federation.resume("r"))


def test_a_site_whose_clients_are_all_absent_may_say_that_its_neighbors_leave_the_range(
    lab: Lab, user_code: str
) -> None:
    """Its answer weighs nothing, and it is no liar."""
    keys = {
        "model__model_type": f"{user_code}:Explosive",
        "model__options": {"limit": 2.6},
        "training__learning_rate": 1e9,
        "federation__rounds": 2,
    }
    sites = tuple(f"site-{number:02}" for number in range(CLIENTS))
    log = Log()
    alone, apart = (run_over(lab, some, log, **keys) for some in (NAMES[:1], sites))
    assert log.of("grid_coarsened")
    assert log.of("update_refused")
    assert apart.digest == alone.digest


def test_a_client_whose_training_diverges_is_done_without_at_every_site(
    lab: Lab, user_code: str
) -> None:
    keys = {"model__model_type": f"{user_code}:Explosive", "model__options": {"limit": 2.6}}
    log = Log()
    alone, apart = (run_over(lab, NAMES[:sites], log, **keys) for sites in (1, 3))
    assert log.of("update_refused")
    assert apart.digest == alone.digest
    assert digests_over(apart.folder) == digests_over(alone.folder)


@pytest.mark.parametrize("steps", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_sum_out_of_range_repeats_the_round_at_every_site(steps: int, lab: Lab) -> None:
    keys = {"training__learning_rate": 1e9, "graph__mixing_steps": steps}
    log = Log()
    alone, apart = (run_over(lab, NAMES[:sites], log, **keys) for sites in (1, 3))
    assert len(log.of("grid_coarsened")) >= 2
    assert apart.digest == alone.digest
    assert digests_over(apart.folder) == digests_over(alone.folder)


def test_each_state_crosses_once_to_each_site_that_takes_it(lab: Lab) -> None:
    """On a ring cut in three the two clients at each end of a part have neighbors elsewhere."""
    with over(lab, NAMES) as federation:
        model = federation.loaded.inputs.initial
        run = in_time(federation.run)
    with (run.folder / "traffic.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["purpose"] == "exchange"]
    crossed = Counter[tuple[str, str]]()
    for row in rows:
        crossed[row["round"], row["direction"]] += int(row["bytes"])
    states = 6 * sum(array.nbytes for array in model.values())
    assert crossed == {
        (str(number), way): states
        for number in range(1, ROUNDS + 1)
        for way in ("to_site", "from_site")
    }


def test_neighbors_are_at_one_site_wherever_they_are_in_the_population(
    lab: Lab, tmp_path: Path
) -> None:
    """The even clients all exchange, and so do the odd ones; one edge is between them."""
    edges = [(a, b) for a in range(CLIENTS) for b in range(a + 2, CLIENTS, 2)]
    (tmp_path / "two.edges").write_text("\n".join(f"{a} {b}" for a, b in [*edges, (0, 1)]))
    keys = {"name": "custom", "graph__file": str(tmp_path / "two.edges")}
    alone = run_over(lab, NAMES[:1], **keys)
    with over(lab, NAMES[:2], **keys) as federation:
        model = federation.loaded.inputs.initial
        run = in_time(federation.run)
    assert run.digest == alone.digest
    with (run.folder / "traffic.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["purpose"] == "exchange"]
    crossed = sum(int(row["bytes"]) for row in rows if row["direction"] == "to_site")
    assert crossed == 2 * ROUNDS * sum(array.nbytes for array in model.values())


# -- trouble -------------------------------------------------------------------------------------

WHEN = ("before its work", "amid its work")


@pytest.mark.parametrize(
    ("order", "when"),
    [
        *paired(range(6, 14, 2), WHEN),
        *(
            pytest.param(order, when, marks=pytest.mark.soak)
            for order in range(7, 14, 2)
            for when in WHEN
        ),
    ],
)
def test_a_site_that_is_lost_with_any_order_of_a_round_is_waited_for(
    order: int, when: str, lab: Lab, calm: CalmRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = calm.at_one_site()
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {"north": {order}})
    monkeypatch.setattr(ShakySite, "amid", when == WHEN[1])
    log = Log()
    with over(lab, NAMES, log) as federation:
        federation._events.observers.append(returning(federation, "north"))
        result = in_time(federation.run)
    assert [event["site"] for event in log.of("site_lost")] == ["north"]
    assert result.digest == alone.digest
    assert digests_over(result.folder) == digests_over(alone.folder)


class PatientSite(InProcessSite):
    """The first site gives nothing before another one has taken."""

    waiting: ClassVar[list[Callable[[], None]]] = []

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        answer = super().deliver(order, key, purpose)
        if order.kind == "take_states" and self.name != NAMES[0]:
            while self.waiting:
                self.waiting.pop()()
        if order.kind != "give_states" or self.name != NAMES[0]:
            return answer
        late: Future[Payload] = Future()
        self.waiting.append(lambda: settle_as(answer, late))
        return late


def test_sites_take_what_has_come_while_another_one_still_gives(
    lab: Lab, calm: CalmRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = calm.at_one_site()
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", PatientSite)
    monkeypatch.setattr(PatientSite, "waiting", [])
    assert run_over(lab, NAMES).digest == alone.digest


def changed(change: Callable[[Array], Array]) -> Change:
    return lambda answer: replace(
        answer, tensors={name: change(array) for name, array in answer.tensors.items()}
    )


@pytest.mark.parametrize(
    ("about", "lie", "said"),
    [
        ("give_states", changed(lambda a: np.full_like(a, np.nan)), "is not finite"),
        ("give_states", changed(lambda a: a[:, :1]), "float32"),
        ("give_states", changed(lambda a: a.astype(np.float64)), "float64"),
        ("give_states", changed(lambda a: np.concatenate([a, a])), "float32"),
        ("give_states", lambda answer: replace(answer, tensors={}), "none of client"),
        ("round", lambda answer: replace(answer, header={"absent": [0]}), "asked for"),
        ("round", lambda answer: replace(answer, header={}), "a list of clients"),
        ("mix", changed(lambda a: np.full(a.shape, 1 << 61, np.int64)), "sum"),
        ("mix", lambda answer: replace(answer, kind="mixed", header={}), "an object"),
    ],
)
def test_a_site_that_answers_what_cannot_be_is_named(
    about: str, lie: Change, said: str, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", LyingSite)
    monkeypatch.setattr(LyingSite, "about", about)
    monkeypatch.setattr(LyingSite, "lies", {"west": lie})
    with pytest.raises(SiteRefused, match=f"west.*{said}"):
        run_over(lab, NAMES)


# -- limits on bytes -------------------------------------------------------------------------------


def rounds_of_traffic(run: Path) -> list[int]:
    """Bytes of each round, from the first on, over all sites."""
    crossed = Counter[int]()
    with (run / "traffic.csv").open() as file:
        for row in csv.DictReader(file):
            crossed[int(row["round"])] += int(row["bytes"])
    return [crossed[number] for number in range(1, max(crossed) + 1)]


LIMITED: dict[str, dict[str, Any]] = {
    "a ring": {},
    "several steps": {"graph__mixing_steps": 2},
    "weights that travel": {"name": "exponential", "strategy": "push_sum"},
    "another graph in each round": {"name": "matching"},
}


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(each, id=name, marks=pytest.mark.soak if name == "several steps" else ())
        for name, each in LIMITED.items()
    ],
)
def test_what_clients_exchange_counts_before_a_round_begins(keys: dict[str, Any], lab: Lab) -> None:
    free = run_over(lab, NAMES, **keys)
    first, second, *_ = rounds_of_traffic(free.folder)
    enough = {"traffic__run_bytes": str(first + second), **keys}
    with over(lab, NAMES, **enough) as federation:
        assert federation.loaded.rounds_within_budget(NAMES) == 2
        with pytest.raises(TrafficSpent, match=r"round 3 is not begun: .*traffic\.run_bytes"):
            federation.run(run_id="enough")
    assert rounds_of_traffic(lab.runs / "enough") == [first, second]
    short = {"traffic__run_bytes": str(first + second - 1), **keys}
    with over(lab, NAMES, **short) as federation, pytest.raises(TrafficSpent, match="round 2"):
        federation.run(run_id="short")
    assert rounds_of_traffic(lab.runs / "short") == [first]


def test_a_repeated_exchange_is_not_sent_beyond_the_limit(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site is lost amid the exchange: its round begins anew, and has used up its bytes."""
    most = max(rounds_of_traffic(run_over(lab, NAMES).folder))
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {"north": {10}})
    with over(lab, NAMES, traffic__round_bytes=str(most)) as federation:
        federation._events.observers.append(returning(federation, "north"))
        with pytest.raises(TrafficSpent, match=r"nothing more of round 2 is sent"):
            in_time(federation.run)
