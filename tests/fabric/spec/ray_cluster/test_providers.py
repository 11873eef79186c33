"""Rules of a whole document: names, hosts, counts, and what a provider can follow."""

from __future__ import annotations

from typing import Any

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import UpgradeKind
from fedpilot.fabric.ray.private_ray import FLOOR
from fedpilot.fabric.spec.ray_cluster.providers import OLDEST_RAY
from fedpilot.fabric.spec.ray_cluster.reading import ray_cluster_of
from ray_cluster_documents import (
    HEAD_AT,
    WORKERS_AT,
    Document,
    problems_of,
    ray_cluster,
    warned,
    with_head,
    with_workers,
)

OURS = "spec.fedpilot"


def test_the_oldest_ray_is_that_of_the_fabric() -> None:
    assert ".".join(map(str, OLDEST_RAY)) == FLOOR


class TestNames:
    @pytest.mark.parametrize(
        ("name", "provider"),
        [
            pytest.param("Team-A", "local", id="an upper-case letter"),
            pytest.param("-a", "local", id="a dash first"),
            pytest.param("a" * 64, "local", id="64 characters"),
            pytest.param("a\x1b[2J", "local", id="control codes"),
            pytest.param("a/b", "local", id="a slash"),
            pytest.param("a\n", "local", id="a line break at the end"),
            pytest.param("a" * 54, "kuberay", id="more than KubeRay takes"),
            pytest.param("1a", "kuberay", id="a digit first, in KubeRay"),
        ],
    )
    def test_a_name_is_refused(self, name: str, provider: str) -> None:
        problems = problems_of(ray_cluster(provider) | {"metadata": {"name": name}})
        assert list(problems) == ["metadata.name"]
        assert str(problems["metadata.name"]).replace("\n", "").isprintable()

    def test_a_similar_name_is_proposed(self) -> None:
        problems = problems_of(ray_cluster() | {"metadata": {"name": "Team_A"}})
        assert problems["metadata.name"].nearest == "team-a"

    @pytest.mark.parametrize("name", ["a", "1", "a" * 63, "team-a"])
    def test_a_label_of_dns_is_a_name(self, name: str) -> None:
        declared = ray_cluster_of(ray_cluster() | {"metadata": {"name": name}}).declared
        assert declared.name == name

    @pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "..", "a\x1b[2J", "a" * 64])
    def test_a_group_has_a_name_that_is_a_label(self, name: str) -> None:
        problems = problems_of(with_workers(groupName=name))
        assert list(problems) == [f"{WORKERS_AT}.groupName"]

    @pytest.mark.parametrize("name", ["headgroup", "HeadGroup"])
    def test_no_group_of_workers_is_that_of_the_head(self, name: str) -> None:
        assert list(problems_of(with_workers(groupName=name))) == [f"{WORKERS_AT}.groupName"]

    def test_each_group_has_its_own_name(self) -> None:
        document = ray_cluster()
        document["spec"]["workerGroupSpecs"] *= 2
        problems = problems_of(document)
        assert list(problems) == ["spec.workerGroupSpecs[1].groupName"]
        assert "spec.workerGroupSpecs[0]" in problems["spec.workerGroupSpecs[1].groupName"].allowed


