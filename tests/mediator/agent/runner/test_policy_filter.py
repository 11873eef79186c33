"""A site's policy is asked before a spec is checked and before an answer leaves."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path

import pytest

from fedpilot.mediator import Notify, Payload, Promise, SiteContext
from fedpilot.mediator.agent.runner.policy_filter import PolicedSite
from fedpilot.mediator.core.reservation import Answer
from fedpilot.mediator.core.rules.wants import Wants
from fedpilot.mediator.errors import MediatorError, PolicyRefused
from fedpilot.mediator.federation.futures import done
from fedpilot.mediator.federation.site import GangRequest
from fedpilot.mediator.wire.failures import error_of, told

CONTEXT = SiteContext(name="paris", data={"scans": {}})
SPEC = Payload(kind="spec", header={"model": "mlp"})


class FakeWorkload:
    """Wants what its spec says; an answer covers what it says."""

    def wants(self, spec: Payload, site: SiteContext) -> Wants:
        assert site is CONTEXT
        return Wants(model=spec.header["model"], user="mary", datasets=("scans",))

    def covered(self, answer: Payload) -> int:
        return int(answer.header["clients"])


class FakeSite:
    """Remembers what it was asked."""

    name = "paris"

    def __init__(self) -> None:
        self.log: list[str] = []

    def prepare(self, request: GangRequest) -> Future[Answer]:
        return done(lambda: Promise("paris", 2))

    def commit(self) -> Future[None]:
        return done(self.log.append, "commit")

    def release(self) -> Future[None]:
        return done(self.log.append, "release")

    def check(self, workload: str, spec: Payload) -> Future[None]:
        return done(self.log.append, f"check {workload}")

    def start(self, notify: Notify) -> Future[None]:
        return done(self.log.append, "start")

    def deliver(self, order: Payload, key: str, purpose: str) -> Future[Payload]:
        return done(lambda: order)


class Lab:
    """A policed site whose policy changes."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "policy.yaml"
        self.inner = FakeSite()
        self.allow(datasets={"scans": {"users": ["mary"]}})
        self.site = PolicedSite(
            self.inner, CONTEXT, self.file, lambda name: FakeWorkload()  # type: ignore[arg-type, return-value]
        )  # fmt: skip

    def allow(self, **rules: object) -> None:
        self.file.write_text(json.dumps(rules))


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path)


def test_what_the_policy_allows_is_done(lab: Lab) -> None:
    site = lab.site
    assert site.prepare(GangRequest(name="g", resources={})).result() == Promise("paris", 2)
    site.commit().result()
    site.check("federated", SPEC).result()
    site.start(lambda event: None).result()
    order = Payload(kind="round", header={"clients": 1})
    assert site.deliver(order, "k", "training").result() is order
    site.release().result()
    assert lab.inner.log == ["commit", "check federated", "start", "release"]
    assert site.name == "paris"


def test_what_is_refused_is_never_checked(lab: Lab) -> None:
    lab.allow(models=["cnn"])
    with pytest.raises(PolicyRefused, match=r"policy of site paris .* rule models: found mlp"):
        lab.site.check("federated", SPEC).result()
    assert lab.inner.log == []


def test_a_rule_holds_from_when_it_is_written(lab: Lab) -> None:
    lab.site.check("federated", SPEC).result()
    order = Payload(kind="round", header={"clients": 3})
    lab.site.deliver(order, "1", "training").result()
    lab.allow(minimum_cohort=4, datasets={"scans": {"users": ["mary"]}})
    with pytest.raises(PolicyRefused, match="an answer of 3 clients; allowed is at least 4"):
        lab.site.deliver(order, "2", "training").result()
    nobody = Payload(kind="round", header={"clients": 0})
    assert lab.site.deliver(nobody, "3", "training").result() is nobody


def test_a_run_under_way_does_nothing_more_once_it_may_not(lab: Lab) -> None:
    lab.site.check("federated", SPEC).result()
    lab.allow(datasets={"scans": {"users": ["bob"]}})
    lab.inner.deliver = lambda *_: pytest.fail("it is not even begun")  # type: ignore[method-assign]
    with pytest.raises(PolicyRefused, match=r"rule datasets\.scans\.users: found mary"):
        lab.site.deliver(Payload(kind="round", header={"clients": 3}), "1", "x").result()


def test_while_the_file_is_wrong_all_is_refused_and_none_of_it_is_told(lab: Lab) -> None:
    lab.site.check("federated", SPEC).result()
    lab.allow(minimum_cohrt=4)
    order = Payload(kind="round", header={"clients": 3})
    with pytest.raises(PolicyRefused, match=r"rule policy\.yaml: .* own log") as caught:
        lab.site.deliver(order, "1", "training").result()
    assert "cohrt" not in str(caught.value)


def test_without_a_file_declared_data_is_nobodys() -> None:
    inner = FakeSite()
    site = PolicedSite(inner, CONTEXT, None, lambda name: FakeWorkload())  # type: ignore[arg-type, return-value]
    with pytest.raises(PolicyRefused, match="rule datasets: found data set scans"):
        site.check("federated", SPEC).result()


def test_nothing_leaves_that_was_not_checked(lab: Lab) -> None:
    with pytest.raises(MediatorError, match="before it was checked"):
        lab.site.deliver(Payload(kind="round", header={"clients": 9}), "k", "training").result()


def test_a_refusal_arrives_as_itself() -> None:
    refused = PolicyRefused("paris", "models", "mlp", "cnn")
    found = error_of("paris", told(refused))
    assert isinstance(found, PolicyRefused)
    assert (str(found), found.exits_with) == (str(refused), 3)
