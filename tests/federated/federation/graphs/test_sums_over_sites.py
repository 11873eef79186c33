"""Sites of a graph that exchange partial sums where these are smaller than models."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federations import CLIENTS, ROUNDS, Lab, Log, in_time, timeless
from fedpilot.federated.core.rounds.participation import SiteRefused
from fedpilot.federated.core.state import Array
from fedpilot.federated.errors import VersionsDiffer
from fedpilot.mediator import Payload
from fedpilot.mediator.core.traffic import Volume
from graph_runs import NAMES, digests_over, over, run_over
from lying_sites import Change, LyingSite

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

LATER = {"several steps", "gossip", "spilled", "counters", "coarser grids"}
"""Of which the others have each part."""


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


@pytest.mark.parametrize("sites", [pytest.param(2, marks=pytest.mark.soak), 3])
@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(each, id=name, marks=pytest.mark.soak if name in LATER else ())
        for name, each in SUMMED.items()
    ],
)
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


@pytest.mark.parametrize(
    ("strategy", "hub", "sites"),
    [
        *(("dpsgd", 1, 3), ("push_sum", 0, 2)),
        *(
            pytest.param(strategy, hub, sites, marks=pytest.mark.soak)
            for strategy, hub, sites in itertools.product(("dpsgd", "push_sum"), (0, 1), (2, 3))
            if (strategy, hub, sites) not in (("dpsgd", 1, 3), ("push_sum", 0, 2))
        ),
    ],
)
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


@pytest.mark.parametrize("strategy", [pytest.param("dpsgd", marks=pytest.mark.soak), "push_sum"])
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
