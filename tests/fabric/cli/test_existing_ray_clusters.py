"""`fedpilot raycluster` on a Ray that runs already: it is shown, and nothing of it is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from existing_site import ADDRESS, FakeRays, existing, living
from fake_site import FakeSite
from raycluster_command import run, told


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    rays = FakeRays()
    rays.at[ADDRESS].nodes.append(living("g", **{"ray.io/node-group": "gpus", "zone": "z1"}))
    site = FakeSite(tmp_path, operating=rays.cluster)
    yield site
    site.store.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "demo.yaml"
    found.write_text(yaml.safe_dump(existing()))
    return found


def test_it_is_shown_and_forgotten(site: FakeSite, file: Path) -> None:
    with site.managed():
        told(site, "apply", str(file))
        assert told(site, "wait", "demo") == "demo is ready\n"
        lines = [line.split() for line in told(site, "show", "demo").splitlines()]
        assert ["address", ADDRESS] in lines
        assert ["gpus", "1", "machine"] in lines
        (gpu,) = [line for line in lines if line[:1] == ["g-gggggggg"]]
        assert gpu[1:4] == ["●", "ready", "host-g"]
        assert "2 CPU" in " ".join(gpu)
        assert "zone=z1" in gpu
        assert "node-group" not in " ".join(gpu)
        assert "workers: 1 machine" in told(site, "explain", "demo")
        assert f"export RAY_ADDRESS={ADDRESS}" in told(site, "env", "demo")
        events = told(site, "events", "demo", "--json").splitlines()
        assert [json.loads(each)["event"] for each in events].count("machine_ready") == 3
        told_so = "demo is deleted; its Ray goes on\n"
        assert told(site, "delete", "demo", "--wait") == told_so


def test_it_has_no_number_that_could_change(site: FakeSite, file: Path) -> None:
    told(site, "apply", str(file))
    done = run(site, "scale", "demo", "gpus", "2")
    assert done.exit_code == 2
    assert "Ray cluster 'demo': `spec.fedpilot.provider` is existing" in done.stderr
    assert site.store.declarations()[0].revision == 1


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("headGroupSpec: {rayStartParams: {}}", id="an environment, or parameters"),
        pytest.param("workerGroupSpecs: [{groupName: gpus, replicas: 3}]", id="groups"),
        pytest.param("enableInTreeAutoscaling: true", id="Ray's own autoscaler"),
        pytest.param("gcsFaultToleranceOptions: {redisAddress: 'a:1'}", id="a Redis"),
    ],
)
def test_what_only_a_started_ray_could_have_is_refused_with_its_line(
    site: FakeSite, file: Path, key: str
) -> None:
    file.write_text(f"{file.read_text()}  {key}\n")
    done = run(site, "apply", str(file))
    assert done.exit_code == 2
    assert f"{file}:7: spec.{key.partition(':')[0]}" in done.stderr
    assert "a key that the provider existing cannot do" in done.stderr
    assert site.store.declarations() == ()


def test_env_says_why_it_has_not_been_seen(site: FakeSite, file: Path) -> None:
    told(site, "apply", str(file))
    done = run(site, "env", "demo")
    assert done.exit_code == 3
    assert "demo has no address yet: no lifecycle manager runs" in done.stderr
