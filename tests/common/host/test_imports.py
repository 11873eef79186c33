"""While many modules are imported nothing searches for garbage; afterwards all is as before."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

from fedpilot.common.host.imports import many_imports


@pytest.mark.parametrize("searched", [True, False])
def test_garbage_is_searched_for_afterwards_if_it_was_before(searched: bool) -> None:
    try:
        if not searched:
            gc.disable()
        with suppress(ImportError), many_imports():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == searched
    finally:
        gc.enable()
