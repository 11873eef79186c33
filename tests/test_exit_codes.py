"""The exit code of an error is the one that its package's docs say, and always one of those."""

from __future__ import annotations

import importlib
import re

import pytest

from fedpilot.common.host import exit_codes
from fedpilot.common.host.exit_codes import exit_code_of

MODULES = [
    "fedpilot.fabric.errors",
    "fedpilot.mediator.errors",
    "fedpilot.mediator.identity.errors",
    "fedpilot.federated.errors",
]
CODES = {value for value in vars(exit_codes).values() if isinstance(value, int)}


def errors(module: str) -> dict[str, type[Exception]]:
    found = vars(importlib.import_module(module)).values()
    return {e.__name__: e for e in found if isinstance(e, type) and issubclass(e, Exception)}


@pytest.mark.parametrize("module", MODULES)
def test_every_error_has_a_code_that_is_documented(module: str) -> None:
    assert {1, 2, 3, 4, 130} == CODES
    for error in errors(module).values():
        assert exit_code_of(error) in CODES - {130}, error


@pytest.mark.parametrize("module", MODULES[1:])
def test_the_tree_in_the_docs_of_a_module_says_the_code_of_each(module: str) -> None:
    tree = importlib.import_module(module).__doc__ or ""
    said = {
        match["name"]: int(match["code"])
        for match in re.finditer(r"^[│├└─ ]*(?P<name>[A-Z]\w+) .*\(exit (?P<code>\d)\)", tree, re.M)
    }
    assert said
    found = errors(module)
    assert said == {name: exit_code_of(found[name]) for name in said}


def test_an_error_that_is_not_ours_has_no_code() -> None:
    assert exit_code_of(ValueError("x")) is None
    assert exit_code_of(SystemExit(3)) is None
