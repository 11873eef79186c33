"""What the processes of a head get to know of the Redis in which it keeps its state."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedpilot.fabric.ray import private_ray
from fedpilot.fabric.ray.control_plane.redis_login import RedisLogin
from fedpilot.fabric.ray.starting.control_plane_storage import keep_state_in

LOGIN = RedisLogin(host="redis", port=6379, username="ray", password="secret", namespace="uid")
NAMES = ("RAY_REDIS_ADDRESS", "RAY_external_storage_namespace")


class FakeRay:
    """The parts of Ray that start its processes, and what they were asked for."""

    def __init__(self) -> None:
        self.started: list[tuple[Sequence[str], str, dict[str, Any], dict[str, str]]] = []
        self.looked_up: list[tuple[Any, ...]] = []
        self.node = SimpleNamespace(get_session_key_from_storage=self._look_up)
        self.services = SimpleNamespace(start_ray_process=self._start)

    def _look_up(self, *given: Any) -> bytes:
        self.looked_up.append(given)
        return b"session_1"

    def _start(self, command: Sequence[str], process_type: str, **others: Any) -> str:
        variables = {name: os.environ[name] for name in NAMES if name in os.environ}
        self.started.append((command, process_type, others, variables))
        return "a process"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRay:
    fake = FakeRay()
    modules = (fake.node, fake.services, None, None)
    monkeypatch.setattr(private_ray, "starting", lambda: modules)
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is as before in the end
    (tmp_path / "ray_current_cluster").write_text("10.0.0.1:6379")
    keep_state_in(LOGIN, tmp_path)
    return fake


def test_only_the_control_plane_gets_the_secrets_and_by_environment(ray: FakeRay) -> None:
    ray.services.start_ray_process(["gcs"], "gcs_server", fate_share=False)
    ray.services.start_ray_process(["raylet"], "raylet", fate_share=False)
    (command, _, others, variables), (_, _, of_raylet, left) = ray.started
    assert command == ["gcs", "--fromenv=redis_username,redis_password"]
    secrets = {"FLAGS_redis_username": "ray", "FLAGS_redis_password": "secret"}
    assert others == {"fate_share": False, "env_updates": secrets}
    assert variables == dict(zip(NAMES, ("redis://redis:6379", "uid"), strict=True))
    assert of_raylet == {"fate_share": False}
    assert not left


def test_the_name_of_the_session_is_looked_up_with_the_login(ray: FakeRay) -> None:
    found = ray.node.get_session_key_from_storage("redis", 6379, "", "", False, "", b"name")
    assert found == b"session_1"
    assert ray.looked_up == [("redis", 6379, "ray", "secret", False, "", b"name")]


def test_workers_that_wait_for_the_head_are_not_taken_for_a_ray_that_serves(
    ray: FakeRay, tmp_path: Path
) -> None:
    assert not (tmp_path / "ray_current_cluster").exists()
