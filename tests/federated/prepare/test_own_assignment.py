"""An assignment strategy of the user's own: loaded as other code is, and its division checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from federations import Lab, in_time
from fedpilot.federated.config.schema import RunConfig
from fedpilot.federated.config.telling import told, understood
from fedpilot.federated.errors import ConfigError
from fedpilot.federated.prepare.user_code.user_sources import own_code
from fedpilot.mediator import members
from graph_runs import NAMES, digests_over, over, run_over

CODE = """
from fedpilot.mediator import Division, members, share_of

SEEN = []

def by_parity(problem):
    SEEN.append(problem)
    clients = members(problem.clients)
    names = sorted(site.name for site in problem.sites)
    shares = {name: share_of(clients[clients % 2 == at]) for at, name in enumerate(names[:2])}
    return Division(shares=shares, reason="even and odd")

def of(**shares):
    return lambda problem: Division(shares=shares)

twice = of(east=(range(6),), north=(range(5, 12),))
strangers = of(lyon=(range(12),))
few = of(east=(range(5),), north=(range(6, 11),))
too_many = of(east=(range(13),))
backwards = of(east=(range(11, -1, -1),))
lists = of(east=[0, 1, 2])
numbers = of(east=3)
no_mapping = lambda problem: Division(shares=[1])
nothing = lambda problem: None

def raises(problem):
    raise ValueError("no idea")

def takes_none():
    pass
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"strategies_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_an_own_strategy_decides_where_clients_are_and_no_bits(lab: Lab, code: str) -> None:
    keys = {"federation__number_of_clients": 12}
    alone = run_over(lab, NAMES[:1], **keys)
    with over(lab, NAMES, **keys, federation__assignment=f"{code}:by_parity") as federation:
        run = in_time(federation.run)
        assert federation.gang.mediator is not None
        assignment = federation.gang.mediator.membership.assignment
        shares = assignment.shares
        assert "even and odd" in assignment.explain(3)
    assert {site: members(shares[site]).tolist() for site in NAMES} == {
        "east": list(range(0, 12, 2)),
        "north": list(range(1, 12, 2)),
        "west": [],
    }
    assert run.digest == alone.digest
    assert digests_over(run.folder) == digests_over(alone.folder)
    problem = sys.modules[code].SEEN[0]
    assert [site.name for site in problem.sites] == list(NAMES)
    assert problem.exchange is not None
    assert len(problem.exchange.ends) == 12


REFUSED: dict[str, str] = {
    "twice": "gives client 5 to two sites",
    "strangers": "gives clients to site 'lyon', and there are east, north, west",
    "few": r"gives no site client 5 and 1 more",
    "too_many": "client 12, which it gives to a site, cannot move",
    "backwards": "not ranges of clients",
    "lists": "not ranges of clients",
    "numbers": "not ranges of clients",
    "no_mapping": "its shares are list",
    "nothing": "answers with NoneType",
    "raises": "no idea",
    "takes_none": "positional argument",
    "missing": "missing",
}


@pytest.mark.parametrize(("function", "said"), REFUSED.items())
def test_what_is_no_division_is_refused_before_any_worker_starts(
    function: str, said: str, lab: Lab, code: str
) -> None:
    keys: dict[str, Any] = {"federation__number_of_clients": 12}
    keys["federation__assignment"] = f"{code}:{function}"
    with (
        pytest.raises(ConfigError, match=rf"federation\.assignment(.|\n)*{said}"),
        over(lab, NAMES, **keys) as federation,
    ):
        in_time(federation.run)
    assert not list(lab.runs.glob("*/metrics.jsonl"))


def test_sites_neither_get_the_code_nor_hear_of_it(lab: Lab, code: str) -> None:
    config = RunConfig.model_validate(lab.config(federation__assignment=f"{code}:by_parity"))
    assert own_code(config) == (code,)
    assert own_code(understood(told(config))) == ()