class TestCounts:
    @pytest.mark.parametrize(
        ("keys", "key"),
        [
            pytest.param({"replicas": 0}, "replicas", id="fewer replicas than the minimum"),
            pytest.param({"replicas": 5}, "replicas", id="more replicas than the maximum"),
            pytest.param({"replicas": -1}, "replicas", id="less than no replicas"),
            pytest.param({"replicas": 1.5}, "replicas", id="half a replica"),
            pytest.param({"replicas": True}, "replicas", id="a truth value"),
            pytest.param({"minReplicas": 5}, "minReplicas", id="a minimum above the maximum"),
            pytest.param({"maxReplicas": 2**31}, "maxReplicas", id="more than KubeRay counts"),
            pytest.param({"numOfHosts": 0}, "numOfHosts", id="a replica of no machine"),
        ],
    )
    def test_a_count_is_refused(self, keys: Document, key: str) -> None:
        assert list(problems_of(with_workers(**keys))) == [f"{WORKERS_AT}.{key}"]

    @pytest.mark.parametrize(
        ("provider", "keys", "counts"),
        [
            pytest.param("local", {}, (0, 0, 0), id="none without any number"),
            pytest.param("local", {"minReplicas": 2}, (2, 2, 2), id="the minimum"),
            pytest.param("local", {"replicas": 3}, (3, 0, 3), id="nothing grows unasked"),
            pytest.param("local", {"maxReplicas": 3}, (0, 0, 3), id="room to grow"),
            pytest.param("kuberay", {"replicas": 3}, (3, 0, 2**31 - 1), id="KubeRay's maximum"),
        ],
    )
    def test_counts_that_are_left_out(
        self, provider: str, keys: Document, counts: tuple[int, int, int]
    ) -> None:
        document = with_workers(provider)
        group = document["spec"]["workerGroupSpecs"][0]
        for each in ("replicas", "minReplicas", "maxReplicas"):
            del group[each]
        group |= keys
        (found,) = ray_cluster_of(document).declared.workers
        assert (found.replicas, found.least, found.most) == counts

    @pytest.mark.parametrize("replicas", [0, 2, -1])
    def test_a_cluster_has_one_head(self, replicas: int) -> None:
        assert list(problems_of(with_head(replicas=replicas))) == [f"{HEAD_AT}.replicas"]

    def test_machines_leave_once(self) -> None:
        document = with_workers(scaleStrategy={"workersToDelete": ["a", "b", "a"]})
        assert list(problems_of(document)) == [f"{WORKERS_AT}.scaleStrategy.workersToDelete[2]"]


class TestKubernetesOnly:
    @pytest.mark.parametrize(
        ("document", "key"),
        [
            pytest.param(
                ray_cluster() | {"metadata": {"name": "a", "namespace": "b"}},
                "metadata.namespace",
                id="a namespace",
            ),
            pytest.param(
                ray_cluster() | {"metadata": {"name": "a", "labels": {"b": "c"}}},
                "metadata.labels",
                id="labels of the resource",
            ),
            pytest.param(ray_cluster(authOptions={}), "spec.authOptions", id="authentication"),
            pytest.param(
                ray_cluster(managedBy="ray.io/kuberay-operator"), "spec.managedBy", id="a manager"
            ),
            pytest.param(
                ray_cluster(autoscalerOptions={"version": "v2"}),
                "spec.autoscalerOptions.version",
                id="the version of an autoscaler",
            ),
            pytest.param(
                with_head(enableIngress=True), f"{HEAD_AT}.enableIngress", id="an ingress"
            ),
            pytest.param(with_workers(priority=1), f"{WORKERS_AT}.priority", id="a priority"),
            pytest.param(with_workers(numOfHosts=2), f"{WORKERS_AT}.numOfHosts", id="slices"),
            pytest.param(
                ray_cluster(gcsFaultToleranceOptions={"backend": "rocksdb"}),
                "spec.gcsFaultToleranceOptions.backend",
                id="a store in a volume",
            ),
            pytest.param(
                ray_cluster(gcsFaultToleranceOptions={"redisUsername": {"valueFrom": {}}}),
                "spec.gcsFaultToleranceOptions.redisUsername.valueFrom",
                id="a user from a secret",
            ),
            pytest.param(
                ray_cluster(gcsFaultToleranceOptions={"redisPassword": {"value": "x"}}),
                "spec.gcsFaultToleranceOptions.redisPassword",
                id="a password in the document",
            ),
        ],
    )
    def test_it_is_refused_by_name_elsewhere(self, document: Document, key: str) -> None:
        assert list(problems_of(document)) == [key]


