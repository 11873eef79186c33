"""What a run wants of a site is read off what will be worked on, and runs nothing of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import site_data
from fedpilot.federated import Federation
from fedpilot.federated.config import parse_config
from fedpilot.federated.errors import CodeRefused
from fedpilot.federated.site.workload import FederatedWorkload
from fedpilot.federated.sources import source
from fedpilot.federated.user_code import attached, code_here
from fedpilot.mediator import Payload, SiteContext
from fedpilot.mediator.core.policy import Wants

EXPLODES = "raise SystemExit('this must not be run')\n"
PLACE = {"dataset": "scans", "population": 100, "first": 10, "clients": 30, "pattern": "{index}",
         "ids_digest": ""}  # fmt: skip


def spec(config: dict[str, Any], **header: Any) -> Payload:
    values = parse_config(config).model_dump(mode="json")
    return Payload(kind="federation", header={"config": values, "paths": [], **header})


def asked(config: dict[str, Any], data: dict[str, Any] | None = None, **header: Any) -> Wants:
    context = SiteContext(name="paris", data=data or {})
    return FederatedWorkload().wants(spec(config, **header), context)


def simulation(**keys: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "federation": {"number_of_clients": 50, "clients_per_round": 20},
        "model": {"model_type": "mlp"},
        "data": {"dataset_type": "digits"},
    }
    for key, value in keys.items():
        section, _, name = key.partition("__")
        made.setdefault(section, {})[name] = value
    return made


def of_sites(**keys: Any) -> dict[str, Any]:
    return site_data.config(["paris.yaml"], Path("runs"), **keys)


def test_a_simulation_wants_no_data() -> None:
    user = {"name": "mary", "role": "operator"}
    config = simulation(resources__workers=3, resources__cpus_per_worker=2.0)
    assert asked(config, user=user) == Wants(
        user="mary", role="operator", datasets=(), model="mlp", code_digest="", vnodes=3,
        resources={"CPU": 2.0}, cohort=20,
    )  # fmt: skip


@pytest.mark.parametrize("user", [None, "mary", {}, {"role": "admin"}])
def test_who_is_not_named_is_nobody(user: Any) -> None:
    assert asked(simulation(), user=user).user == ""


@pytest.mark.parametrize(
    ("keys", "cohort"),
    [
        pytest.param({}, 4, id="a number"),
        pytest.param({"federation__clients_per_round": 50}, 30, id="more than it has"),
        pytest.param({"federation__clients_per_round": None}, 30, id="everybody"),
        pytest.param({"federation__clients_per_round": None,
                      "federation__client_sampling_rate": 0.1}, 10, id="a share"),
        pytest.param({"participation__over_sampling": 0.5}, 6, id="some more to be quick"),
        pytest.param({"federation__aggregation_strategy": "median"}, 1, id="told one by one"),
    ],
)  # fmt: skip
def test_the_cohort_is_the_most_that_a_round_can_have_here(keys: Any, cohort: int) -> None:
    found = asked(of_sites(**keys), place=PLACE)
    assert (found.datasets, found.cohort) == (("scans",), cohort)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        pytest.param("site/data/scans/all.npz", ("scans",), id="a file of it"),
        pytest.param("site/data", ("scans",), id="a folder above"),
        pytest.param("site/data/../data/scans", ("scans",), id="by a detour"),
        pytest.param("link/scans", ("scans",), id="by a link"),
        pytest.param("site/database", (), id="another"),
    ],
)
def test_a_loader_that_is_led_to_declared_data_wants_it(
    named: str, found: tuple[str, ...], tmp_path: Path
) -> None:
    """Else a simulation could read what no rule lets it have."""
    (tmp_path / "site" / "data" / "scans").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "site" / "data")
    declared = {"scans": {"path": str(tmp_path / "site" / "data" / "scans")}}
    options = {"more": [{"path": str(tmp_path / named)}]}
    config = simulation(data__dataset_type="my.loaders:load", data__options=options)
    assert asked(config, declared).datasets == found


def test_the_digest_of_code_is_found_without_running_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clinic").mkdir()
    (tmp_path / "clinic" / "__init__.py").write_text(EXPLODES)
    (tmp_path / "clinic" / "nets.py").write_text(EXPLODES)
    config = simulation(model__model_type="clinic.nets:Net")
    found = asked(config, paths=[str(tmp_path)]).brought_code
    assert not {"clinic", "clinic.nets"} & set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found == code_here(parse_config(config)).digest
    (tmp_path / "clinic" / "nets.py").write_text(f"{EXPLODES}#")
    assert asked(config, paths=[str(tmp_path)]).brought_code != found


def test_code_that_came_along_is_judged_by_the_archive(tmp_path: Path) -> None:
    (tmp_path / "clinic.py").write_text(EXPLODES)
    config = simulation(model__model_type="clinic:Net")
    code = code_here(parse_config(config), [str(tmp_path)])
    came = attached(spec(config), code)
    site = SiteContext(name="paris")
    found = FederatedWorkload().wants(came, site)
    assert (found.code_digest, found.brought_code) == ("", code.digest)
    assert asked(config, paths=[str(tmp_path)]) == found, "in a folder that the run names"
    assert asked(config).brought_code == ""
    assert "clinic" not in sys.modules
    said = replace(came, header={**came.header, "code": "0" * 64})
    with pytest.raises(CodeRefused):
        FederatedWorkload().wants(said, site)


def test_an_archive_that_nothing_names_is_judged_too(tmp_path: Path) -> None:
    """Installed modules could import what it brings."""
    (tmp_path / "clinic.py").write_text("")
    code = code_here(parse_config(simulation(model__model_type="clinic:N")), [str(tmp_path)])
    found = FederatedWorkload().wants(attached(spec(simulation()), code), SiteContext(name="x"))
    assert (found.code_digest, found.brought_code) == ("", code.archive_digest)


def test_what_is_installed_beside_it_is_judged_by_itself(tmp_path: Path) -> None:
    (tmp_path / "clinic.py").write_text("")
    both = simulation(model__model_type="clinic:N", data__dataset_type="json:loads")
    code = code_here(parse_config(both), [*sys.path, str(tmp_path)])
    found = FederatedWorkload().wants(attached(spec(both), code), SiteContext(name="x"))
    assert (found.code_digest, found.brought_code) == code.digests[::-1]
    installed = simulation(data__dataset_type="json:loads")
    assert asked(installed).code_digest == found.code_digest


def test_code_that_is_not_there_is_no_known_code() -> None:
    config = simulation(model__model_type="nowhere.nets:Net")
    assert len(asked(config).code_digest) == 64


def test_source_is_what_python_would_show(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_bytes("# -*- coding: latin-1 -*-\r\nname = 'é'".encode("latin-1"))
    assert source("odd", [str(tmp_path)]) == "# -*- coding: latin-1 -*-\nname = 'é'\n"
    (tmp_path / "bad.py").write_bytes(b"\xff\xfe\x00")
    assert source("bad", [str(tmp_path)]) == ""


def test_the_digest_is_that_of_a_run_here(user_code: str) -> None:
    config = simulation(model__model_type=f"{user_code}:Mixing", data__dataset_type="digits")
    with Federation(config) as federation:
        assert asked(config).code_digest == federation.code_digest


@pytest.mark.parametrize(
    ("answer", "clients"),
    [
        pytest.param(Payload(kind="partial", header={"partial": {"clients": 7}}), 7, id="a sum"),
        pytest.param(Payload(kind="partial", header={"partial": {"clients": 7, "updates": {}}}), 1,
                     id="updates one by one"),
        pytest.param(Payload(kind="partial", header={"partial": {"clients": 0, "updates": {}}}), 0,
                     id="no update"),
        pytest.param(Payload(kind="tally", header={"clients": 5, "on": "clients"}), 5,
                     id="judged on clients"),
        pytest.param(Payload(kind="tally", header={"clients": 1, "on": "test"}), 0,
                     id="judged on a test set"),
        pytest.param(Payload(kind="tally", header={"tally": [3, 2, 1, 0]}), 1, id="on one client"),
        pytest.param(Payload(kind="trained"), 1, id="one client"),
        pytest.param(Payload(kind="chosen"), 0, id="an execution"),
        pytest.param(Payload(kind="node"), 0, id="a state"),
    ],
)  # fmt: skip
def test_an_answer_covers_the_clients_that_it_tells_of(answer: Payload, clients: int) -> None:
    assert FederatedWorkload().covered(answer) == clients
