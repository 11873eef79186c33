"""The names of errors on the wire, of which the classes or their modules have moved."""

from __future__ import annotations

import importlib

import pytest

from fedpilot.federated.core.sums.amounts import AnswerRefused
from fedpilot.mediator.server.store.engines import StoreAway, StoreError
from fedpilot.mediator.wire.failures import NAMED, error_of, told


@pytest.mark.parametrize("today", NAMED)
def test_what_has_a_name_of_its_own_is_where_the_table_says(today: str) -> None:
    module, _, name = today.partition(":")
    assert not name or isinstance(getattr(importlib.import_module(module), name), type)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(AnswerRefused("the weight", "1", "2"), id="an answer that is refused"),
        pytest.param(StoreAway("it went", "it is ended"), id="a store that is away"),
        pytest.param(StoreError("it is full"), id="an error of the store"),
    ],
)
def test_a_class_that_has_moved_keeps_its_name_and_is_found_by_it(error: Exception) -> None:
    cls = type(error)
    failure = told(error)
    assert failure.kind == NAMED[f"{cls.__module__}:{cls.__name__}"]
    assert type(error_of("paris", failure)) is cls
