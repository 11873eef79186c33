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
from fedpilot.federated.prepare.user_code.user_code import attached, code_here
from fedpilot.federated.prepare.user_code.user_sources import source
from fedpilot.federated.site.workload import FederatedWorkload
from fedpilot.mediator import Payload, SiteContext
from fedpilot.mediator.core.rules.policy import Policy
from fedpilot.mediator.core.rules.policy_decision import judge
from fedpilot.mediator.core.rules.wants import Simulated, Wants
from fedpilot.mediator.errors import PolicyRefused

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


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        pytest.param({"path": "{there}/a.npz"}, ["{there}/a.npz"], id="a path that is there"),
        pytest.param({"path": "b.npz"}, ["{here}/b.npz"], id="one that is not, from the folder"),
        pytest.param({"path": "/"}, ["/"], id="everything"),
        pytest.param({"path": "{there}/link"}, ["{there}/a.npz"], id="where a link leads"),
        pytest.param(
            {"path": "{there}", "prefix": "../up/"},
            ["{here}/../up", "{there}"],
            id="another option",
        ),
        pytest.param({"path": "{there}", "labels": "fine"}, ["{there}"], id="no path"),
    ],
)
def test_the_files_that_a_simulation_would_read_are_told(
    tmp_path: Path, options: dict[str, str], reads: list[str]
) -> None:
    (tmp_path / "a.npz").touch()
    (tmp_path / "link").symlink_to("a.npz")
    places = {"there": tmp_path.resolve(), "here": Path.cwd()}
    given = {name: text.format(**places) for name, text in options.items()}
    wanted = asked(simulation(data__dataset_type="npz", data__options=given)).simulated
    assert wanted is not None
    assert wanted.loader == "npz"
    assert list(wanted.reads) == sorted(
        str(Path(each.format(**places)).resolve()) for each in reads
    )


def test_a_simulation_wants_no_data() -> None:
    user = {"name": "mary", "role": "operator"}
    config = simulation(resources__workers=3, resources__cpus_per_worker=2.0)
    assert asked(config, user=user) == Wants(
        user="mary", role="operator", datasets=(), simulated=Simulated(loader="digits"),
        model="mlp", code_digest="", installed_code=(), gang=((3, {"CPU": 2.0}),),
        cohort=20,
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
        pytest.param({"outputs__client_digests": True}, 1, id="told by their digests"),
    ],
)  # fmt: skip
def test_the_cohort_is_the_most_that_a_round_can_have_here(keys: Any, cohort: int) -> None:
    found = asked(of_sites(**keys), place=PLACE)
    assert (found.datasets, found.cohort) == (("scans",), cohort)


def declared(**told: Any) -> dict[str, Any]:
    """A site's data, as its `site.yaml` has it."""
    section = {"dataset_type": "npz", "options": {}, "path": None, "clients": {"arise": "column"}}
    return {"scans": {**section, **told}}


def refusal(data: dict[str, Any], loader: str = "my.loaders:load", **options: Any) -> str:
    """Why a simulation with these options of its loader is refused; empty if it is not."""
    config = simulation(data__dataset_type=loader, data__options=options)
    try:
        wanted = asked(config, data)
    except PolicyRefused as error:
        refused = error
    else:
        assert wanted.datasets == ()
        return ""
    assert (refused.site, refused.rule) == ("paris", "datasets")
    assert refused.allowed == "`data.from: sites` with `data.dataset: scans`"
    return refused.found


@pytest.mark.parametrize(
    ("named", "reaches"),
    [
        pytest.param("site/data/scans/all.npz", True, id="a file of it"),
        pytest.param("site/data", True, id="a folder above"),
        pytest.param("site/data/../data/scans", True, id="by a detour"),
        pytest.param("link/scans", True, id="by a link"),
        pytest.param("site/database", False, id="another"),
    ],
)
@pytest.mark.parametrize("how", ["path", "options", "list of ids"])
def test_a_simulation_that_is_led_to_declared_data_is_refused(
    how: str, named: str, reaches: bool, tmp_path: Path
) -> None:
    """Else what the site's admin does not disclose would leave as a simulation's own."""
    (tmp_path / "site" / "data" / "scans").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "site" / "data")
    lies = str(tmp_path / "site" / "data" / "scans")
    match how:
        case "path":
            data = declared(path=lies)
        case "options":
            data = declared(options={"deep": [{"folder": lies, "mode": "r"}]})
        case _:
            ids = {"arise": "id_list", "file": lies}
            data = declared(path=str(tmp_path / "other"), clients=ids)
    text = str(tmp_path / named)
    found = f"a simulation whose `data.options` name `{text}`, which leads to data set scans"
    assert refusal(data, more=[{"path": text}]) == (found if reaches else "")
    assert refusal(data, more={text: 1}) == (found if reaches else "")
    assert refusal(data, loader="npz", path=text) == (found if reaches else "")


