"""Drivers and managers of versions before the rooms: their pickles are read, and they read ours."""

from __future__ import annotations

import base64
import enum
import importlib
import json
import pickle
import pickletools
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle

from fedpilot.fabric import (
    DoesNotExist,
    Exists,
    FixedSizeNode,
    FixedSizeNodes,
    In,
    KeeperSettings,
    NeverFits,
    NotIn,
    Resources,
    SchedulingPolicy,
    VirtualCluster,
)
from fedpilot.fabric.core.cluster_state import Entry, JobId
from fedpilot.fabric.core.pickle_names import NAMED
from fedpilot.fabric.core.places.groups import GroupId
from fedpilot.fabric.core.places.request import QueuePolicy
from fedpilot.fabric.core.records import ClusterId, ProcessId, WorkId
from fedpilot.fabric.inside.submission import ask_for_nothing, attainable_nodes
from fedpilot.fabric.jobs.confine import environment
from fedpilot.fabric.jobs.confined import HOOK_VARIABLE, hook
from fedpilot.fabric.manager.actor import ManagerActor
from fedpilot.fabric.manager.routing.messages import Ask, Placed
from fedpilot.fabric.manager.rpc import Address

THEIRS = {
    name: base64.b64decode(text)
    for name, text in json.loads(
        Path(__file__).with_name("pickles-of-0.1.json").read_text()
    ).items()
}
"""What a driver and a manager said to each other when all of `fabric` lay in one folder."""
WHERE = {"zone": In("a"), "disk": NotIn("b"), "gpu": Exists(), "old": DoesNotExist()}
NODE = FixedSizeNode(resources={"CPU": 1}, parent_node_selector=WHERE, labels={"rank": "0"})
SPEC = VirtualCluster(
    fixed_size_nodes=(
        FixedSizeNodes(nodes=(NODE,), scheduling_policy=SchedulingPolicy.STRICT_SPREAD),
    ),
    flex_resource_max={"CPU": 2},
)
REQUEST = SPEC.request("mine", priority=3, deadline=60.0)
ASK = Ask(
    id=WorkId("ab"),
    cluster=ClusterId("mine"),
    demand=Resources.of({"CPU": 1}),
    selector={"rank": In("0")},
    owner=ProcessId("cd"),
    function="f",
)
OURS: dict[str, Any] = {
    "create": (
        "create",
        (
            Entry(request=REQUEST, spec=SPEC.to_dict(), owner=JobId("01000000"), user="alice"),
            5.0,
        ),
    ),
    "check": ("check", (REQUEST,)),
    "place": ("place", (ASK,)),
    "placed": (Placed(GroupId("12" * 18), 0, ({"CPU": 1.0},), "active"), None),
    "address": Address("127.0.0.1", 7461, b"token"),
    "settings": KeeperSettings(policy=QueuePolicy.PRIORITY, machines_come=True),
    "sizes": (partial(attainable_nodes, "mine"), ask_for_nothing),
    "never_fits": (None, NeverFits("mine", "there is no room", 2)),
}


METHODS = (
    *("__init__", "_begin", "_keeper", "_record", "_turn", "address", "attach", "begin", "begun"),
    *("check", "cluster_of", "create", "delete", "done", "forget", "history", "pid", "place"),
    *("place_all", "python", "restore", "show", "snapshot", "unused"),
)
"""What the pickled class of the manager refers to, of which every version needs each."""


def names_in(pickled: bytes) -> set[str]:
    """The modules that a pickle names."""
    texts = [found for _, found, _ in pickletools.genops(pickled) if isinstance(found, str)]
    return {text for text in texts if text.startswith("fedpilot.")}


@pytest.mark.parametrize("name", OURS)
def test_what_they_say_is_understood(name: str) -> None:
    found = pickle.loads(THEIRS[name])
    if name == "never_fits":
        assert found[1].args == OURS[name][1].args
    elif name == "sizes":
        (nodes, nothing), (our_nodes, our_nothing) = found, OURS[name]
        assert (nodes.func, nodes.args, nothing) == (our_nodes.func, our_nodes.args, our_nothing)
    else:
        assert found == OURS[name]


@pytest.mark.parametrize("name", OURS)
def test_they_know_every_name_that_we_say(name: str) -> None:
    ours = pickle.dumps(OURS[name]), ray.cloudpickle.dumps(OURS[name])
    assert [names_in(each) for each in ours] == [names_in(THEIRS[name])] * 2 != [set()] * 2


@pytest.mark.parametrize("module", NAMED)
def test_a_name_from_elsewhere_is_the_module_of_today(module: str) -> None:
    today = importlib.import_module(module)
    spec = today.__spec__
    assert importlib.import_module(NAMED[module]) is today
    assert today.__name__ == module
    assert today.__spec__ is spec


def test_ray_starts_the_manager_by_a_name_that_stays() -> None:
    assert ManagerActor.__module__ == "fedpilot.fabric.manager_actor"
    assert importlib.import_module(ManagerActor.__module__).ManagerActor is ManagerActor


def test_the_manager_has_the_methods_that_every_version_looks_for() -> None:
    pickled = ray.cloudpickle.dumps(ray.remote(ManagerActor).__ray_metadata__.modified_class)
    texts = [found for _, found, _ in pickletools.genops(pickled) if isinstance(found, str)]
    named = {text for text in texts if text.startswith("ManagerActor.")}
    assert named == {f"ManagerActor.{name}" for name in METHODS}


def test_submitted_jobs_start_by_a_name_that_stays() -> None:
    command = [sys.executable, "-m", "fedpilot.fabric.confine", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: fedpilot.fabric.confine" in done.stdout


def test_a_confined_job_finds_its_hook_whatever_version_its_python_has() -> None:
    assert environment("any", "nowhere")[HOOK_VARIABLE] == "fedpilot.fabric.confined.hook"
    assert importlib.import_module("fedpilot.fabric.confined").hook is hook


def test_a_name_that_nobody_has_is_not_found() -> None:
    with pytest.raises(ImportError):
        runpy.run_module("fedpilot.fabric.never_was")


def test_what_enums_and_dataclasses_bring_keeps_its_module() -> None:
    """cloudpickle sends code that it does not find under its module's name."""
    for brought in (enum.Enum.__new__, vars(QueuePolicy)["__new__"]):
        assert brought.__module__ == "enum"
    assert vars(Placed)["__getstate__"].__module__ == "dataclasses"
