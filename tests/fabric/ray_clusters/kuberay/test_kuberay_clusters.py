"""Declared Ray clusters at KubeRay, from the store to the resource and back, over HTTP."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fake_site import managed
from fedpilot.fabric.ray_clusters.declarations.documents import environment_of
from fedpilot.fabric.ray_clusters.kuberay.kuberay_cluster import KubeRayTimes
from fedpilot.fabric.ray_clusters.kuberay.manifest import MANAGED_BY, UID
from kube_objects import KubeResource
from kuberay_site import KubeRaySite, kuberay, kuberay_site, story
from operated_site import NAME

Told = Callable[[KubeRaySite], Awaitable[None]]
Tell = Callable[[Told], None]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    return lambda told: story(tmp_path, monkeypatch, told)


def foreign() -> KubeResource:
    """A resource of another owner, with the name of ours."""
    document = kuberay()
    del document["spec"]["fedpilot"]
    return KubeResource(
        {**document, "metadata": {"name": NAME, "labels": {UID: "another"}}},
        {("helm", "Update"): {("spec", "headGroupSpec"), ("spec", "workerGroupSpecs")}},
    )


class TestLife:
    def test_a_declaration_becomes_a_resource_and_its_pods_are_shown(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            stored = site.declare()
            await site.ready()
            resource = site.server.document(NAME)
            labels = resource["metadata"]["labels"]
            assert (labels[UID], labels[MANAGED_BY]) == (stored.uid, "fedpilot")
            assert "fedpilot" not in resource["spec"]
            await site.until(lambda: len(site.now["machines"]) == 3)
            await site.until(lambda: {each["state"] for each in site.now["machines"]} == {"ready"})
            counts = {name: each["ready"] for name, each in site.now["groups"].items()}
            assert counts == {"headgroup": 1, "small": 2}
            assert site.now["address"] == "10.1.0.1:6379"
            assert {each["host"] for each in site.now["machines"]} <= {"node-0", "node-1", "node-2"}
            assert site.events("resource_applied") == ["there is no such resource"]

        tell(told)

    def test_equal_content_is_applied_once(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.declare()
            site.server.publish("MODIFIED", site.server.document(NAME))
            await site.until(lambda: site.server.count("pods") > 3)
            await asyncio.sleep(0.1)
            assert site.server.count("apply") == 1

        tell(told)

    def test_it_grows_and_shrinks_as_declared(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.scale(4)
            await site.ready()
            await site.until(lambda: site.now["groups"]["small"]["ready"] == 4)
            leaving = next(each for each in site.server.pods if "small" in each)
            site.scale(3, scaleStrategy={"workersToDelete": [leaving]})
            await site.ready()
            await site.until(lambda: site.now["groups"]["small"]["ready"] == 3)
            assert leaving not in [each["name"] for each in site.now["machines"]]
            assert "the declaration has changed" in site.events("resource_applied")

        tell(told)

    def test_it_is_not_ready_before_the_operator_has_seen_the_newest_content(
        self, tell: Tell
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.operator.runs = False
            site.scale(3)
            await site.until(lambda: site.now["seen_revision"] == site.now["revision"])
            await site.until(lambda: "is its operator running?" in site.now["reason"])
            assert site.now["state"] == "scaling"
            site.server.operator.runs = True
            site.server.operator.wake()
            await site.ready()

        tell(told)

    def test_a_head_that_dies_is_recovering_until_kuberay_has_healed_it(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.operator.waits = "ImagePullBackOff"
            site.server.operator.kill(f"{NAME}-head-1")
            await site.until(lambda: site.now["state"] == "recovering")
            pulls = "its pod waits: ImagePullBackOff: it cannot be had"
            await site.until(lambda: pulls in [each["reason"] for each in site.now["machines"]])
            site.server.operator.waits = ""
            site.server.operator.wake()
            await site.ready()
            assert site.server.count("apply") == 1  # KubeRay heals, not we

        tell(told)

    def test_a_suspended_cluster_has_no_machines_until_it_is_resumed(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.declare(suspend=True)
            await site.until(lambda: site.wait("suspended").reached)
            await site.until(lambda: site.now["machines"] == [])
            site.declare()
            await site.ready()

        tell(told)

    def test_what_ends_is_gone_before_its_declaration_is(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.operator.runs = False
            site.delete()
            await site.until(lambda: "foregroundDeletion" in site.wait("deleted").reason)
            assert site.now["state"] == "deleting"
            site.server.operator.runs = True
            site.server.operator.wake()
            await site.gone()
            assert (site.server.stored, site.server.pods) == ({}, {})

        tell(told)

    def test_a_resource_that_another_removes_is_applied_again(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            uid = site.server.document(NAME)["metadata"]["uid"]
            site.server.remove(NAME)
            site.server.pods.clear()
            await site.until(lambda: NAME in site.server.stored)
            assert site.server.document(NAME)["metadata"]["uid"] != uid
            await site.ready()

        tell(told)

    def test_a_key_that_is_not_declared_any_more_goes_and_those_of_others_stay(
        self, tell: Tell
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare(headServiceAnnotations={"a": "1"})
            await site.ready()
            site.server.edit(NAME, ("metadata", "annotations", "theirs"), "x")
            site.declare()
            await site.until(
                lambda: "headServiceAnnotations" not in site.server.document(NAME)["spec"]
            )
            assert site.server.document(NAME)["metadata"]["annotations"]["theirs"] == "x"

        tell(told)

    def test_a_successor_sees_it_and_applies_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def told() -> None:
            async with kuberay_site(tmp_path, monkeypatch) as site:
                async with managed(site.manager()):
                    site.declare()
                    await site.until(lambda: NAME in site.server.stored)  # amid the start
                async with managed(site.manager()):
                    await site.ready()
                    await site.until(lambda: len(site.now["machines"]) == 3)
                names = [each["name"] for each in site.now["machines"]]
                async with managed(site.manager()):
                    lists = site.server.count("list")
                    await site.until(lambda: site.server.count("list") > lists)
                    await site.ready()
                    assert [each["name"] for each in site.now["machines"]] == names
                assert site.server.count("apply") == 1
                assert site.events().count("cluster_ready") == 1

        asyncio.run(told())


class TestOwners:
    def test_a_resource_of_another_owner_is_neither_changed_nor_deleted(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server._keep(NAME, foreign())
            site.declare()
            assert "another RayCluster has this name" in await site.stuck()
            assert site.now["state"] == "failed"
            assert (site.now["machines"], site.now["address"]) == ([], None)
            site.delete()
            await site.gone()
            assert NAME in site.server.stored
            assert not {"apply", "delete"} & set(site.server.calls)

        tell(told)

    @pytest.mark.parametrize("deleted", [True, False], ids=["by a delete", "by an apply"])
    def test_one_that_has_taken_the_name_unseen_is_not_touched(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool
    ) -> None:
        async def told() -> None:
            async with kuberay_site(tmp_path, monkeypatch) as site:
                site.times = KubeRayTimes(resync_s=0.5)
                async with managed(site.manager()):
                    site.declare()
                    await site.ready()
                    lists = site.server.count("list")
                    await site.until(lambda: site.server.count("list") > lists)
                    site.server.silent = True
                    site.server.remove(NAME)
                    site.server._keep(NAME, foreign())
                    theirs = site.server.document(NAME)["metadata"]["uid"]
                    if deleted:
                        site.delete()
                        await site.gone()
                    else:
                        site.scale(4)
                        assert "another RayCluster has this name" in await site.stuck()
                    assert site.server.count("delete" if deleted else "apply") >= 1 + (not deleted)
                    live = site.server.document(NAME)
                    assert live["metadata"]["uid"] == theirs
                    assert live["metadata"]["labels"] == {UID: "another"}

        asyncio.run(told())

    def test_a_conflict_names_the_other_manager_and_its_key(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.edit(
                NAME, ("spec", "workerGroupSpecs", "0", "replicas"), 3, "kubectl-scale"
            )
            reason = await site.stuck()
            assert "kubectl-scale owns .spec.workerGroupSpecs" in reason
            assert site.events("resource_refused") == [site.now["reason"]]
            assert site.server.document(NAME)["spec"]["workerGroupSpecs"][0]["replicas"] == 3
            assert site.server.count("force") == 0
            site.scale(3)  # as the other manager has it: nothing to fight about
            await site.ready()

        tell(told)

    def test_a_key_that_nobody_else_owns_is_set_back(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            resource = site.server.document(NAME)
            resource["metadata"]["labels"].pop(MANAGED_BY)
            site.server.publish("MODIFIED", resource)
            await site.until(lambda: MANAGED_BY in site.server.document(NAME)["metadata"]["labels"])
            because = f"metadata.labels.{MANAGED_BY} is not as declared"
            await site.until(lambda: because in site.events("resource_applied"))

        tell(told)

    def test_rays_own_autoscaler_keeps_its_numbers_when_the_declaration_changes(
        self, tell: Tell
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare(enableInTreeAutoscaling=True)
            await site.ready()
            group = ("spec", "workerGroupSpecs", "0")
            site.server.edit(NAME, (*group, "replicas"), 4, "python-requests")
            await site.until(lambda: site.now["groups"]["small"]["ready"] == 4)
            await site.ready()
            assert site.server.count("apply") == 1
            document = kuberay(enableInTreeAutoscaling=True)
            document["spec"]["workerGroupSpecs"][0]["maxReplicas"] = 9
            site.declare(document)
            await site.ready()
            live = site.server.document(NAME)["spec"]["workerGroupSpecs"][0]
            assert (live["replicas"], live["maxReplicas"]) == (4, 9)
            assert site.server.count("force") == 1

        tell(told)

    def test_a_conflict_ends_when_the_other_manager_gives_in(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            key = ("spec", "workerGroupSpecs", "0", "replicas")
            site.server.edit(NAME, key, 3, "kubectl-scale")
            await site.stuck()
            site.server.edit(NAME, key, 2, "kubectl-scale")  # the declared number again
            await site.ready()
            assert site.server.count("force") == 0

        tell(told)


class TestToken:
    def test_a_cluster_without_authentication_needs_no_token(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            assert environment_of(site.now) == {
                "RAY_ADDRESS": "10.1.0.1:6379",
                "RAY_AUTH_MODE": "disabled",
            }

        tell(told)

    def test_the_token_comes_from_kuberays_secret_and_goes_with_the_cluster(
        self, tell: Tell
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare(authOptions={"mode": "token"})
            await site.until(lambda: site.now["token_file"] is not None)
            file = Path(site.now["token_file"])
            assert file.read_text() == "a secret"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            found = environment_of(site.now)
            assert found is not None
            assert found["RAY_AUTH_TOKEN_PATH"] == str(file)
            site.delete()
            await site.gone()
            assert not file.parent.exists()

        tell(told)

    @pytest.mark.parametrize(
        "options",
        [
            pytest.param({"mode": "disabled"}, id="authentication is off"),
            pytest.param({"enableK8sTokenAuth": True}, id="Kubernetes has the tokens"),
        ],
    )
    def test_no_secret_is_read_where_there_is_none(
        self, tell: Tell, options: dict[str, Any]
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare(authOptions=options)
            await site.ready()
            assert site.server.count("secret") == 0

        tell(told)
