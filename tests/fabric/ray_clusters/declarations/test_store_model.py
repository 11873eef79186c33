"""Whatever happens in whatever order, the store holds what plain dictionaries would."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from fedpilot.fabric.core.ray_clusters.declaration import MachineName, RayClusterName
from fedpilot.fabric.errors import Conflict, FabricError, Fenced, NoSuchRayCluster
from fedpilot.fabric.ray_clusters.declarations.records import (
    UNDECLARED,
    Lease,
    RayClusterEvent,
    RayClusterUid,
    Revision,
    RoleName,
    StoredDeclaration,
)
from fedpilot.fabric.ray_clusters.declarations.store import RayClusterStore

NAMES = st.sampled_from([RayClusterName("a"), RayClusterName("b")])
MACHINES = st.sampled_from([MachineName("m1"), MachineName("m2")])
JSON = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2),
        max_leaves=3,
    ),
    max_size=2,
)
SAW = st.sampled_from(["now", "before", "never"])
ROLE = RoleName("manager")
MEMORY = Path("/dev/shm")
"""A file system whose syncs take no time."""


class Model(RuleBasedStateMachine):
    """The store beside dictionaries; `leases` has the current one and earlier ones."""

    leases: Bundle[Lease] = Bundle("leases")

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.store = RayClusterStore(self.folder / "declared.sqlite")
        self.declared: dict[RayClusterName, StoredDeclaration] = {}
        self.machines: dict[RayClusterUid, dict[MachineName, dict[str, Any]]] = {}
        self.statuses: dict[RayClusterUid, dict[str, Any]] = {}
        self.events: dict[RayClusterUid, list[RayClusterEvent]] = {}
        self.memories: dict[RayClusterUid, dict[str, Any]] = {}
        self.newest: Lease | None = None
        self.held = False
        self.fence = 0
        self.last = UNDECLARED
        self.asked = UNDECLARED
        self.mirror: dict[RayClusterUid, StoredDeclaration] = {}

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.folder)

    def revision(self, name: RayClusterName, saw: str) -> Revision:
        there = self.declared.get(name)
        if saw == "never" or there is None:
            return UNDECLARED if saw != "before" else Revision(self.last + 1)
        return there.revision if saw == "now" else Revision(there.revision - 1)

    @rule(name=NAMES, document=JSON, saw=SAW)
    def apply(self, name: RayClusterName, document: dict[str, Any], saw: str) -> None:
        there, revision = self.declared.get(name), self.revision(name, saw)
        may = (there.revision if there else 0) == revision and not (there and there.deleted)
        if not may:
            with pytest.raises(Conflict) as refused:
                self.store.apply(name, document, saw=revision, by="ann", at=1.0)
            found = there.revision if there else UNDECLARED
            assert (refused.value.saw, refused.value.found) == (revision, found)
            return
        written = self.store.apply(name, document, saw=revision, by="ann", at=1.0)
        assert written.document == document
        if there is None:
            assert written.uid not in self.machines
            self.machines[written.uid], self.events[written.uid] = {}, []
        elif written.revision == there.revision:
            assert written == there
            return
        assert written.revision > self.last
        self.last = written.revision
        self.declared[name] = written

    @rule(name=NAMES, saw=SAW)
    def delete(self, name: RayClusterName, saw: str) -> None:
        there, revision = self.declared.get(name), self.revision(name, saw)
        try:
            marked = self.store.delete(name, saw=revision, by="bob", at=2.0)
        except NoSuchRayCluster:
            assert there is None
        except Conflict:
            assert there is not None
            assert not there.deleted
            assert there.revision != revision
        else:
            assert there is not None
            assert marked.deleted
            assert marked.uid == there.uid
            if there.deleted:
                assert marked == there
            else:
                assert marked.revision > self.last
                self.last = marked.revision
            self.declared[name] = marked

    @rule(target=leases)
    def take_over(self) -> Lease:
        if self.newest is not None and self.held:
            assert self.store.acquire(ROLE, "another") is None
            self.store.release(self.newest)
        lease = self.store.acquire(ROLE, f"holder {self.fence}")
        assert lease is not None
        assert lease.fence > self.fence
        self.fence, self.newest, self.held = lease.fence, lease, True
        return lease

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        self.store.release(lease)
        if lease == self.newest:
            self.newest, self.held = None, False

    @rule(lease=leases, name=NAMES)
    def finish(self, lease: Lease, name: RayClusterName) -> None:
        there = self.declared.get(name)
        uid = there.uid if there else RayClusterUid("gone")
        try:
            went = self.store.finish(lease, name, uid)
        except Fenced:
            assert lease != self.newest
        except FabricError:
            assert there is not None
            assert not there.deleted or self.machines[uid]
        else:
            assert lease == self.newest
            assert went == (there is not None)
            if there is not None:
                assert there.deleted
                assert not self.machines[uid]
                del self.declared[name]
                self.statuses.pop(uid, None)
                self.memories.pop(uid, None)
                self.events[uid] = []

    def writes(self, lease: Lease, name: RayClusterName) -> RayClusterUid | None:
        """The uid to write for, if the write must succeed; else assert that it is refused."""
        there = self.declared.get(name)
        if lease == self.newest and there is not None:
            return there.uid
        uid = there.uid if there else RayClusterUid("gone")
        try:
            self.store.remember(lease, uid, {}, {MachineName("m"): {}})
        except Fenced:
            assert lease != self.newest
        except NoSuchRayCluster:
            assert there is None
        else:
            raise AssertionError("a write without a lease or a declaration was made")
        return None

    @rule(lease=leases, name=NAMES, memory=JSON, machine=MACHINES, what=st.none() | JSON)
    def remember(
        self,
        lease: Lease,
        name: RayClusterName,
        memory: dict[str, Any],
        machine: MachineName,
        what: dict[str, Any] | None,
    ) -> None:
        if (uid := self.writes(lease, name)) is not None:
            self.store.remember(lease, uid, memory, {machine: what})
            self.memories[uid] = memory
            if what is None:
                self.machines[uid].pop(machine, None)
            else:
                self.machines[uid][machine] = what

    @rule(lease=leases, name=NAMES, status=JSON)
    def put_status(self, lease: Lease, name: RayClusterName, status: dict[str, Any]) -> None:
        if (uid := self.writes(lease, name)) is not None:
            self.store.put_status(lease, uid, status)
            self.statuses[uid] = status

    @rule(lease=leases, name=NAMES, reason=st.text(max_size=3))
    def add_event(self, lease: Lease, name: RayClusterName, reason: str) -> None:
        if (uid := self.writes(lease, name)) is not None:
            event = self.store.add_event(lease, uid, at=3.0, kind="lost", reason=reason)
            assert event.reason == reason
            self.events[uid].append(event)

    @rule()
    def reopen(self) -> None:
        """The process ends, and another follows."""
        self.store.close()
        self.store = RayClusterStore(self.folder / "declared.sqlite")
        self.held = False

    @rule()
    def follow(self) -> None:
        """A watcher that asks for changes alone knows the same as one that reads all."""
        changes = self.store.changes_since(self.asked)
        if changes.whole:
            self.mirror.clear()
        for uid in changes.removed:
            self.mirror.pop(uid, None)
        self.mirror.update((each.uid, each) for each in changes.declarations)
        self.asked = changes.revision
        assert self.mirror == {each.uid: each for each in self.declared.values()}

    @invariant()
    def holds_the_same(self) -> None:
        assert self.store.declarations() == tuple(
            self.declared[name] for name in sorted(self.declared)
        )
        assert self.store.statuses() == self.statuses
        for uid, machines in self.machines.items():
            assert self.store.machines(uid) == machines
            assert self.store.memory(uid) == self.memories.get(uid)
            assert self.store.events(uid) == tuple(self.events[uid])


Model.TestCase.settings = settings(stateful_step_count=25)
TestModel = Model.TestCase
