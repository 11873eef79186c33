"""Editing the counts of a document."""

from __future__ import annotations

import copy

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import HEAD, GroupName, MachineName
from fedpilot.fabric.errors import SpecError
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from fedpilot.fabric.spec.ray_cluster.scaling import scaled
from ray_cluster_documents import ray_cluster, with_workers

SMALL = GroupName("small")


def test_only_what_was_asked_for_changes() -> None:
    before = ray_cluster_of(with_workers(scaleStrategy={"workersToDelete": ["a"]}))
    kept = copy.deepcopy(before)
    (fewer,) = scaled(before, SMALL, replicas=1).declared.workers
    assert (fewer.replicas, fewer.least, fewer.most, fewer.leaving) == (1, 1, 4, ("a",))
    (other,) = scaled(before, SMALL, leaving=[MachineName("b")]).declared.workers
    assert (other.replicas, other.leaving) == (2, ("b",))
    (none,) = scaled(before, SMALL, replicas=3, leaving=()).declared.workers
    assert (none.replicas, none.leaving) == (3, ())
    assert before == kept


def test_a_group_that_has_shrunk_may_grow_again() -> None:
    document = with_workers()
    del document["spec"]["workerGroupSpecs"][0]["maxReplicas"]
    fewer = scaled(ray_cluster_of(document), SMALL, replicas=1)
    (again,) = scaled(ray_cluster_of(fewer.document), SMALL, replicas=2).declared.workers
    assert (again.replicas, again.most) == (2, 2)


def test_a_ray_that_is_not_ours_has_no_numbers() -> None:
    ours = {"provider": "existing", "address": "a:1"}
    document = ray_cluster_of({"metadata": {"name": "lab"}, "spec": {"fedpilot": ours}})
    said = r"Ray cluster 'lab': `spec\.fedpilot\.provider` is existing.*the group workers"
    with pytest.raises(SpecError, match=said):
        scaled(document, GroupName("workers"), replicas=2)


@pytest.mark.parametrize("replicas", [0, 5, -1, True, 1.0])
def test_a_number_outside_the_limits_is_refused(replicas: int) -> None:
    with pytest.raises(SpecError, match=r"minReplicas, which is 1, to maxReplicas, which is 4"):
        scaled(ray_cluster_of(ray_cluster()), SMALL, replicas=replicas)


def test_an_unknown_group_shows_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"no group smal; there are: small; did you mean small\?"):
        scaled(ray_cluster_of(ray_cluster()), GroupName("smal"), replicas=1)


def test_a_name_with_control_codes_is_printed_safely() -> None:
    with pytest.raises(SpecError) as found:
        scaled(ray_cluster_of(ray_cluster()), GroupName("\x1b[2J"), replicas=1)
    assert str(found.value).isprintable()


def test_a_cluster_keeps_its_one_head() -> None:
    with pytest.raises(SpecError, match="one head"):
        scaled(ray_cluster_of(ray_cluster()), HEAD, replicas=2)
