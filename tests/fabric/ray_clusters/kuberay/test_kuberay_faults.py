"""What goes wrong between a site and the API server: each fault has a reason, and an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fake_site import managed
from fedpilot.fabric.ray_clusters.kuberay.kuberay_cluster import KubeRayTimes
from kube_server import NAMESPACE, kubeconfig
from kuberay_site import KubeRaySite, kuberay, kuberay_site, story
from operated_site import NAME

Told = Callable[[KubeRaySite], Awaitable[None]]
Tell = Callable[[Told], None]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    return lambda told: story(tmp_path, monkeypatch, told)


@pytest.fixture
def told_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Tells of a site that reads all again after moments, and has little patience."""

    def run(told: Told) -> None:
        async def tell() -> None:
            async with kuberay_site(tmp_path, monkeypatch) as site:
                site.times = KubeRayTimes(call_s=0.3, resync_s=0.3)
                async with managed(site.manager()):
                    await told(site)

        asyncio.run(tell())

    return run


class TestRefusals:
    """Answers that stay the same until a person changes something."""

    @pytest.mark.parametrize(
        ("call", "status", "message", "reason"),
        [
            pytest.param(
                "list",
                403,
                'rayclusters.ray.io is forbidden: user "me" cannot list',
                'refuses to read demo: rayclusters.ray.io is forbidden: user "me" cannot list',
                id="the account may not read",
            ),
            pytest.param(
                "apply",
                403,
                "it is forbidden",
                "refuses to apply demo: it is forbidden",
                id="the account may not write",
            ),
            pytest.param(
                "list", 401, "Unauthorized", "does not accept these credentials", id="a stranger"
            ),
            pytest.param(
                "apply",
                422,
                "spec.managedBy: the managedBy field is immutable",
                "which is not valid: spec.managedBy: the managedBy field is immutable",
                id="KubeRay refuses the content",
            ),
            pytest.param(
                "apply",
                400,
                'strict decoding error: unknown field "spec.tlsOptions"',
                'unknown field "spec.tlsOptions"',
                id="an older KubeRay does not know a key",
            ),
        ],
    )
    def test_a_wait_ends_with_the_reason_and_the_cluster_comes_when_it_is_mended(
        self, tell: Tell, call: str, status: int, message: str, reason: str
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail(call, status, message=message)
            site.declare()
            assert reason in await site.stuck()
            assert site.now["state"] == "failed"
            assert len(site.events("resource_refused")) == 1
            site.server.heal()
            await site.ready()

        tell(told)

    def test_kuberay_that_is_not_installed_is_named(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.installed = False
            site.declare()
            assert "KubeRay is not installed there" in await site.stuck()
            site.server.installed = True
            await site.ready()

        tell(told)

    def test_what_was_never_installed_can_be_deleted(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.installed = False
            site.declare()
            await site.stuck()
            site.delete()
            await site.gone()

        tell(told)

    def test_a_refused_change_leaves_what_runs_and_another_change_is_tried_at_once(
        self, tell: Tell
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            fault = site.server.fail("apply", 422, message="no")
            site.scale(3)
            assert "which is not valid: no" in await site.stuck()
            assert site.now["state"] == "scaling"
            assert site.now["groups"]["small"]["ready"] == 2
            fault.times = 0
            site.scale(4)
            await site.ready()

        tell(told)

    def test_a_delete_that_is_refused_ends_the_wait_and_is_tried_again(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.fail("delete", 403, message="you may not")
            site.delete()
            await site.until(lambda: "you may not" in site.wait("deleted").never)
            site.server.heal()
            await site.gone()
            assert site.server.stored == {}

        tell(told)

    def test_a_kubeconfig_without_the_context_is_named(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare(kuberay(fedpilot={"kubeContext": "elsewhere"}))
            reason = await site.stuck()
            assert "the kubeconfig cannot be used" in reason
            assert "elsewhere" in reason

        tell(told)

    def test_where_a_kubeconfig_is_missing_is_said(
        self, tell: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
            site.declare()
            reason = await site.stuck()
            assert f"there is none at {tmp_path / 'nowhere'}" in reason

        tell(told)

    def test_a_namespace_that_is_not_there_is_named(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            missing = {
                "kind": "Status",
                "reason": "NotFound",
                "message": 'namespaces "team" not found',
                "details": {"name": NAMESPACE, "kind": "namespaces"},
                "code": 404,
            }
            site.server.fail("apply", 404, document=missing)
            site.declare()
            assert 'refuses to apply demo: namespaces "team" not found' in await site.stuck()

        tell(told)

    def test_credentials_are_read_again_after_they_were_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def told() -> None:
            async with kuberay_site(tmp_path, monkeypatch) as site:
                config = tmp_path / "kubeconfig"
                config.write_text(kubeconfig(site.server.url, token="old"))
                async with managed(site.manager()):
                    site.declare()
                    await site.stuck()
                    config.write_text(kubeconfig(site.server.url))
                    await site.ready()

        asyncio.run(told())


class TestPassing:
    """Faults that pass by themselves."""

    @pytest.mark.parametrize("call", ["list", "watch", "apply", "pods"])
    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_a_busy_or_broken_server_is_asked_again(
        self, tell: Tell, call: str, status: int
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail(call, status, times=3)
            site.declare()
            await site.ready()
            await site.until(lambda: len(site.now["machines"]) == 3)

        tell(told)

    def test_a_delete_is_asked_for_again(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.fail("delete", 500, times=2)
            site.delete()
            await site.gone()
            assert site.server.count("delete") == 3

        tell(told)

    def test_the_pause_that_a_server_asks_for_is_kept(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail("apply", 429, headers={"Retry-After": "1"}, times=1)
            site.declare()
            await site.until(lambda: "has too much to do" in site.now["reason"])
            await asyncio.sleep(0.5)
            assert site.server.count("apply") == 1
            await site.ready()

        tell(told)

    def test_a_server_that_stays_away_ends_the_wait(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail("list", 500, message="etcd has no leader")
            site.declare()
            assert "etcd has no leader" in await site.stuck()
            site.server.heal()
            await site.ready()

        tell(told)

    def test_a_cluster_that_serves_stays_as_it_was_seen_while_the_server_is_away(
        self, told_quickly: Tell
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.fail("list", 500, message="etcd has no leader")
            site.server.fail("watch", 500)
            await site.until(lambda: "etcd has no leader" in site.now["reason"])
            assert site.now["state"] == "ready"
            assert len(site.now["machines"]) == 3

        told_quickly(told)

    def test_a_server_that_hangs_costs_a_deadline_and_no_more(self, told_quickly: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail("list", slow_s=20)
            site.declare()
            assert "did not answer within 0.3 s to read demo" in await site.stuck()
            site.server.heal()
            await site.ready()

        told_quickly(told)

    def test_an_apply_that_was_done_without_an_answer_is_no_other_apply(
        self, told_quickly: Tell
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail("apply", slow_s=0.6, times=1)  # it is done after the deadline
            site.declare()
            await site.ready()
            assert len(site.server.stored) == 1

        told_quickly(told)

    def test_a_server_that_cannot_be_reached_ends_the_wait(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare(kuberay(fedpilot={"kubeContext": "other"}))
            assert "cannot reach the API server" in await site.stuck()

        tell(told)

    @pytest.mark.parametrize(
        "nonsense",
        [
            pytest.param({"kind": "Odd"}, id="no list"),
            pytest.param({"metadata": {}, "items": [{"metadata": {"name": NAME}}]}, id="no spec"),
            pytest.param({"metadata": {}, "items": [1, None, "x"]}, id="no resources"),
        ],
    )
    def test_an_answer_that_is_no_kubernetes_does_no_harm(
        self, tell: Tell, nonsense: dict[str, object]
    ) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail("list", 200, document=nonsense, times=2)
            site.declare()
            await site.ready()

        tell(told)


class TestWatches:
    def test_a_dropped_watch_goes_on_from_where_it_was(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            lists, watches = site.server.count("list"), site.server.count("watch")
            site.server.silent = True  # what happens meanwhile is in the resumed watch
            site.scale(3)
            await site.until(lambda: site.server.count("apply") == 2)
            site.server.silent = False
            site.server.drop_watches()
            await site.ready()
            assert site.server.count("watch") > watches
            assert site.server.count("list") == lists

        tell(told)

    def test_a_forgotten_version_is_listed_again(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            lists = site.server.count("list")
            site.server.version += 10
            site.server.forget_versions()
            site.scale(3)
            await site.ready()
            assert site.server.count("list") > lists

        tell(told)

    def test_a_watch_that_answers_410_is_listed_again(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail("watch", 410, message="Gone", times=3)
            site.declare()
            await site.ready()
            await site.until(lambda: site.server.count("watch") > 3)
            assert site.now["reason"] == ""
            reads = [each for each in site.server.calls if each in ("list", "watch")]
            assert reads[:6] == ["list", "watch"] * 3

        tell(told)

    def test_events_that_never_come_are_seen_at_the_next_reading(self, told_quickly: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.silent = True
            site.declare()
            await site.ready()
            site.delete()
            await site.gone()

        told_quickly(told)

    def test_watches_that_end_at_once_do_not_make_it_ask_without_a_pause(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.declare()
            await site.ready()
            site.server.fail("watch", 200, document={})  # an end without an event
            site.server.drop_watches()
            before = len(site.server.calls)
            await asyncio.sleep(0.5)
            assert len(site.server.calls) - before < 60  # 3 calls each 0.1 s, and some

        tell(told)


class TestPods:
    def test_pods_that_may_not_be_listed_leave_the_counts_of_kuberay(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.fail("pods", 403, message="pods is forbidden")
            site.declare()
            await site.ready()
            await site.until(lambda: "pods is forbidden" in site.now["reason"])
            assert site.now["machines"] == []
            counts = {name: each["ready"] for name, each in site.now["groups"].items()}
            assert counts == {"headgroup": 1, "small": 2}

        tell(told)

    def test_why_kuberay_makes_no_pods_is_told(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.operator.refuses = "exceeded quota: cpu"
            site.declare()
            await site.until(lambda: "FailedCreate: exceeded quota: cpu" in site.now["reason"])
            assert site.wait().reason.endswith("exceeded quota: cpu")
            site.server.operator.refuses = ""
            site.server.operator.wake()
            await site.ready()

        tell(told)

    def test_a_kuberay_without_conditions_is_understood(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.operator.conditions = False
            site.declare()
            await site.ready()

        tell(told)

    def test_a_secret_without_a_token_is_named(self, tell: Tell) -> None:
        async def told(site: KubeRaySite) -> None:
            site.server.secrets["mine"] = {"other": "x"}
            site.declare(authOptions={"mode": "token", "secretName": "mine"})
            await site.ready()
            await site.until(lambda: "has no key `auth_token`" in site.now["reason"])
            assert site.now["token_file"] is None

        tell(told)
