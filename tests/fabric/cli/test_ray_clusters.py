"""`fedpilot raycluster`: what its commands declare, print and refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from fake_site import FakeSite
from fedpilot.fabric.cli.terminal.ray_clusters import cluster_details, explanation
from fedpilot.fabric.ray_clusters.declarations.documents import details
from raycluster_command import run, told

DEMO = """
metadata: {name: demo}
spec:
  headGroupSpec:
    rayStartParams: {num-cpus: "1"}
  workerGroupSpecs:
    - groupName: workers
      replicas: 2
      maxReplicas: 8
      rayStartParams: {num-cpus: "2"}
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    site = FakeSite(tmp_path)
    yield site
    site.store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "demo.yaml"
    found.write_text(DEMO)
    return found


def test_a_cluster_is_declared_kept_scaled_and_deleted(site: FakeSite, file: Path) -> None:
    with site.managed():
        assert "demo is declared, at revision 1" in told(site, "apply", str(file))
        assert told(site, "wait", "demo") == "demo is ready\n"
        assert site.machines() == ["demo-headgroup-0", "demo-workers-1", "demo-workers-2"]
        assert "workers should have 3" in told(site, "scale", "demo", "workers", "3")
        told(site, "wait", "demo")
        assert len(site.machines()) == 4
        told(site, "scale", "demo", "workers", "2", "--leave", "demo-workers-2")
        told(site, "wait", "demo")
        assert "demo-workers-2" not in site.machines()
        assert told(site, "delete", "demo", "--wait") == "demo is deleted\n"
        assert site.machines() == []
    assert "no Ray cluster is declared" in told(site, "list")


def test_without_a_manager_the_commands_say_so(site: FakeSite, file: Path) -> None:
    done = run(site, "apply", str(file))
    assert (done.exit_code, done.stderr.count("no lifecycle manager runs")) == (0, 1)
    for command in (["list"], ["show", "demo"], ["explain", "demo"]):
        assert "no lifecycle manager runs" in told(site, *command)
    done = run(site, "wait", "demo", "--timeout", "0.05")
    assert done.exit_code == 1
    assert "demo is not ready after 0.05 s: no lifecycle manager runs" in done.stderr
    done = run(site, "delete", "demo")
    assert (done.exit_code, done.stdout) == (0, "demo is being deleted\n")


def test_show_lists_groups_and_machines(site: FakeSite, file: Path) -> None:
    with site.managed():
        told(site, "apply", str(file))
        told(site, "wait", "demo")
        lines = told(site, "show", "demo").splitlines()
        assert lines[0].startswith("demo  ● ready for ")
        assert "workers  2 machines" in lines
        assert any(line.split()[:3] == ["demo-workers-1", "●", "ready"] for line in lines)
        listed = told(site, "list").splitlines()[-1].split()
        assert listed[:5] == ["demo", "●", "ready", "3", "machines"]


@pytest.mark.parametrize("command", [["list"], ["show", "demo"], ["explain", "demo"]])
def test_json_is_one_document(site: FakeSite, file: Path, command: list[str]) -> None:
    told(site, "apply", str(file))
    assert isinstance(json.loads(told(site, *command, "--json")), dict)


def test_what_get_prints_can_be_applied(site: FakeSite, file: Path, tmp_path: Path) -> None:
    told(site, "apply", str(file))
    printed = told(site, "get", "demo")
    assert yaml.safe_load(printed) == json.loads(told(site, "get", "demo", "--json"))
    again = tmp_path / "again.yaml"
    again.write_text(printed)
    assert "was declared so already, at revision 1" in told(site, "apply", str(again))


def test_a_dry_run_declares_nothing(site: FakeSite, file: Path) -> None:
    assert "1 headgroup, 2 workers" in told(site, "apply", str(file), "--dry-run")
    assert site.store.declarations() == ()
    shown = json.loads(told(site, "apply", str(file), "--dry-run", "--json"))
    assert shown["dry_run"]


def test_a_cluster_keeps_its_provider(site: FakeSite, file: Path) -> None:
    told(site, "apply", str(file))
    far = "spec:\n  fedpilot: {provider: ssh, hosts: [node1]}\n"
    file.write_text(DEMO.replace("spec:\n", far))
    for words in ([], ["--dry-run"]):
        done = run(site, "apply", str(file), *words)
        assert done.exit_code == 2
        assert "its provider is local, and cannot become ssh" in done.stderr


