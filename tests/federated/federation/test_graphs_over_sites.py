"""Clients of a graph at several sites: the same bits, and only crossing edges cost network."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
from fedpilot.federated.errors import RunRefused, TrafficSpent, VersionsDiffer
from fedpilot.mediator import Payload
from fedpilot.mediator.core.assignment import STRATEGIES
from fedpilot.mediator.core.traffic import Volume
from graph_runs import NAMES, digests_over, over, run_over
from lying_sites import Change, LyingSite
from shaky_sites import ShakySite, returning

GRAPHS: dict[str, dict[str, Any]] = {
    "ring": {},
    "complete": {},
    "matching": {},
    "k_connected": {"graph__degree": 4, "graph__mixing_steps": 3},
}


@pytest.mark.parametrize("assignment", ["capacity", "locality", "round_robin"])
@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize("name", list(GRAPHS))
def test_however_many_sites_give_the_same_bits(
    name: str, sites: int, assignment: str, lab: Lab
) -> None:
    alone = run_over(lab, NAMES[:1], name=name, **GRAPHS[name])
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


def test_a_resumed_run_ends_in_the_same_bits(lab: Lab) -> None:
    alone = run_over(lab, NAMES[:1])
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with over(lab, NAMES, stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    with over(lab, NAMES) as federation:
        resumed = in_time(lambda: federation.resume("r"))
    assert resumed.digest == alone.digest
    assert digests_over(resumed.folder) == digests_over(alone.folder)


def test_clients_stay_where_their_models_are_whatever_the_sites_workers(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other numbers of workers a resumed run would deal them differently, as here."""
    alone = run_over(lab, NAMES[:1])
    stop = raising(KeyboardInterrupt(), "round_finished", round=2)
    with over(lab, NAMES, stop) as federation, pytest.raises(KeyboardInterrupt):
        federation.run(run_id="r")
    monkeypatch.setitem(STRATEGIES, "capacity", STRATEGIES["round_robin"])  # type: ignore[arg-type]
    with over(lab, NAMES) as federation:
        resumed = in_time(lambda: federation.resume("r"))
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


@pytest.mark.parametrize("steps", [1, 2])
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


# -- partial sums ---------------------------------------------------------------------------------

HUBS = [(hub, other) for hub in (0, 1) for other in range(2, CLIENTS)] + [(0, 1)]
"""Two clients exchange with all others."""
SUMMED: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "several steps": {"graph__mixing_steps": 3},
    "gossip": {"strategy": "gossip"},
    "push_sum": {"strategy": "push_sum", "graph__mixing_steps": 2},
    "spilled": {"resources__store_bytes": "2000"},
    "counters": {"model__model_type": "{}:WithBatchNorm"},
    "spilled half precision": {
        "model__model_type": "{}:Half",
        "resources__store_bytes": "2000",
        "graph__mixing_steps": 2,
    },
    "coarser grids": {"training__learning_rate": 1e9, "graph__mixing_steps": 2},
    "coarser grids of push_sum": {"training__learning_rate": 1e9, "strategy": "push_sum"},
    "clients that diverge": {
        "model__model_type": "{}:Explosive",
        "model__options": {"limit": 2.6},
    },
}


@pytest.fixture
def hubs(tmp_path: Path) -> dict[str, Any]:
    """The keys of a run in which sums are smaller than states."""
    (tmp_path / "hubs.edges").write_text("\n".join(f"{a} {b}" for a, b in HUBS))
    return {
        "name": "custom",
        "graph__file": str(tmp_path / "hubs.edges"),
        "federation__assignment": "round_robin",
    }


def of_code(keys: dict[str, Any], code: str) -> dict[str, Any]:
    return {k: v.format(code) if isinstance(v, str) else v for k, v in keys.items()}


def exchanged(run: Path) -> dict[tuple[int, str], Volume]:
    """By round and site, the bytes of clients' models and sums."""
    found: dict[tuple[int, str], Volume] = {}
    with (run / "traffic.csv").open() as file:
        for row in csv.DictReader(file):
            if row["purpose"] == "exchange":
                key = int(row["round"]), row["site"]
                moved = {row["direction"]: int(row["bytes"])}
                found[key] = found.get(key, Volume()) + Volume(**moved)
    return found