@pytest.mark.parametrize(
    ("loader", "reaches"),
    [
        pytest.param("hospital.data:load", True, id="by its own loader"),
        pytest.param("hospital.data:everything", True, id="by a function beside it"),
        pytest.param("hospital.toys:load", False, id="of another module"),
        pytest.param("digits", False, id="a built-in"),
    ],
)
def test_a_simulation_by_the_loader_of_declared_data_is_refused(loader: str, reaches: bool) -> None:
    """It may know by itself where the data lies."""
    found = f"a simulation whose loader `{loader}` is of the module that loads data set scans"
    told = refusal(declared(dataset_type="hospital.data:load"), loader=loader)
    assert told == (found if reaches else "")


def test_options_that_name_nothing_lead_nowhere() -> None:
    data = declared(dataset_type="digits", options={"mode": "r", "root": "/"})
    assert refusal(data, loader="digits", mode="r", path="/elsewhere") == ""


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


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        pytest.param(
            {"data__dataset_type": "subprocess:check_output",
             "data__options": {"args": ["touch", "/tmp/x"]}},
            ("subprocess:check_output",), id="a command for a loader",
        ),
        pytest.param({"training__client_update": "a:b"}, ("a:b",), id="a way of training"),
        pytest.param({"training__loss_function": "a:b"}, ("a:b",), id="a loss"),
        pytest.param({"training__loss_function": "torch.nn.functional:mse_loss"}, (),
                     id="a loss of PyTorch's, which is given two tensors"),
        pytest.param({"training__loss_function": "torch.nn.functional:torch.hub.load"},
                     ("torch.nn.functional:torch.hub.load",), id="a way out of it"),
        pytest.param({"training__loss_function": "torch.nn.functional:_canonical_mask"},
                     ("torch.nn.functional:_canonical_mask",), id="what is not public"),
        pytest.param({"data__dataset_type": "torch.nn.functional:mse_loss"},
                     ("torch.nn.functional:mse_loss",), id="where it takes options"),
    ],
)  # fmt: skip
def test_what_is_named_of_installed_code_is_told(keys: Any, names: tuple[str, ...]) -> None:
    """And without a rule that names it, a site refuses it."""
    found = asked(simulation(**keys))
    assert found.installed_code == names
    refused = judge(Policy(), found)
    assert (refused is None) is not names
    assert refused is None or (refused.rule, names[0] in refused.found) == ("code_digests", True)


def test_what_came_along_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "clinic.py").write_text("")
    both = simulation(model__model_type="clinic:N", data__dataset_type="wards:load")
    code = code_here(parse_config(both), [*sys.path, str(tmp_path)])
    found = FederatedWorkload().wants(attached(spec(both), code), SiteContext(name="x"))
    assert found.installed_code == ("wards:load",)
    assert asked(both).installed_code == ("clinic:N", "wards:load")


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


MEASURED, NOTHING = [30, 0, 12, 0], [0, 0, 0, 0]


def a_sum(clients: int, tally: list[int] = MEASURED, **told: Any) -> Payload:
    """A round's answer; `updates` belongs to the partial, what else is told stands beside it."""
    kept = {name: told.pop(name) for name in ("updates",) if name in told}
    partial = {"clients": clients, "tally": tally, "refused": [], **kept}
    return Payload(kind="partial", header={"partial": partial, **told})


@pytest.mark.parametrize(
    ("answer", "clients"),
    [
        pytest.param(a_sum(7), 7, id="a sum"),
        pytest.param(a_sum(7, updates={}), 1, id="updates one by one"),
        pytest.param(a_sum(0, NOTHING, updates={}), 0, id="no update"),
        pytest.param(a_sum(7, digests={"anna": {"w": "0"}}), 1, id="a sum, and each by its digest"),
        pytest.param(a_sum(7, digests={}), 7, id="no digests"),
        pytest.param(a_sum(7, fewest=2), 2, id="as many as the step with the fewest"),
        pytest.param(a_sum(0, fewest=1), 1, id="nobody in the last step, and one before it"),
        pytest.param(a_sum(0), 1, id="measured on somebody, if on nobody who was added"),
        pytest.param(a_sum(0, NOTHING), 0, id="nobody"),
        pytest.param(Payload(kind="tally", header={"tally": MEASURED, "clients": 5, "on": "all"}),
                     5, id="judged on clients"),
        pytest.param(Payload(kind="tally", header={"tally": MEASURED, "clients": 0, "on": "all"}),
                     1, id="judged on somebody at least"),
        pytest.param(Payload(kind="tally", header={"tally": NOTHING, "clients": 0, "on": "all"}),
                     0, id="judged on nobody"),
        pytest.param(Payload(kind="tally", header={"tally": MEASURED, "clients": 1, "on": "test"}),
                     0, id="judged on a test set"),
        pytest.param(Payload(kind="tally", header={"tally": [3, 2, 1, 0]}), 1, id="on one client"),
        pytest.param(Payload(kind="trained"), 1, id="one client"),
        pytest.param(Payload(kind="nodes_evaluated"), 1, id="clients one by one"),
        pytest.param(Payload(kind="chosen"), 0, id="an execution"),
        pytest.param(Payload(kind="node"), 0, id="a state"),
    ],
)  # fmt: skip
def test_an_answer_covers_the_clients_that_it_tells_of(answer: Payload, clients: int) -> None:
    assert FederatedWorkload().covered(answer) == clients
