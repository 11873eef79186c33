"""What a run will be, before anything starts: its plan on the screen, as JSON and as a picture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import invoke
from fedpilot.fabric.testing.fake_cluster import FakeCluster, fake_machine
from fedpilot.federated import Event, Federation
from unions import told
from user_service import Served, a_site, serving

pytestmark = pytest.mark.usefixtures("own_folder", "_own_path")

RING = """
federation: {number_of_clients: 12, rounds: 3, topology: ring, aggregation_strategy: dpsgd}
model: {model_type: mlp}
data: {dataset_type: digits}
resources: {workers: 1, ray: {num_cpus: 2, num_gpus: 0}}
outputs: {curves: false}
"""
CLUSTER = """
spec:
  headGroupSpec: {rayStartParams: {num-cpus: "1"}}
  workerGroupSpecs:
  - {groupName: small, replicas: 1, maxReplicas: 2, rayStartParams: {num-cpus: "1"}}
"""
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("ring.yaml").write_text(RING)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("mediator")) as made:
        yield made


def planned(*arguments: str) -> dict[str, Any]:
    result = invoke("plan", "ring.yaml", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_ray_that_is_declared_to_exist_is_not_asked() -> None:
    ours = "{provider: existing, address: 'head.example:6379'}"
    Path("lab.yaml").write_text(f"spec: {{fedpilot: {ours}}}")
    text = invoke("plan", "ring.yaml", "--set", "resources.ray={cluster: lab.yaml}").stdout
    assert "the Ray that `resources.ray.cluster` names is not asked" in " ".join(text.split())


def test_a_declared_ray_cluster_counts_as_large_as_it_may_be() -> None:
    Path("cluster.yaml").write_text(CLUSTER)
    own = ("--set", "resources.ray={cluster: cluster.yaml}")
    found = planned(*own, "--set", "resources.workers=3")
    assert [each["vnodes"] for each in found["sites"]] == [3]
    refused = invoke("plan", "ring.yaml", *own, "--set", "resources.workers=4")
    assert refused.exit_code == 3
    assert "--set resources.workers=3" in refused.stderr
    Path("cluster.yaml").write_text(CLUSTER.replace("num-cpus", "num-cpu"))
    refused = invoke("plan", "ring.yaml", *own)
    assert refused.exit_code == 2
    assert "num-cpus" in refused.stderr


def test_a_plan_says_who_is_where_and_what_crosses() -> None:
    found = planned("--set", "sites=3")
    assert [(s["name"], s["clients"], s["vnodes"]) for s in found["sites"]] == [
        (f"site_{number}", 4, 1) for number in (1, 2, 3)
    ]
    assert (found["graph"]["edges"], found["graph"]["cut"]["models"]) == (12, 6)
    assert found["graph"]["round_robin"]["models"] == 24
    assert found["round"]["bound"]["resource"] == "computation"
    text = invoke("plan", "ring.yaml", "--set", "sites=3").stdout
    assert "3 edges cross, 6 models" in text
    assert "round robin" in text
    assert "estimated by cost table 1" in text


def test_two_plans_of_one_input_are_the_same_bytes() -> None:
    added = ["--add-site", "a:workers=2,up=1MB/s", "--add-site", "b:workers=1"]
    first = invoke("plan", "ring.yaml", "--json", *added).stdout_bytes
    assert first == invoke("plan", "ring.yaml", "--json", *added[2:], *added[:2]).stdout_bytes


def test_a_site_that_is_added_takes_part_with_its_links() -> None:
    found = planned("--add-site", "lyon:workers=9,up=1KB/s,down=1GB/s", "--remove-site", "local")
    (lyon,) = found["sites"]
    assert (lyon["clients"], lyon["vnodes"], lyon["from"]) == (12, 1, "--add-site")
    assert lyon["transfer_seconds"] == pytest.approx(lyon["bytes_out"] / 1000, rel=0.01)
    assert found["round"]["bound"]["resource"] == "link up"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(["--add-site", "lyon:speed=3"], "unknown `speed=3`", id="what is no key"),
        pytest.param(["--remove-site", "x"], "there is no site 'x'", id="what is no site"),
        pytest.param(["--set", "graph.degree=x"], "graph.degree", id="what is no config"),
        pytest.param(["--like", "nothing"], "no run 'nothing'", id="what is no run"),
    ],
)
def test_bad_input_is_refused(options: list[str], said: str) -> None:
    result = invoke("plan", "ring.yaml", *options)
    assert result.exit_code == 2
    assert said in result.stderr


def test_what_does_not_fit_is_answered_with_what_does_before_data_are_loaded() -> None:
    asked = ["--set", "sites=3", "--set", "resources.workers=4", "--set", "data.dataset_type=npz"]
    result = invoke("plan", "ring.yaml", *asked)
    assert result.exit_code == 3
    assert "3 sites of 4 workers" in result.stderr
    assert "--set resources.workers=2" in result.stderr
    document = invoke("plan", "ring.yaml", "--json", *asked)
    assert document.exit_code == 3
    found = json.loads(document.stdout)
    assert not found["feasible"]
    assert found["alternative"]["settings"] == {"resources.workers": 2}
    (option,) = found["alternative"]["set"]
    assert len(planned("--set", "sites=3", "--set", option)["sites"]) == 3


def test_run_refuses_what_does_not_fit_with_the_same_alternative() -> None:
    result = invoke("run", "ring.yaml", "--set", "resources.workers=4")
    assert result.exit_code == 3
    assert "--set resources.workers=2" in result.stderr
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_run_writes_its_plan_and_the_next_plan_takes_what_it_measured() -> None:
    cluster = FakeCluster([fake_machine("a", CPU=4)])
    alone = ["evaluation.nodes=none"]  # counts of clients' own models are in no plan
    with Federation(
        "ring.yaml", overrides=alone, cluster=cluster, sites=["east", "west"]
    ) as federation:
        folder = federation.run(run_id="before").folder
    plan = json.loads((folder / "plan.json").read_text())
    assert [site["name"] for site in plan["sites"]] == ["east", "west"]
    beside = json.loads((folder / "manifest.json").read_text())["plan"]
    for site in plan["sites"]:
        for way in ("bytes_in", "bytes_out"):
            amounts = beside["sites"][site["name"]][way]
            assert amounts["planned"] == amounts["measured"] == site[way]
    assert beside["seconds"]["measured"] > 0
    found = planned("--like", "before", "--set", "sites=2")
    assert found["like"]["run"] == "before"
    assert found["sources"]["pace"] == "measured in 2 rounds of run before"
    assert found["sources"]["bytes"] == "measured in run before"
    assert [s["bytes_in"] for s in found["sites"]] == [s["bytes_in"] for s in plan["sites"]]
    other = planned("--like", "before", "--set", "model.options.hidden=[5]")
    assert other["sources"]["pace"].endswith("with another model")
    assert other["sources"]["bytes"] == "tensors, without headers"
    assert "run before took" in invoke("plan", "ring.yaml", "--like", "before").stdout
    plan["sites"][0]["link"]["up"] = 5.0
    (folder / "plan.json").write_text(json.dumps(plan))
    east = ["--add-site", "east:workers=1", "--remove-site", "local"]
    assert planned("--like", "before", *east)["sites"][0]["link"]["up"] == 5
    (folder / "plan.json").write_text("{")
    assert planned("--like", "before", *east)["sites"][0]["link"]["up"] is None


@pytest.mark.parametrize(
    "spoilt",
    [
        "{",
        '{"sites": 3}',
        *(pytest.param(text, marks=pytest.mark.soak) for text in ("", "[]", "{}")),
    ],
)
def test_a_spoilt_plan_does_not_spoil_the_end_of_a_run(spoilt: str) -> None:
    def spoil(event: Event) -> None:
        if event.name == "round_finished":
            (Path("runs/r") / "plan.json").write_text(spoilt)

    cluster = FakeCluster([fake_machine("a", CPU=4)])
    with Federation("ring.yaml", cluster=cluster, observers=[spoil]) as federation:
        folder = federation.run(run_id="r").folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "finished"
    assert "plan" not in manifest
    assert (folder / "metrics.csv").exists()


@pytest.mark.parametrize("picture", ["nowhere/ring.png", "ring.txt"])
def test_a_picture_that_cannot_be_is_refused_before_anything_is_planned(picture: str) -> None:
    result = invoke("plan", "ring.yaml", "--picture", picture)
    assert result.exit_code == 2
    assert picture in result.stderr


def test_a_mediators_sites_are_those_with_which_a_run_would_begin(served: Served) -> None:
    served.service.sites = {
        name: a_site(name, **facts)
        for name, facts in {
            "oslo": {"link": {"up": 1e6, "down": 2e6, "down_measured_at": 1e9 + 0.5}},
            "bern": {"capacity": {"total": {"CPU": 4.0}, "machines": 1}},
            "paris": {"state": "cordoned"},
        }.items()
    }
    found = planned(*served.options, "--set", "resources.workers=auto")
    assert [(s["name"], s["vnodes"]) for s in found["sites"]] == [("bern", 4), ("oslo", 8)]
    assert found["sites"][1]["link"] == {
        **{"up": 1_000_000, "up_measured_at": None},
        **{"down": 2_000_000, "down_measured_at": 1_000_000_000},
        "round_trip_s": None,
    }
    assert found["sites"][0]["from"] == f"the mediator at {served.address}"
    asked = {method for method, _ in served.service.asked}
    assert asked == {"list_sites"}, "nothing is submitted"
    text = " ".join(invoke("plan", "ring.yaml", *served.options).stdout.split())
    assert "oslo up 1 MB/s (declared), down 2 MB/s (measured" in text
    assert "the speeds of bern are not known, and count as free" in text
    few = invoke("plan", "ring.yaml", *served.options, "--set", "sites=3")
    assert few.exit_code == 3
    assert "--set sites.count=2" in few.stderr


AT_SITES = """
federation: {rounds: 3}
model: {model_type: mlp}
data: {from: sites, dataset: scans}
evaluation: {where: sites}
resources: {workers: 1}
"""


def test_clients_are_at_the_sites_that_declare_their_data(served: Served) -> None:
    Path("scans.yaml").write_text(AT_SITES)
    served.service.sites = {
        name: a_site(name, data=data)
        for name, data in {
            "oslo": {"scans": told(clients=3, counts=[5, 5, 20], exact=True)},
            "bern": {"scans": told(clients=1, counts=[7], exact=True)},
            "rome": {"other": told()},
        }.items()
    }
    result = invoke("plan", "scans.yaml", "--json", *served.options)
    assert result.exit_code == 0, result.stderr
    sites = json.loads(result.stdout)["sites"]
    assert [(s["name"], s["clients"], s["samples"]) for s in sites] == [
        ("bern", 1, 7),
        ("oslo", 3, 30),
    ]


def test_without_its_mediator_there_is_no_plan() -> None:
    result = invoke("plan", "ring.yaml", "--profile", "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--set", "sites=3"], id="a ring, client by client"),
        pytest.param([], id="one site"),
        pytest.param(
            ["--set", "sites=3", "--set", "federation.number_of_clients=600"],
            id="a large graph, site by site",
        ),
        pytest.param(
            [
                *("--set", "federation.topology=star", "--set", "sites=2"),
                *("--set", "federation.aggregation_strategy=fedavg"),
            ],
            id="a star",
        ),
    ],
)
def test_a_plan_is_drawn_and_equal_plans_alike(options: list[str]) -> None:
    for name in ("one.png", "two.png"):
        result = invoke("plan", "ring.yaml", "--picture", name, *options)
        assert result.exit_code == 0, result.stderr
        assert f"drew {name}" in result.stdout
    one = Path("one.png").read_bytes()
    assert one.startswith(PNG)
    assert one == Path("two.png").read_bytes()