@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize("keys", [pytest.param(each, id=name) for name, each in SUMMED.items()])
def test_sums_of_other_sites_give_the_same_bits(
    keys: dict[str, Any], sites: int, hubs: dict[str, Any], lab: Lab, user_code: str
) -> None:
    keys, log = {**hubs, **of_code(keys, user_code)}, Log()
    alone = run_over(lab, NAMES[:1], log, **keys)
    with over(lab, NAMES[:sites], **keys) as federation:
        exchange = federation.loaded.exchange
        apart = in_time(federation.run)
    assert exchange is not None
    shares = federation.loaded.shares_among(NAMES[:sites])
    assert exchange.crossings(1, shares).sums.any()
    assert apart.digest == alone.digest
    assert digests_over(apart.folder) == digests_over(alone.folder)
    assert timeless(apart.rows) == timeless(alone.rows)
    repeated = log.of("grid_coarsened") or log.of("update_refused")
    assert bool(repeated) == ("training__learning_rate" in keys or "model__options" in keys)


def absent(*clients: int) -> Change:
    """The training of these clients was not finite, as far as their site says."""
    return lambda answer: replace(answer, header={**answer.header, "absent": [*clients]})


@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize("hub", [0, 1])
@pytest.mark.parametrize("strategy", ["dpsgd", "push_sum"])
def test_nothing_crosses_along_the_edges_of_absent_clients(
    strategy: str,
    hub: int,
    sites: int,
    hubs: dict[str, Any],
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At three sites, one has nothing to give to the site of an absent hub."""
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", LyingSite)
    monkeypatch.setattr(LyingSite, "about", "round")
    monkeypatch.setattr(LyingSite, "lies", {"east": absent(hub)})
    alone = run_over(lab, NAMES[:1], strategy=strategy, **hubs)
    monkeypatch.setattr(LyingSite, "lies", {NAMES[hub]: absent(hub)})
    with over(lab, NAMES[:sites], strategy=strategy, **hubs) as federation:
        exchange = federation.loaded.exchange
        apart = in_time(federation.run)
    assert apart.digest == alone.digest
    assert exchange is not None
    shares = federation.loaded.shares_among(NAMES[:sites])
    step = exchange.of_step(1, shares, absent=np.array([hub]))
    assert sum(v.total for v in step.values()) < sum(
        v.total for v in exchange.of_step(1, shares).values()
    )
    assert exchanged(apart.folder) == {
        (number, site): moved
        for number in range(1, ROUNDS + 1)
        for site, moved in step.items()
        if moved.total
    }


@pytest.mark.parametrize("strategy", ["dpsgd", "push_sum"])
def test_sums_take_the_bytes_that_were_planned(
    strategy: str, hubs: dict[str, Any], lab: Lab
) -> None:
    with over(lab, NAMES, strategy=strategy, graph__mixing_steps=2, **hubs) as federation:
        exchange = federation.loaded.exchange
        run = in_time(federation.run)
    assert exchange is not None
    shares = federation.loaded.shares_among(NAMES)
    (step, alone) = (exchange.of_step(1, shares, older=older) for older in ((), NAMES))
    assert exchanged(run.folder) == {
        (number, site): moved + moved
        for number in range(1, ROUNDS + 1)
        for site, moved in step.items()
    }
    assert sum(each.total for each in step.values()) < 0.8 * sum(v.total for v in alone.values())
    plan = json.loads((run.folder / "plan.json").read_text())
    parameters = federation.loaded.inputs.parameters
    for site in plan["sites"]:
        moved = step[site["name"]]
        assert site["bytes_in"] == 4 * parameters + 2 * moved.to_site
        assert site["bytes_out"] == 8 * parameters + 2 * moved.from_site


def test_a_site_that_knows_no_sums_gets_states_and_gives_states(
    hubs: dict[str, Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version answers."""

    def earlier(answer: Payload) -> Payload:
        return replace(answer, header={"absent": answer.header["absent"]})

    alone = run_over(lab, NAMES[:1], **hubs)
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", LyingSite)
    monkeypatch.setattr(LyingSite, "about", "round")
    monkeypatch.setattr(LyingSite, "lies", {"north": earlier})
    with over(lab, NAMES, traffic__run_bytes="1GB", **hubs) as federation:
        exchange = federation.loaded.exchange
        run = in_time(federation.run)
    assert exchange is not None
    assert run.digest == alone.digest
    step = exchange.of_step(1, federation.loaded.shares_among(NAMES), older=["north"])
    assert exchanged(run.folder) == {
        (number, site): moved for number in range(1, ROUNDS + 1) for site, moved in step.items()
    }


def test_orders_of_a_later_format_are_refused(
    hubs: dict[str, Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases, site = "fedpilot.federated.federation.coordinator.phases", "fedpilot.federated.site"
    monkeypatch.setattr(f"{phases}.graph_rounds.EXCHANGE_FORMAT", 3)
    monkeypatch.setattr(f"{site}.rounds.graph_round.EXCHANGE_FORMAT", 3)
    with pytest.raises(VersionsDiffer, match="exchange models in format 3"):
        run_over(lab, NAMES, **hubs)


@pytest.mark.parametrize("form", [0, True, "2", None])
def test_a_format_of_the_exchange_that_cannot_be_is_refused(
    form: object, hubs: dict[str, Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", LyingSite)
    monkeypatch.setattr(LyingSite, "about", "round")
    lie = partial(_with_header, "exchange", form)
    monkeypatch.setattr(LyingSite, "lies", {"west": lie})
    with pytest.raises(SiteRefused, match=r"west.*`exchange`"):
        run_over(lab, NAMES, **hubs)


def _with_header(name: str, value: object, answer: Payload) -> Payload:
    return replace(answer, header={**answer.header, name: value})


def summed(change: Callable[[Array], Array], name: str) -> Change:
    """Another partial sum; states stay."""
    return lambda answer: replace(
        answer,
        tensors={
            key: change(array) if key.startswith(f"partial/{name}") else array
            for key, array in answer.tensors.items()
        },
    )


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        pytest.param(
            summed(lambda a: np.full_like(a, 1 << 61), "sum/"), "largest move allow", id="huge"
        ),
        pytest.param(summed(lambda a: a * np.nan, "largest"), "is no size", id="no size"),
        pytest.param(summed(lambda a: a * 0.0, "largest"), "largest move allow 0", id="too small"),
        pytest.param(summed(lambda a: a[:0], "largest"), "wanted float64", id="too few"),
        pytest.param(summed(lambda a: a.astype(np.float64), "sum/"), "wanted int64", id="floats"),
        pytest.param(summed(lambda a: -a, "weight"), "weight of one of its sums", id="negative"),
        pytest.param(summed(lambda a: a * 9, "weight"), "of its clients make", id="heavy"),
        pytest.param(
            lambda answer: replace(
                answer,
                tensors={k: v for k, v in answer.tensors.items() if not k.startswith("partial/")},
            ),
            "none of client",
            id="none",
        ),
    ],
)
def test_a_site_whose_sums_cannot_be_is_named(
    lie: Change, said: str, hubs: dict[str, Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", LyingSite)
    monkeypatch.setattr(LyingSite, "about", "give_states")
    monkeypatch.setattr(LyingSite, "lies", {"west": lie})
    with pytest.raises(SiteRefused, match=f"west.*{said}"):
        run_over(lab, NAMES, strategy="push_sum", **hubs)


# -- trouble -------------------------------------------------------------------------------------


@pytest.mark.parametrize("amid", [False, True], ids=["before its work", "amid its work"])
@pytest.mark.parametrize("order", range(6, 14))
def test_a_site_that_is_lost_with_any_order_of_a_round_is_waited_for(
    order: int, amid: bool, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = run_over(lab, NAMES[:1])
    monkeypatch.setattr("fedpilot.federated.federation.sites.sources.InProcessSite", ShakySite)
    monkeypatch.setattr(ShakySite, "moments", {"north": {order}})
    monkeypatch.setattr(ShakySite, "amid", amid)
    log = Log()
    with over(lab, NAMES, log) as federation:
        federation._events.observers.append(returning(federation, "north"))
        result = in_time(federation.run)
    assert [event["site"] for event in log.of("site_lost")] == ["north"]
    assert result.digest == alone.digest
    assert digests_over(result.folder) == digests_over(alone.folder)


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


@pytest.mark.parametrize("keys", [pytest.param(each, id=name) for name, each in LIMITED.items()])
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
