"""A Ray cluster that a process of a site keeps: its machines outlive the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from declaring_site import until
from fedpilot.common.host.marked_processes import marked_processes
from fedpilot.fabric.errors import ClusterUnreachable, SpecError
from fedpilot.fabric.ray.control_plane.probe import probe
from fedpilot.fabric.ray_clusters.kept_cluster import KeptRayCluster
from fedpilot.fabric.ray_clusters.own_cluster import declared_in
from fedpilot.fabric.ray_clusters.providers.ray_start import MARK
from real_ray import ray_head

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

DEMO = """
metadata: {name: kept}
spec:
  headGroupSpec:
    rayStartParams: {num-cpus: '1', include-dashboard: 'false', object-store-memory: '80000000'}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "kept.yaml").write_text(DEMO)
    yield tmp_path / "ray"
    with kept(tmp_path / "ray") as found:
        for each in found.store.declarations():
            found.store.delete(each.name, saw=each.revision, by="ann", at=0.0)
        until(lambda: not found.store.declarations())


def test_a_ray_that_runs_already_is_found_and_goes_on(folder: Path) -> None:
    with ray_head(num_cpus=1) as address:
        ours = f"{{provider: existing, address: '{address}'}}"
        text = f"{{metadata: {{name: kept}}, spec: {{fedpilot: {ours}}}}}"
        (folder.parent / "kept.yaml").write_text(text)
        with kept(folder) as cluster:
            assert cluster.environment() == {"RAY_AUTH_MODE": "disabled"}
            assert cluster.address() == address
            assert raylets(cluster) == set()
            (stored,) = cluster.store.declarations()
            cluster.store.delete(stored.name, saw=stored.revision, by="ann", at=0.0)
            until(lambda: not cluster.store.declarations())
        probe(address, "disabled", 60.0)


def kept(folder: Path) -> KeptRayCluster:
    return KeptRayCluster(declared_in(folder.parent / "kept.yaml"), folder)


def answers(cluster: KeptRayCluster) -> bool:
    try:
        return bool(cluster.address())
    except ClusterUnreachable:
        return False


def raylets(cluster: KeptRayCluster) -> set[int]:
    """The processes of its machines that are raylets."""
    uid = cluster.store.declarations()[0].uid
    found = marked_processes(MARK, f"{uid}")
    return {each.pid for each in found if "raylet" in Path(each.arguments[0]).name}


def test_its_machines_outlive_the_process_and_the_next_one_goes_on_with_them(folder: Path) -> None:
    with kept(folder) as first:
        with pytest.raises(ClusterUnreachable):
            first.address()
        assert Path(first.environment()["RAY_AUTH_TOKEN_PATH"]).exists()
        until(lambda: answers(first))
        address, revision = first.address(), first.store.declarations()[0].revision
        until(lambda: len(raylets(first)) == 1)
        there = raylets(first)
    with kept(folder) as second:
        until(lambda: answers(second))
        assert (second.address(), raylets(second)) == (address, there)
        assert second.store.declarations()[0].revision == revision
    (folder.parent / "kept.yaml").write_text(DEMO.replace("'1'", "'2'"))
    with kept(folder) as third:
        assert third.store.declarations()[0].revision != revision


def test_a_folder_keeps_one_cluster(folder: Path) -> None:
    with kept(folder):
        pass
    (folder.parent / "kept.yaml").write_text(DEMO.replace("name: kept", "name: other"))
    with pytest.raises(SpecError, match=r"keeps the Ray cluster 'kept'.*delete kept --store"):
        kept(folder).__enter__()
    (folder.parent / "kept.yaml").write_text(DEMO)