class TestOurs:
    @pytest.mark.parametrize(
        ("provider", "ours", "key"),
        [
            pytest.param("local", {"hosts": ["a"]}, "hosts", id="hosts of this computer"),
            pytest.param("kuberay", {"hosts": ["a"]}, "hosts", id="hosts of Kubernetes"),
            pytest.param("local", {"address": "a:6379"}, "address", id="the address of a new Ray"),
            pytest.param("kuberay", {"maxUnavailable": 2}, "maxUnavailable", id="KubeRay upgrades"),
            pytest.param(
                "kuberay", {"redisPasswordFile": "/a"}, "redisPasswordFile", id="a file in no pod"
            ),
            pytest.param(
                "local", {"redisPasswordFile": "/a"}, "redisPasswordFile", id="no Redis for it"
            ),
            pytest.param("local", {"idleSeconds": -1}, "idleSeconds", id="a time below zero"),
            pytest.param("local", {"maxUnavailable": 0}, "maxUnavailable", id="no upgrade at all"),
            pytest.param("ssh", {"hosts": []}, "hosts", id="no host"),
            pytest.param("ssh", {"hosts": ["a", "b", "A"]}, "hosts[2]", id="a host twice"),
            pytest.param("ssh", {"hosts": ["a", "me@a"]}, "hosts[1]", id="a host as two users"),
            pytest.param("ssh", {"hosts": ["-oProxyCommand=x"]}, "hosts[0]", id="an option"),
            pytest.param("ssh", {"hosts": ["a b"]}, "hosts[0]", id="a space"),
            pytest.param("ssh", {"hosts": ["a\n"]}, "hosts[0]", id="a line break"),
        ],
    )
    def test_it_is_refused(self, provider: str, ours: Document, key: str) -> None:
        problems = problems_of(ray_cluster(provider, fedpilot=ours))
        assert f"{OURS}.{key}" in problems

    def test_an_unknown_provider_shows_the_known_ones(self) -> None:
        problem = problems_of(ray_cluster("kubray"))[f"{OURS}.provider"]
        assert problem.nearest == "kuberay"

    def test_groups_have_the_hosts_of_the_cluster_unless_they_name_some(self) -> None:
        document = ray_cluster("ssh")
        document["spec"]["workerGroupSpecs"][0]["fedpilot"] = {"hosts": ["me@c.example"]}
        declared = ray_cluster_of(document).declared
        assert declared.head.hosts == ("a.example", "b.example")
        assert declared.workers[0].hosts == ("me@c.example",)

    def test_every_group_needs_hosts_over_ssh(self) -> None:
        document = ray_cluster("ssh")
        del document["spec"]["fedpilot"]["hosts"]
        document["spec"]["headGroupSpec"]["fedpilot"] = {"hosts": ["a"]}
        assert list(problems_of(document)) == [f"{WORKERS_AT}.fedpilot.hosts"]

    def test_hosts_have_a_timeout_of_two_seconds_at_least(self) -> None:
        document = ray_cluster("ssh")
        assert ray_cluster_of(document).declared.host_timeout_s == 10
        document["spec"]["fedpilot"]["hostTimeoutSeconds"] = 2
        assert ray_cluster_of(document).declared.host_timeout_s == 2
        document["spec"]["fedpilot"]["hostTimeoutSeconds"] = 1.5
        assert list(problems_of(document)) == ["spec.fedpilot.hostTimeoutSeconds"]
        document = ray_cluster()
        document["spec"]["fedpilot"]["hostTimeoutSeconds"] = 2
        assert list(problems_of(document)) == ["spec.fedpilot.hostTimeoutSeconds"]

    def test_hosts_of_a_group_need_ssh(self) -> None:
        problems = problems_of(with_workers(fedpilot={"hosts": ["a"]}))
        assert list(problems) == [f"{WORKERS_AT}.fedpilot.hosts"]

    def test_times_and_prices_come_from_the_group_before_the_cluster(self) -> None:
        document = with_workers(fedpilot={"drainSeconds": 5, "cost": 2.5}, idleTimeoutSeconds=90)
        document["spec"]["fedpilot"] |= {"idleSeconds": 10, "drainSeconds": 20}
        declared = ray_cluster_of(document).declared
        (workers,) = declared.workers
        assert (workers.idle_s, workers.drain_s, workers.cost) == (90, 5, 2.5)
        assert (declared.head.idle_s, declared.head.drain_s, declared.head.cost) == (10, 20, 1)

    def test_kuberays_spelling_of_the_idle_time_counts_for_all_groups(self) -> None:
        declared = ray_cluster_of(ray_cluster(autoscalerOptions={"idleTimeoutSeconds": 7})).declared
        assert [each.idle_s for each in declared.groups] == [7, 7]

    def test_a_time_is_given_once(self) -> None:
        document = with_workers(fedpilot={"idleSeconds": 1}, idleTimeoutSeconds=1)
        document["spec"]["fedpilot"]["idleSeconds"] = 2
        document["spec"]["autoscalerOptions"] = {"idleTimeoutSeconds": 2}
        assert list(problems_of(document)) == [
            "spec.autoscalerOptions.idleTimeoutSeconds",
            f"{WORKERS_AT}.idleTimeoutSeconds",
        ]


