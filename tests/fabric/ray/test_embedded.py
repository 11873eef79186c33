"""What a private Ray is told, and what its processes import first."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from fedpilot.fabric.ray.starting import embedded

SHOW = """
import gc, sys
import fedpilot.fabric.ray.starting.preload
print(gc.isenabled(), "colorsys" in sys.modules)
"""


def test_the_ray_that_is_tested_is_known() -> None:
    assert version("ray").startswith(embedded.KNOWN)
    assert embedded.is_known()


def test_a_ray_that_we_do_not_know_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "KNOWN", ("0.",))
    assert embedded.quick_settings(["colorsys"]) == {}


def test_without_modules_nothing_is_preloaded() -> None:
    assert embedded.quick_settings([]) == dict(embedded.QUICK)


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        pytest.param(["colorsys"], True, id="one that exists"),
        pytest.param(["no_such_module", "colorsys"], False, id="the first does not exist"),
        pytest.param([""], False, id="none"),
    ],
)
def test_preloading_leaves_errors_to_those_who_need_the_module(
    modules: list[str], found: bool
) -> None:
    settings = embedded.quick_settings(modules)
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", str(found)]
    assert done.stderr == ""
