"""Bundler: keeps placement groups in step with vnodes; its orders wait until the state is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...core.cluster_state import ClusterState
from ...core.ledger import Ledger
from ...core.places.groups import Either, GroupId, PlacementGroupRecord, Rebundling, Stuck, rebundle
from ...core.records import DEFAULT, ClusterId, VNodeId
from ...core.resources import Resources
from ...ray.control_plane.protocol import Seen
from ..group_provisioner import GroupProvisioner
from ..settings import KeeperSettings


class Bundler:
    """Our placement groups of one Ray cluster."""

    def __init__(
        self,
        state: ClusterState,
        provisioner: GroupProvisioner,
        *,
        clock: Callable[[], float],
        new_id: Callable[[ClusterId], GroupId],
        settings: KeeperSettings,
    ) -> None:
        self.state = state
        self.settings = settings
        self.new_id = new_id
        self._provisioner = provisioner
        self._clock = clock
        self.in_use: frozenset[GroupId] = frozenset()
        """The placement groups with running work at the last look at Ray."""
        self._ready: set[GroupId] = set()
        """The placement groups that Ray has placed."""

    def cut(
        self,
        ledger: Ledger,
        vnodes: Iterable[VNodeId],
        given: Mapping[VNodeId, Resources] | None = None,
    ) -> Rebundling | Stuck:
        """Compute the rebundling that gives these vnodes of a ledger their bundles."""
        others = {vnode.id for vnode in ledger.of(DEFAULT)}
        ours = [id for id in vnodes if id not in others]
        busy = Either(self.state.works.busy, self.in_use)
        return rebundle(ledger, self.state.groups, ours, self.new_id, busy=busy, given=given)

    def order(self, cut: Rebundling) -> None:
        """Record a rebundling, and order it."""
        gone = [self.state.groups[id] for id in cut.remove]
        self.state.groups.apply(cut)
        self._ready.difference_update(cut.remove)
        self._provisioner.order(remove=gone, make=cut.make)

    def rebundle(self, ledger: Ledger, vnodes: Iterable[VNodeId]) -> bool:
        """Order the bundles that vnodes have in a ledger; False if work is in the way."""
        cut = self.cut(ledger, vnodes)
        if isinstance(cut, Stuck):
            return False
        self.order(cut)
        return True

    def due(self) -> float:
        """When a loan that is made now is due."""
        return self._clock() + self.settings.lease_s

    def give_up(self, groups: Sequence[PlacementGroupRecord]) -> None:
        """Drop placement groups from the cluster state, and order their removal."""
        for group in groups:
            self.state.groups.drop(group.id)
            self._ready.discard(group.id)
        self._provisioner.order(remove=groups)

    def make_again(self, group: PlacementGroupRecord) -> None:
        """Order a placement group that Ray has lost again, or rebundle the vnodes it carried."""
        self._ready.discard(group.id)
        if all(piece.vnode for piece in group.pieces):
            self._provisioner.order(make=[group])
        else:  # a bundle has lost its vnode
            self.state.groups.drop(group.id)
            self.rebundle(self.state.ledger, group.vnodes & self.state.ledger.vnodes.keys())

    def lost_places(self, group: PlacementGroupRecord) -> None:
        """Record that Ray looks for other machines for a part of a placement group."""
        self._ready.discard(group.id)

    def placed(self, group: PlacementGroupRecord) -> None:
        """Record that Ray has placed a whole placement group."""
        self._ready.add(group.id)

    def all_there(self, cluster: ClusterId) -> bool:
        """Whether Ray has placed every placement group of a virtual cluster."""
        return all(each.id in self._ready for each in self.state.groups.of_cluster(cluster))

    def is_settled(self, found: Seen) -> bool:
        """Whether the cluster state already has a placement group's machines."""
        return found.id in self._ready and self._provisioner.knows(found)
