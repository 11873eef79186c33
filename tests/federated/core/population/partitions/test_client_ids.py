"""Ids made from a pattern are found again, and patterns that make none are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from fedpilot.federated.core.population.partitions import disjoint
from fedpilot.federated.core.population.partitions.bootstrap import bootstrap
from fedpilot.federated.core.population.partitions.partition import PartitionError
from partitions import TEN_LABELS


@given(st.text("ab1é"), st.text("ab1é"), st.integers(0, 10**9 - 1))
def test_ids_of_any_pattern_are_found_again(before: str, after: str, index: int) -> None:
    partition = bootstrap(TEN_LABELS, 10**9, 1, 0, id_pattern=f"{before}{{index}}{after}")
    client_id = partition.client_id(index)
    assert client_id == f"{before}{index}{after}"
    assert partition.index_of(client_id) == index


@pytest.mark.parametrize("pattern", ["client", "{i}", "{index}{index}", "{index:03d}", "{index}}"])
def test_a_pattern_that_makes_no_ids_is_refused(pattern: str) -> None:
    with pytest.raises(PartitionError, match="client ids are written with"):
        disjoint.iid(TEN_LABELS, 3, 0, id_pattern=pattern)