class TestExisting:
    def existing(self, **keys: Any) -> Document:
        spec = {"fedpilot": {"provider": "existing", "address": "head.example:6379"}}
        return {"metadata": {"name": "team-a"}, "spec": spec | keys}

    @pytest.mark.parametrize("address", ["head.example:6379", "10.0.0.1:6379", "[::1]:1", "auto"])
    def test_it_has_an_address_and_no_machines_of_ours(self, address: str) -> None:
        document = self.existing()
        document["spec"]["fedpilot"]["address"] = address
        declared = ray_cluster_of(document).declared
        assert declared.address == address
        assert [each.wanted for each in declared.groups] == [0]

    @pytest.mark.parametrize("address", ["", "head", "head:0", "head:65536", "ray://a:1", "a:1\n"])
    def test_an_address_is_refused(self, address: str) -> None:
        document = self.existing()
        document["spec"]["fedpilot"]["address"] = address
        assert list(problems_of(document)) == [f"{OURS}.address"]

    def test_it_needs_an_address(self) -> None:
        document = self.existing(fedpilot={"provider": "existing"})
        assert list(problems_of(document)) == [f"{OURS}.address"]

    def test_it_may_have_the_file_of_a_token(self) -> None:
        document = self.existing()
        document["spec"]["fedpilot"]["tokenFile"] = "/etc/ray/token"
        assert ray_cluster_of(document).declared.token_file == "/etc/ray/token"
        document["spec"]["fedpilot"]["tokenFile"] = "token"
        assert list(problems_of(document)) == [f"{OURS}.tokenFile"]
        local = ray_cluster(fedpilot={"tokenFile": "/etc/ray/token"})
        assert "existing" in problems_of(local)[f"{OURS}.tokenFile"].allowed

    @pytest.mark.parametrize(
        "key",
        ["headGroupSpec", "gcsFaultToleranceOptions", "upgradeStrategy", "autoscalerOptions"],
    )
    def test_it_declares_nothing_else(self, key: str) -> None:
        assert list(problems_of(self.existing(**{key: {}}))) == [f"spec.{key}"]

    def test_it_has_no_groups(self) -> None:
        document = self.existing(workerGroupSpecs=[{"groupName": "a"}], suspend=True)
        assert list(problems_of(document)) == ["spec.workerGroupSpecs", "spec.suspend"]

    def test_keys_that_say_the_default_are_fine(self) -> None:
        assert not problems_of(self.existing(workerGroupSpecs=[], suspend=False))

    def test_it_has_no_idle_machines(self) -> None:
        document = self.existing()
        document["spec"]["fedpilot"]["idleSeconds"] = 1
        assert list(problems_of(document)) == [f"{OURS}.idleSeconds"]


