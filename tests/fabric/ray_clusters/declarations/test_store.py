"""The store keeps what it has answered, and refuses who saw another state or lost its lease."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedpilot.fabric.core.ray_clusters.declaration import MachineName, RayClusterName
from fedpilot.fabric.errors import Conflict, FabricError, Fenced, NoSuchRayCluster, SpecError
from fedpilot.fabric.ray_clusters.declarations import store_file, store_rows
from fedpilot.fabric.ray_clusters.declarations.records import (
    UNDECLARED,
    Lease,
    RayClusterUid,
    Revision,
    RoleName,
    StoredDeclaration,
    UntoldEvent,
)
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore

TEAM, OTHER = RayClusterName("team"), RayClusterName("other")
MANAGER = RoleName("manager")
NOWHERE = RayClusterUid("nowhere")
M1, M2 = MachineName("m1"), MachineName("m2")
DOCUMENT = {"kind": "RayCluster", "spec": {"workerGroupSpecs": [{"replicas": 1}]}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RayClusterStore]:
    with RayClusterStore(tmp_path / "declared.sqlite") as store:
        yield store


def declare(store: RayClusterStore, name: RayClusterName = TEAM) -> StoredDeclaration:
    return store.apply(name, DOCUMENT, saw=UNDECLARED, by="ann", at=1.0)


def lease(store: RayClusterStore, holder: str = "first") -> Lease:
    found = store.acquire(MANAGER, holder)
    assert found is not None
    return found


def removed(store: RayClusterStore, mine: Lease, name: RayClusterName) -> StoredDeclaration:
    there = declare(store, name)
    store.delete(name, saw=there.revision, by="ann", at=2.0)
    assert store.finish(mine, name, there.uid)
    return there


def test_a_declaration_is_kept_as_it_was_given(store: RayClusterStore) -> None:
    written = declare(store)
    with RayClusterStore(store.path) as again:
        assert again.find(TEAM) == written
    assert (written.document, written.by, written.at) == (DOCUMENT, "ann", 1.0)
    assert list(written.document) == list(DOCUMENT)
    assert not written.deleted


def test_each_write_has_the_next_number_of_the_store(store: RayClusterStore) -> None:
    first, second = declare(store), declare(store, OTHER)
    third = store.apply(TEAM, {"spec": {}}, saw=first.revision, by="bob", at=2.0)
    fourth = store.delete(OTHER, saw=second.revision, by="bob", at=3.0)
    revisions = [each.revision for each in (first, second, third, fourth)]
    assert revisions == sorted(set(revisions))
    assert (third.uid, third.by, third.at) == (first.uid, "bob", 2.0)
    assert (fourth.deleted, fourth.by, fourth.at) == (True, "bob", 3.0)
    assert store.declarations() == (fourth, third)


@pytest.mark.parametrize(
    ("document", "changes"),
    [
        pytest.param(dict(reversed(DOCUMENT.items())), False, id="another order of keys"),
        pytest.param({"a": True}, True, id="true in place of 1"),
        pytest.param({"a": 1.0}, True, id="1.0 in place of 1"),
    ],
)
def test_an_equal_document_changes_nothing(
    store: RayClusterStore, document: dict[str, Any], changes: bool
) -> None:
    first = store.apply(
        TEAM, {"a": 1} if "a" in document else DOCUMENT, saw=UNDECLARED, by="ann", at=1.0
    )
    second = store.apply(TEAM, document, saw=first.revision, by="bob", at=2.0)
    assert (second != first) == changes
    assert store.find(TEAM) == second
    assert store.changes_since(first.revision).declarations == ((second,) if changes else ())


@pytest.mark.parametrize("saw", [0, 1, 3, 4])
def test_who_saw_another_revision_is_refused_with_both(store: RayClusterStore, saw: int) -> None:
    declare(store, OTHER)
    there = declare(store)
    assert there.revision == 2
    acts: tuple[Callable[[], object], ...] = (
        lambda: store.apply(TEAM, {"a": 1}, saw=Revision(saw), by="bob", at=2.0),
        lambda: store.delete(TEAM, saw=Revision(saw), by="bob", at=2.0),
    )
    for act in acts:
        with pytest.raises(Conflict) as refused:
            act()
        assert (refused.value.saw, refused.value.found, refused.value.by) == (saw, 2, "ann")
    assert store.find(TEAM) == there


def test_what_is_not_declared_is_neither_changed_nor_deleted(store: RayClusterStore) -> None:
    declare(store, OTHER)
    with pytest.raises(Conflict) as refused:
        store.apply(TEAM, DOCUMENT, saw=Revision(1), by="ann", at=1.0)
    assert refused.value.found == 0
    with pytest.raises(NoSuchRayCluster, match="there are: other"):
        store.delete(TEAM, saw=Revision(1), by="ann", at=1.0)


@pytest.mark.parametrize(
    ("name", "document", "told"),
    [
        pytest.param("", {}, "no name", id="a name is not empty"),
        pytest.param("a\udc80", {}, "no name", id="a name is text"),
        pytest.param("team", {"a": {1, 2}}, "no JSON", id="a document has no sets"),
        pytest.param("team", {"a": float("nan")}, "no JSON", id="a document's numbers are numbers"),
    ],
)
def test_what_cannot_be_kept_is_refused(
    store: RayClusterStore, name: str, document: dict[str, Any], told: str
) -> None:
    with pytest.raises(SpecError, match=told):
        store.apply(RayClusterName(name), document, saw=UNDECLARED, by="ann", at=1.0)
    assert store.declarations() == ()


def test_a_deleted_declaration_stays_as_it_is_until_its_machines_have_ended(
    store: RayClusterStore,
) -> None:
    mine, there = lease(store), declare(store)
    store.remember(mine, there.uid, {}, {M1: {"pid": 7}})
    with pytest.raises(FabricError, match="not marked for deletion"):
        store.finish(mine, TEAM, there.uid)
    marked = store.delete(TEAM, saw=there.revision, by="bob", at=2.0)
    assert store.delete(TEAM, saw=there.revision, by="eve", at=3.0) == marked
    with pytest.raises(Conflict, match="is being deleted"):
        store.apply(TEAM, DOCUMENT, saw=marked.revision, by="ann", at=4.0)
    with pytest.raises(FabricError, match=r"still has machines \(m1\)"):
        store.finish(mine, TEAM, there.uid)
    assert store.find(TEAM) == marked
    store.remember(mine, there.uid, {}, {M1: None})
    assert store.finish(mine, TEAM, there.uid)
    assert store.find(TEAM) is None


def test_declared_again_a_ray_cluster_is_another(store: RayClusterStore) -> None:
    mine = lease(store)
    first = declare(store)
    store.remember(mine, first.uid, {"next": 5}, {})
    store.put_status(mine, first.uid, {"state": "ready"})
    store.add_event(mine, first.uid, at=1.0, kind="started")
    store.delete(TEAM, saw=first.revision, by="ann", at=2.0)
    assert store.finish(mine, TEAM, first.uid)
    second = declare(store)
    assert second.uid != first.uid
    assert not store.finish(mine, TEAM, first.uid)
    assert store.find(TEAM) == second
    for uid in (first.uid, second.uid):
        assert (store.status(uid), store.events(uid), store.machines(uid)) == (None, (), {})
        assert store.memory(uid) is None


def test_nothing_stays_of_a_ray_cluster_but_that_it_has_gone(store: RayClusterStore) -> None:
    mine, there = lease(store), declare(store)
    store.remember(mine, there.uid, {"next": 1}, {})
    store.put_status(mine, there.uid, {})
    store.add_event(mine, there.uid, at=1.0, kind="started")
    store.delete(TEAM, saw=there.revision, by="ann", at=2.0)
    assert store.finish(mine, TEAM, there.uid)
    with closing(sqlite3.connect(store.path)) as file:
        dump = "".join(file.iterdump())
    assert dump.count(there.uid) == 1


def test_who_asks_since_a_revision_learns_what_has_gone(store: RayClusterStore) -> None:
    mine, there = lease(store), declare(store)
    gone = removed(store, mine, OTHER)
    changes = store.changes_since(there.revision)
    assert (changes.declarations, changes.removed, changes.whole) == ((), (gone.uid,), False)
    assert changes.revision > gone.revision
    later = store.changes_since(changes.revision)
    assert (later.declarations, later.removed, later.whole) == ((), (), False)


def test_who_asks_since_too_long_ago_gets_all(
    store: RayClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_rows, "MOST_REMOVED", 2)
    mine, there = lease(store), declare(store)
    gone = [removed(store, mine, OTHER) for _ in range(3)]
    old = store.changes_since(there.revision)
    assert (old.declarations, old.removed, old.whole) == ((there,), (), True)
    recent = store.changes_since(gone[1].revision)
    assert (recent.removed, recent.whole) == ((gone[1].uid, gone[2].uid), False)
    assert store.changes_since(Revision(10_000)).whole


def test_a_machine_is_remembered_until_it_is_dropped(store: RayClusterStore) -> None:
    mine, there = lease(store), declare(store)
    store.remember(mine, there.uid, {"next": 3}, {M2: {"pid": 2}, M1: {"pid": 1}})
    store.remember(mine, there.uid, {}, {M1: {"pid": 3}})
    assert store.machines(there.uid) == {M1: {"pid": 3}, M2: {"pid": 2}}
    assert list(store.machines(there.uid)) == [M1, M2]
    assert store.memory(there.uid) == {}
    store.remember(mine, there.uid, {}, {M1: None})
    store.remember(mine, there.uid, {}, {M1: None})
    assert store.machines(there.uid) == {M2: {"pid": 2}}
    assert store.find(TEAM) == there


def test_a_status_is_no_change_of_the_declaration(store: RayClusterStore) -> None:
    mine, there = lease(store), declare(store)
    assert store.status(there.uid) is None
    assert store.put_status(mine, there.uid, {"state": "ready"})
    assert not store.put_status(mine, there.uid, {"state": "ready"})
    assert store.statuses() == {there.uid: {"state": "ready"}}
    assert store.find(TEAM) == there
    assert store.changes_since(there.revision).declarations == ()
    assert store.apply(TEAM, {}, saw=there.revision, by="ann", at=2.0).revision > there.revision


def test_the_oldest_events_of_a_ray_cluster_go(
    store: RayClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedpilot.fabric.ray_clusters.declarations.store_rows.MOST_EVENTS", 3)
    mine, there, other = lease(store), declare(store), declare(store, OTHER)
    kept = store.add_event(mine, other.uid, at=0.0, kind="started")
    added = [
        store.add_event(mine, there.uid, at=float(at), kind="lost", machine=M1, reason="\udc80")
        for at in range(5)
    ]
    assert added[0].reason == "?"
    assert store.events(there.uid) == tuple(added[2:])
    assert store.events(there.uid, since=added[3].id) == (added[4],)
    assert store.events(other.uid) == (kept,)
    assert store_file.MOST_EVENTS == 1_000


def test_a_role_has_one_holder_and_each_a_higher_fence(store: RayClusterStore) -> None:
    first = lease(store)
    with RayClusterStore(store.path) as second:
        assert second.acquire(MANAGER, "second") is None
        assert store.acquire(MANAGER, "itself") is None
        assert second.acquire(RoleName("autoscaler"), "second") is not None
        assert second.last_lease(MANAGER) == first
        store.release(first)
        assert second.last_lease(MANAGER) is None
        later = second.acquire(MANAGER, "second")
        assert later is not None
        assert later.fence > first.fence
        store.release(first)
        assert second.last_lease(MANAGER) == later
        store.check(later)
    assert lease(store, "third").fence > later.fence


def test_a_lease_that_is_released_twice_does_not_end_the_next_one(store: RayClusterStore) -> None:
    first = lease(store)
    store.release(first)
    second = lease(store)
    store.release(first)
    store.check(second)
    with RayClusterStore(store.path) as other:
        assert other.acquire(MANAGER, "other") is None


@pytest.mark.parametrize("role", ["", "Manager", "a/b", "..", "manager\n"])
def test_a_role_is_a_word(store: RayClusterStore, role: str) -> None:
    with pytest.raises(ValueError, match="a role is a word"):
        store.acquire(RoleName(role), "first")


def test_a_lease_names_its_holder(store: RayClusterStore) -> None:
    with pytest.raises(ValueError, match="a holder"):
        store.acquire(MANAGER, "")


@pytest.mark.parametrize("how", ["released", "taken over"])
def test_a_fenced_write_changes_nothing(store: RayClusterStore, how: str) -> None:
    old, there = lease(store), declare(store)
    store.remember(old, there.uid, {}, {M1: {"pid": 1}})
    store.release(old)
    by = "" if how == "released" else lease(store, "second").holder
    before = store.changes_since(UNDECLARED)
    for act in (
        lambda: store.remember(old, there.uid, {"next": 1}, {M1: {"pid": 2}}),
        lambda: store.remember(old, there.uid, {}, {M1: None}),
        lambda: store.put_status(old, there.uid, {"state": "ready"}),
        lambda: store.add_event(old, there.uid, at=1.0, kind="lost"),
        lambda: store.finish(old, TEAM, there.uid),
        lambda: store.check(old),
    ):
        with pytest.raises(Fenced) as refused:
            act()
        assert (refused.value.fence, refused.value.by) == (old.fence, by)
    assert (store.memory(there.uid), store.machines(there.uid)) == ({}, {M1: {"pid": 1}})
    assert store.changes_since(UNDECLARED) == before
    assert (store.status(there.uid), store.events(there.uid)) == (None, ())


def test_nothing_is_remembered_of_a_ray_cluster_that_is_not_declared(
    store: RayClusterStore,
) -> None:
    mine = lease(store)
    for act in (
        lambda: store.remember(mine, NOWHERE, {}, {M1: {}}),
        lambda: store.put_status(mine, NOWHERE, {}),
        lambda: store.add_event(mine, NOWHERE, at=1.0, kind="lost"),
    ):
        with pytest.raises(NoSuchRayCluster):
            act()
    assert (store.machines(NOWHERE), store.statuses()) == ({}, {})


def test_of_two_threads_at_the_same_revision_one_wins(store: RayClusterStore) -> None:
    there, together = declare(store), threading.Barrier(4)

    def write(number: int) -> bool:
        together.wait()
        try:
            store.apply(TEAM, {"by": number}, saw=there.revision, by=str(number), at=2.0)
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(write, range(4)))
    found = store.find(TEAM)
    assert found is not None
    assert won.count(True) == 1
    assert found.document == {"by": won.index(True)}


def test_threads_share_a_store(store: RayClusterStore) -> None:
    mine, there = lease(store), declare(store)

    def add(number: int) -> int:
        return store.add_event(mine, there.uid, at=1.0, kind="tick", reason=str(number)).id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(add, range(120)))
    assert len({*ids}) == 120
    told = {each.id: each.reason for each in store.events(there.uid)}
    assert told == {id: str(number) for number, id in enumerate(ids)}


def test_machines_and_what_tells_of_them_are_written_together(store: RayClusterStore) -> None:
    mine, there = lease(store), declare(store)
    came, went = (UntoldEvent(at=1.0, kind=kind, machine=M1) for kind in ("came", "went"))
    store.remember(mine, there.uid, {}, {M1: {}}, [came, went])
    told = store.events(there.uid)
    assert [(each.kind, each.machine) for each in told] == [("came", M1), ("went", M1)]
    assert told[0].id < told[1].id
    unkept = UntoldEvent(at=1.0, kind="lost", reason=object())  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        store.remember(mine, there.uid, {"next": 1}, {M1: None}, [came, unkept])
    assert store.machines(there.uid) == {M1: {}}
    assert store.events(there.uid) == told


def test_a_failed_write_leaves_the_store_usable(store: RayClusterStore) -> None:
    mine, there = lease(store), declare(store)
    with pytest.raises(TypeError):
        store.remember(mine, there.uid, {}, {M1: {}, M2: {"a": object()}})
    assert store.machines(there.uid) == {}
    store.remember(mine, there.uid, {}, {M1: {}})
