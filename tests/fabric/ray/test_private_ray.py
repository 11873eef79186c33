"""What is used of Ray's private parts is in one module, and what a Ray lacks is named."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedpilot.fabric.errors import UnsupportedRay
from fedpilot.fabric.jobs.confine import environment
from fedpilot.fabric.ray import private_ray
from fedpilot.fabric.ray.private_ray import FLOOR, NEEDS, TRIED, PrivateName, missing, require
from real_ray import ENVIRONMENT, REPOSITORY

PRIVATE = re.compile(r"ray\._private|ray\._raylet|ray\.core\.generated")
ALLOWED = {"private_ray.py"}


def test_the_ray_that_is_installed_has_all_of_it() -> None:
    assert {purpose: missing(purpose) for purpose in NEEDS} == dict.fromkeys(NEEDS, ())


def test_no_other_module_names_private_parts() -> None:
    packages = REPOSITORY / "src" / "fedpilot"
    naming = [
        file.relative_to(packages)
        for package in packages.iterdir()
        for file in package.rglob("*.py")
        if PRIVATE.search(file.read_text()) and file.name not in ALLOWED
    ]
    assert naming == []


def test_the_floor_is_what_the_package_asks_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *itertools.chain(*extras)]
    floors = {each.partition(">=")[2].partition(",")[0] for each in asked if each.startswith("ray")}
    assert floors == {FLOOR}
    if version("ray") != FLOOR:  # at the floor the tests run with that Ray
        assert version("ray") == TRIED
    assert f"ray=={TRIED}" in (REPOSITORY / "constraints.txt").read_text().splitlines()


class Message:
    """A message, as protobuf has them."""

    class DESCRIPTOR:
        class _Field:
            name = "here"

        fields = (_Field,)


@pytest.fixture
def ray_like(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a function, a method, a message and something that is not Python's."""

    class Thing:
        def method(self, here: int, **more: int) -> None: ...

    made: Any = ModuleType("like_ray")
    made.function = lambda here: None
    made.Thing, made.Message, made.compiled = Thing, Message, len
    monkeypatch.setitem(sys.modules, "like_ray", made)
    found: ModuleType = made
    return found


@pytest.mark.parametrize(
    ("part", "lacks"),
    [
        pytest.param(
            PrivateName("like_ray", "function", ("here",)), [], id="a function that is there"
        ),
        pytest.param(
            PrivateName("like_ray", "function", ("here", "new")),
            ["like_ray.function(new)"],
            id="a parameter that is not",
        ),
        pytest.param(
            PrivateName("like_ray", "Thing.method", ("any",)), [], id="it takes whatever comes"
        ),
        pytest.param(
            PrivateName("like_ray", "Thing.gone"), ["like_ray.Thing.gone"], id="no such method"
        ),
        pytest.param(
            PrivateName("like_ray", "Message", ("here", "gone")),
            ["like_ray.Message(gone)"],
            id="no such field",
        ),
        pytest.param(
            PrivateName("like_ray", "compiled", in_python=True),
            ["like_ray.compiled as a function in Python"],
            id="its code cannot be replaced",
        ),
        pytest.param(
            PrivateName("like_ray.gone", "any"), ["like_ray.gone.any"], id="no such module"
        ),
    ],
)
def test_what_is_missing_is_named(
    ray_like: ModuleType, part: PrivateName, lacks: list[str]
) -> None:
    assert part.lacks() == lacks


def test_a_ray_that_lacks_something_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    needs: Mapping[str, Any] = {"tests": (PrivateName("ray._private.gone", "init"),)}
    monkeypatch.setattr(private_ray, "NEEDS", needs)
    with pytest.raises(UnsupportedRay) as refused:
        require("tests")
    told = str(refused.value)
    assert f"Ray {version('ray')} lacks what tests" in told
    assert "ray._private.gone.init; tried are Ray" in told


def test_a_ray_that_changed_can_be_imported_and_is_refused_by_init(tmp_path: Path) -> None:
    """Something of what is wrapped is gone: the script goes on, but never outside unsaid."""
    script = tmp_path / "script.py"
    script.write_text(
        "import fedpilot.fabric.ray.private_ray as parts\n"
        "gone = parts.PrivateName('ray._private.state', 'gone_in_this_ray')\n"
        "parts.NEEDS[parts.INSIDE] = (*parts.NEEDS[parts.INSIDE], gone)\n"
        "import ray\n"
        "print('imported', ray.__version__)\n"
        "ray.init(num_cpus=1)\n"
    )
    held = {**ENVIRONMENT, **environment("any", "127.0.0.1:1")}
    done = subprocess.run(
        [sys.executable, str(script)], env=held, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"imported {version('ray')}\n", done.stderr
    assert "fedpilot: this Ray cannot work in a virtual cluster" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "UnsupportedRay" in last
    assert "ray._private.state.gone_in_this_ray" in last