class TestFaultTolerance:
    def test_an_empty_section_has_a_redis_of_the_provider(self) -> None:
        found = ray_cluster_of(ray_cluster(gcsFaultToleranceOptions={})).declared.fault_tolerance
        assert found is not None
        assert found.redis_address == ""
        assert ray_cluster_of(ray_cluster()).declared.fault_tolerance is None

    def test_a_redis_of_others(self) -> None:
        options = {
            "backend": "redis",
            "redisAddress": "rediss://redis.example:6379",
            "redisUsername": {"value": "ray"},
            "externalStorageNamespace": "team-a",
        }
        ours = {"redisPasswordFile": "/etc/fedpilot/redis"}
        document = ray_cluster(gcsFaultToleranceOptions=options, fedpilot=ours)
        found = ray_cluster_of(document).declared.fault_tolerance
        assert found is not None
        assert found.redis_address == "rediss://redis.example:6379"
        assert (found.username, found.namespace) == ("ray", "team-a")
        assert found.password_file == "/etc/fedpilot/redis"

    @pytest.mark.parametrize("address", ["", "a b", "redis://ray:secret@a:6379", "a\n"])
    def test_an_address_is_refused_and_never_printed_with_a_password(self, address: str) -> None:
        options = {"redisAddress": address}
        problems = problems_of(ray_cluster(gcsFaultToleranceOptions=options))
        assert list(problems) == ["spec.gcsFaultToleranceOptions.redisAddress"]
        assert "secret" not in str(problems)

    @pytest.mark.parametrize("prefix", ["", "a*", "a@b", "a b", "a" * 129])
    def test_a_prefix_that_could_match_the_keys_of_others_is_refused(self, prefix: str) -> None:
        options = {"redisAddress": "a:1", "externalStorageNamespace": prefix}
        problems = problems_of(ray_cluster(gcsFaultToleranceOptions=options))
        assert list(problems) == ["spec.gcsFaultToleranceOptions.externalStorageNamespace"]

    @pytest.mark.parametrize("file", ["redis", "~/redis", "", "/a\nb"])
    def test_the_file_of_the_password_has_an_absolute_path(self, file: str) -> None:
        document = ray_cluster(gcsFaultToleranceOptions={}, fedpilot={"redisPasswordFile": file})
        assert list(problems_of(document)) == [f"{OURS}.redisPasswordFile"]

    def test_a_password_in_a_resource_of_kubernetes_is_a_warning(self) -> None:
        options = {"redisPassword": {"value": "secret"}}
        found = warned(ray_cluster("kuberay", gcsFaultToleranceOptions=options))
        assert list(found) == ["spec.gcsFaultToleranceOptions.redisPassword.value"]


class TestVersions:
    @pytest.mark.parametrize(
        ("version", "provider", "kept", "warns"),
        [
            pytest.param("2.60.0", "local", "2.60.0", False, id="one that fedpilot starts"),
            pytest.param("2.52.0", "local", "2.52.0", False, id="the oldest one"),
            pytest.param("2.51.9", "local", "", True, id="one that is too old has no effect"),
            pytest.param("1.0.1", "kuberay", "1.0.1", False, id="an image has any version"),
        ],
    )
    def test_versions(self, version: str, provider: str, kept: str, warns: bool) -> None:
        document = ray_cluster(provider, rayVersion=version)
        template = ray_cluster_of(document).declared.head.template
        assert template.ray_version == kept
        assert ("spec.rayVersion" in warned(document)) is warns

    @pytest.mark.parametrize("version", ["", "2", "nightly", "2.60.0\n"])
    def test_a_version_is_refused(self, version: str) -> None:
        assert list(problems_of(ray_cluster(rayVersion=version))) == ["spec.rayVersion"]


@pytest.mark.parametrize(
    ("provider", "keys", "kind"),
    [
        pytest.param("local", {}, UpgradeKind.ROLLING, id="a few at a time"),
        pytest.param("kuberay", {}, UpgradeKind.NONE, id="KubeRay leaves machines as they are"),
        pytest.param("local", {"type": "None"}, UpgradeKind.NONE, id="none at all"),
        pytest.param("local", {"type": "Recreate"}, UpgradeKind.RECREATE, id="all at once"),
    ],
)
def test_upgrades(provider: str, keys: Document, kind: UpgradeKind) -> None:
    document = ray_cluster(provider, upgradeStrategy=keys)
    assert ray_cluster_of(document).declared.upgrade is kind


def test_rays_own_autoscaler_would_fill_a_suspended_group() -> None:
    document = with_workers(suspend=True)
    (workers,) = ray_cluster_of(document).declared.workers
    assert workers.wanted == 0
    document["spec"]["enableInTreeAutoscaling"] = True
    assert list(problems_of(document)) == [f"{WORKERS_AT}.suspend"]
