"""What `sites` in a config means before anything is started, and on a cluster that stands in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedpilot.cli import main
from fedpilot.common.host.machine import usable_cpus
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Federation
from fedpilot.federated.config import parse_config
from fedpilot.federated.errors import NotFeasible
from fedpilot.federated.federation.sites.local_sites import LocalSites, gpus_of
from fedpilot.federated.federation.sites.planned_sites import share
from fedpilot.federated.prepare.gang_request import first_processes, gang_request

CONFIG: dict[str, Any] = {
    "federation": {"number_of_clients": 12, "clients_per_round": 6, "rounds": 2},
    "model": {"model_type": "mlp"},
    "data": {"dataset_type": "digits"},
    "resources": {"workers": 1},
}


def test_on_a_cluster_that_stands_in_sites_are_parts_of_this_process(tmp_path: Path) -> None:
    digests = []
    for count in (1, 3):
        config = {**CONFIG, "sites": {"count": count}, "outputs": {"folder": str(tmp_path)}}
        events = []
        cluster = FakeCluster([fake_machine("a", CPU=4)])
        with Federation(config, cluster=cluster, observers=[events.append]) as federation:
            digests.append(federation.run(run_id=f"of-{count}").digest)
        (reserved,) = [each.fields for each in events if each.name == "gang_reserved"]
        assert list(reserved["vnodes"]) == list(parse_config(config).sites.names)
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    ("visible", "number", "each", "devices"),
    [
        pytest.param("", 0, 2, "0,1", id="the first of those that are there"),
        pytest.param("", 1, 2, "2,3", id="the next ones"),
        pytest.param("4,6,7", 1, 1, "6", id="of those that we may use"),
        pytest.param("GPU-a, GPU-b", 1, 1, "GPU-b", id="by their names"),
        pytest.param("4", 1, 1, "", id="none is left"),
    ],
)
def test_every_site_sees_gpus_of_its_own(
    visible: str, number: int, each: int, devices: str
) -> None:
    assert gpus_of(number, each, visible) == devices


@pytest.mark.parametrize(
    ("sites", "ray", "cpus", "gpus"),
    [
        pytest.param(3, {}, 2, 1, id="an equal part"),
        pytest.param(9, {}, 1, 0, id="one processor at least"),
        pytest.param(3, {"num_cpus": 4, "num_gpus": 0}, 4, 0, id="what the config says"),
    ],
)
def test_every_site_has_its_share_of_the_machine(
    sites: int, ray: dict[str, int], cpus: int, gpus: int
) -> None:
    config = parse_config({**CONFIG, "sites": {"count": sites}, "resources": {"ray": ray}})
    assert share(config, fake_machine("here", CPU=8, GPU=4)) == (cpus, gpus)


LARGE = {"name": "large", "workers": 2, "cpus_per_worker": 3, "clients": {"share": 0.5}}
SMALL = {"name": "small", "workers": {"min": 1, "max": 5}}


@pytest.mark.parametrize(
    ("resources", "processes"),
    [
        pytest.param({}, 8, id="as many as fit"),
        pytest.param({"cpus_per_worker": 3}, 2, id="of their size"),
        pytest.param({"cpus_per_worker": 0.25}, 16, id="as many as a gang has at most"),
        pytest.param({"cpus_per_worker": 1e-6}, 16, id="however small they are"),
        pytest.param({"workers": 1}, 1, id="as many as the config says"),
        pytest.param({"groups": [LARGE, SMALL]}, 4, id="of all vnode classes"),
        pytest.param({"groups": [SMALL, LARGE]}, 6, id="as many as fit beside the first ones"),
    ],
)
def test_a_ray_starts_with_the_workers_of_its_gang(
    resources: dict[str, Any], processes: int
) -> None:
    request = gang_request(parse_config({**CONFIG, "resources": resources}))
    assert first_processes(request, fake_machine("here", CPU=8)) == processes


def test_a_gang_that_no_site_could_hold_is_refused_before_any_start() -> None:
    config = {**CONFIG, "sites": {"count": 2}, "resources": {"workers": 3, "ray": {"num_cpus": 2}}}
    with pytest.raises(NotFeasible, match=r"--set resources\.workers=2$"):
        LocalSites(parse_config(config))


def test_a_gang_is_held_against_the_processors_that_its_sites_are_given() -> None:
    given = usable_cpus() + 1
    resources = {"workers": given + 1, "ray": {"num_cpus": given}}
    with pytest.raises(NotFeasible, match=rf"\b{given} CPU"):
        LocalSites(parse_config({**CONFIG, "sites": {"count": 2}, "resources": resources}))


def test_check_says_how_many_sites_there_are(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(json.dumps({**CONFIG, "sites": {"count": 2}}))
    told = CliRunner().invoke(main, ["check", str(path)]).output
    assert "# 2 sites on this machine: site_1, site_2" in told
    facts = json.loads(CliRunner().invoke(main, ["check", str(path), "--json"]).output)
    assert facts["sites"] == ["site_1", "site_2"]