def test_a_host_that_does_not_answer_is_named_with_its_reason(site: FakeSite, file: Path) -> None:
    told(site, "apply", str(file))
    found = details(site.store, site.store.declarations()[0])
    found["hosts_silent"] = {"node2": "Host key verification failed."}
    for drawn in (explanation(found, 0.0), cluster_details(found, 0.0)):
        console = Console(width=120)
        with console.capture() as captured:
            console.print(drawn)
        assert "node2" in captured.get()
        assert "Host key verification failed." in captured.get()


def test_a_change_of_another_is_not_lost(site: FakeSite, file: Path) -> None:
    told(site, "apply", str(file), "--revision", "0")
    file.write_text(DEMO.replace("replicas: 2", "replicas: 1"))
    done = run(site, "apply", str(file), "--revision", "0")
    assert done.exit_code == 3
    assert "is declared already, at revision 1" in done.stderr
    told(site, "apply", str(file), "--revision", "1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("spec: {headGroupSpek: {}}", "headGroupSpec", id="a key that does not exist"),
        pytest.param(
            DEMO.replace("replicas: 2", "replicas: 9"), "replicas", id="more than the maximum"
        ),
        pytest.param(
            DEMO.replace("spec:\n", "spec:\n  fedpilot: {provider: fake}\n", 1),
            "not fake",
            id="a provider that this version lacks",
        ),
        pytest.param(
            DEMO.replace("spec:\n", "spec:\n  rayVersion: 2.53.0\n", 1),
            "`spec.rayVersion` is 2.53.0, and this site has Ray 2",
            id="another version of Ray",
        ),
    ],
)
def test_a_bad_file_is_refused_with_its_place(
    site: FakeSite, file: Path, text: str, said: str
) -> None:
    file.write_text(text)
    done = run(site, "apply", str(file))
    assert done.exit_code == 2
    assert said in done.stderr
    assert site.store.declarations() == ()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["show", "dmeo"], "there is no declared Ray cluster 'dmeo'; there are: demo"),
        (["scale", "demo", "wrokers", "1"], "did you mean workers?"),
        (["scale", "demo", "workers", "9"], "maxReplicas, which is 8, found 9"),
        (["scale", "demo", "headgroup", "2"], "a cluster has one head"),
    ],
)
def test_what_does_not_exist_is_code_2(
    site: FakeSite, file: Path, command: list[str], said: str
) -> None:
    told(site, "apply", str(file))
    done = run(site, *command)
    assert done.exit_code == 2
    assert said in done.stderr


def test_events_are_lines_and_with_json_an_object_each(site: FakeSite, file: Path) -> None:
    with site.managed():
        told(site, "apply", str(file))
        told(site, "wait", "demo")
        lines = told(site, "events", "demo").splitlines()
        assert lines[0].split()[2:4] == ["machine_starting", "demo-headgroup-0:"]
        objects = [json.loads(line) for line in told(site, "events", "demo", "--json").splitlines()]
        assert [each["event"] for each in objects][-1] == "cluster_ready"
        assert objects[0]["machine"] == "demo-headgroup-0"


def test_a_head_that_cannot_start_ends_the_wait_with_its_reason(site: FakeSite, file: Path) -> None:
    site.hosts.refuses = "no room on the disk"
    with site.managed():
        told(site, "apply", str(file))
        done = run(site, "wait", "demo")
        assert done.exit_code == 1
        assert "demo has failed: its machines did not join 10 times in a row" in done.stderr
        assert "no room on the disk" in done.stderr


def test_env_needs_a_head(site: FakeSite, file: Path) -> None:
    told(site, "apply", str(file))
    done = run(site, "env", "demo")
    assert done.exit_code == 3
    assert "its head has not started" in done.stderr


@pytest.mark.parametrize("listen", ["", "x", ":1", "a:0", "a:65536", "1" * 5000])
def test_serve_refuses_what_is_no_address(site: FakeSite, listen: str) -> None:
    done = run(site, "serve", "--metrics-listen", listen)
    assert done.exit_code == 2
    assert "--metrics-listen is PORT or HOST:PORT" in done.stderr
