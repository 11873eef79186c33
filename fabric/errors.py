"""The errors of the fabric.

FabricError
├── SpecError            the request itself is not valid
├── GangInfeasible       the request can never be met by this cluster
├── GangTimeout          it could be met, but not in the time given
├── GangExists           the name of the gang is taken
├── NameTaken            another virtual cluster has the name
├── NoSuchCluster        there is no virtual cluster of that name
├── NotYours             a virtual cluster is another user's
├── NoSuchJob            there is no job of that id
├── QueueRefused         a project does not allow the request
├── QueueInUse           a new file of queues lacks one in which something runs or waits
├── StaleRevision        another file of queues was applied meanwhile
├── NoSuchQueue          there is no project or department of that name
├── NoSuchRayCluster     there is no declared Ray cluster of that name
├── Conflict             a declaration was written meanwhile, or exists already
├── Fenced               another process has taken over the role of this one
├── StoreUnusable        the store of declared Ray clusters cannot be read or written
├── ProviderFailed       a machine of a declared Ray cluster cannot be started or ended
├── NeverFits            a virtual cluster could never get its places
├── NotInTime            a virtual cluster did not get its places in time
├── Preempted            a virtual cluster left its places to others, and waits again
├── TooLarge             work could never run in its virtual cluster
├── ManagerUnreachable   the manager of a Ray cluster does not answer
├── CallUnavailable      the manager cannot be asked for this, here or in its version
├── ClusterStartFailed   a Ray did not start
├── UnsupportedRay       the Ray that is installed lacks what is needed
├── ClusterUnreachable   a Ray cluster could not be attached to
│   └── ClusterRefuses   its control plane answers, and refuses us
├── NotInstalled         a machine of a Ray cluster lacks fedpilot, or what it needs
├── WorkerLost           the process or the machine of a worker is gone
└── WorkerFailed         the code inside a worker raised

Each keeps its facts as fields, and its `args` rebuild it, since exceptions travel pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from fedpilot.common.host.exit_codes import BAD_INPUT, FAILED, PREEMPTED, REFUSED, UNREACHABLE

RESERVED = ("physical", "default")
"""Names that the fabric uses: the Ray cluster itself, and all work outside virtual clusters."""


class FabricError(Exception):
    """Root of all errors that the fabric raises on purpose."""

    exits_with: ClassVar[int] = FAILED
    """The exit code of a command that fails with it."""
    says: ClassVar[str] = ""
    """The text, with the names of the facts in braces; if empty, the argument is the text."""

    def __str__(self) -> str:
        return self.says.format_map(vars(self)) if self.says else super().__str__()


class SpecError(FabricError):
    """The description of a virtual cluster is not valid, or not supported."""

    exits_with = BAD_INPUT


class GangInfeasible(FabricError):
    """The cluster could not hold the gang even if it were idle."""

    exits_with = REFUSED
    says = (
        "gang {name!r} wants {wanted}, which this cluster can never give: "
        "{reason}; {most} of these nodes could be had together"
    )

    def __init__(self, name: str, wanted: str, most: int, reason: str) -> None:
        super().__init__(name, wanted, most, reason)
        self.name, self.wanted, self.most, self.reason = name, wanted, most, reason


class GangTimeout(FabricError):
    """The gang fits the cluster, but the resources did not come free in time."""

    exits_with = REFUSED
    says = (
        "gang {name!r} was not placed in {waited_s:.1f} s: {reason}; "
        "wait longer, ask for less, or free resources"
    )

    def __init__(self, name: str, waited_s: float, reason: str) -> None:
        super().__init__(name, waited_s, reason)
        self.name, self.waited_s, self.reason = name, waited_s, reason


class GangExists(FabricError):
    """Another gang on this cluster has the name."""

    says = "a gang named {name!r} exists on this cluster; release it or choose a new name"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class NameTaken(FabricError):
    """Another virtual cluster of this Ray cluster has the name."""

    exits_with = BAD_INPUT

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        if self.name in RESERVED:
            return f"{self.name!r} is no name for a virtual cluster: the fabric uses it itself"
        return f"there is a virtual cluster {self.name!r} already; delete it or choose a new name"


class NoSuchCluster(FabricError):
    """There is no virtual cluster of that name."""

    exits_with = BAD_INPUT

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(name, tuple(known))
        self.name, self.known = name, tuple(known)

    def __str__(self) -> str:
        shown = ", ".join(self.known[:10]) + (", ..." if len(self.known) > 10 else "")
        return f"there is no virtual cluster {self.name!r}; there are: {shown or 'none'}"


class NotYours(FabricError):
    """A virtual cluster, or one inside it, belongs to another user."""

    exits_with = REFUSED

    def __init__(self, name: str, owners: Mapping[Any, str], user: str) -> None:
        super().__init__(name, dict(owners), user)
        self.name, self.owners, self.user = name, dict(owners), user

    def __str__(self) -> str:
        owners = ", ".join(f"{str(id)!r} is {owner}'s" for id, owner in self.owners.items())
        return (
            f"virtual cluster {self.name!r} stays: {owners}, and you are "
            f"{self.user or 'an unknown user'}; --force ends it, and is on record"
        )


class NoSuchJob(FabricError):
    """There is no job of that id."""

    exits_with = BAD_INPUT
    says = "there is no job {id!r}; see `fedpilot job list`"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class QueueRefused(FabricError):
    """A virtual cluster may not wait in this queue."""

    exits_with = REFUSED
    says = "{name} is refused: {reason}"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason


class QueueInUse(FabricError):
    """A file of queues lacks one in which something runs or waits."""

    exits_with = REFUSED

    def __init__(self, used: Mapping[str, Sequence[str]]) -> None:
        super().__init__(dict(used))
        self.used = dict(used)

    def __str__(self) -> str:
        what = "; ".join(f"{name} has {', '.join(ids)}" for name, ids in self.used.items())
        return f"the file leaves out queues that are in use: {what}"


class StaleRevision(FabricError):
    """Another file of queues was applied since the one that a change was made to."""

    exits_with = REFUSED

    def __init__(self, given: int, found: int, by: str) -> None:
        super().__init__(given, found, by)
        self.given, self.found, self.by = given, found, by

    def __str__(self) -> str:
        whose = f", applied by {self.by}" if self.by else ""
        return (
            f"the queues are at revision {self.found}{whose}, and not at {self.given}: look at "
            "what has changed, then apply again with the new revision"
        )


class NoSuchQueue(FabricError):
    """There is no project or department of that name."""

    exits_with = BAD_INPUT

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(name, tuple(known))
        self.name, self.known = name, tuple(known)

    def __str__(self) -> str:
        shown = ", ".join(self.known[:10]) + (", ..." if len(self.known) > 10 else "")
        return f"there is no project or department {self.name!r}; there are: {shown}"


class NoSuchRayCluster(FabricError):
    """There is no declared Ray cluster of that name, or of that uid."""

    exits_with = BAD_INPUT

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(name, tuple(known))
        self.name, self.known = name, tuple(known)

    def __str__(self) -> str:
        shown = ", ".join(self.known[:10]) + (", ..." if len(self.known) > 10 else "")
        return f"there is no declared Ray cluster {self.name!r}; there are: {shown or 'none'}"


class Conflict(FabricError):
    """The declaration of a Ray cluster is not at the revision that its writer saw."""

    exits_with = REFUSED

    def __init__(
        self, name: str, saw: int, found: int, by: str = "", deleted: bool = False
    ) -> None:
        """Revision 0: the Ray cluster is not declared."""
        super().__init__(name, saw, found, by, deleted)
        self.name, self.saw, self.found, self.by, self.deleted = name, saw, found, by, deleted

    def __str__(self) -> str:
        whose = f", written by {self.by}" if self.by else ""
        if self.deleted:
            return (
                f"Ray cluster {self.name!r} is being deleted (revision {self.found}{whose}), and "
                f"you saw revision {self.saw}: wait until it is gone, then declare it again"
            )
        if not self.found:
            return (
                f"Ray cluster {self.name!r} is not declared any more, and you saw revision "
                f"{self.saw}: to declare it again, name revision 0"
            )
        if not self.saw:
            return (
                f"Ray cluster {self.name!r} is declared already, at revision {self.found}{whose}: "
                "choose another name, or read it and change that revision"
            )
        return (
            f"Ray cluster {self.name!r} is at revision {self.found}{whose}, and not at {self.saw}: "
            "read it again, then apply your change with the new revision"
        )


class Fenced(FabricError):
    """Another process has taken over the role of this one, which must not write any more."""

    exits_with = REFUSED

    def __init__(self, role: str, holder: str, fence: int, newest: int, by: str = "") -> None:
        super().__init__(role, holder, fence, newest, by)
        self.role, self.holder, self.fence = role, holder, fence
        self.newest, self.by = newest, by

    def __str__(self) -> str:
        now = f"{self.by} has it" if self.by else "it was released"
        return (
            f"{self.holder} does not hold the lease {self.role!r} any more (fence {self.fence}): "
            f"{now} (fence {self.newest}); acquire it again before the next write"
        )


class StoreUnusable(FabricError):
    """The file of declared Ray clusters cannot be opened, read or written."""

    says = "{path} cannot be used as the store of Ray clusters: {reason}"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason


class ProviderFailed(FabricError):
    """A provider could not start or end a machine of a declared Ray cluster."""


class NeverFits(FabricError):
    """A virtual cluster could not get its places even if the cluster were idle."""

    exits_with = REFUSED
    says = "virtual cluster {name!r} can never get its places: {reason}"

    def __init__(self, name: str, reason: str, most: int) -> None:
        super().__init__(name, reason, most)
        self.name, self.reason, self.most = name, reason, most

    def __str__(self) -> str:
        most = f"; at most {self.most} of its fixed-size nodes fit together" if self.most else ""
        return f"{super().__str__()}{most}"


class NotInTime(FabricError):
    """A virtual cluster did not get its places: its deadline passed, or it ended earlier."""

    exits_with = REFUSED
    says = "virtual cluster {name!r} did not get its places in {waited_s:.1f} s: {reason}"

    def __init__(self, name: str, waited_s: float, reason: str) -> None:
        super().__init__(name, waited_s, reason)
        self.name, self.waited_s, self.reason = name, waited_s, reason


class Preempted(FabricError):
    """A virtual cluster left its places to others; it waits, and gets places again by itself."""

    exits_with = PREEMPTED

    def __init__(self, name: str, claimant: str | None, rule: str, reason: str) -> None:
        super().__init__(name, claimant, rule, reason)
        self.name, self.claimant, self.rule, self.reason = name, claimant, rule, reason

    def __str__(self) -> str:
        to = f" to {self.claimant!r}" if self.claimant else ""
        return (
            f"virtual cluster {self.name!r} had to leave its places{to}: {self.reason} "
            f"({self.rule}); it waits, and takes work once it has places again"
        )


class TooLarge(FabricError):
    """A task or an actor could never run in its virtual cluster."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ManagerUnreachable(FabricError):
    """The manager of a Ray cluster does not answer."""

    exits_with = UNREACHABLE
    says = "the manager of this Ray cluster does not answer: {reason}"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class CallUnavailable(FabricError):
    """A call that only the manager's port takes, where there is no such port or call."""

    exits_with = UNREACHABLE
    says = "the manager of this Ray cluster cannot be asked for {method!r}: {reason}"

    def __init__(self, method: str, reason: str) -> None:
        super().__init__(method, reason)
        self.method, self.reason = method, reason


class ManagerAway(ManagerUnreachable):
    """The manager died, and Ray is starting it again."""


class ManagerGone(ManagerUnreachable):
    """The actor that was the manager is dead, and Ray does not start it again."""


class ClusterStartFailed(FabricError):
    """A Ray that was wanted could not be started."""

    exits_with = UNREACHABLE
    says = "Ray could not be started: {reason}"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ClusterUnreachable(FabricError):
    """No Ray cluster answers at the address, or it refuses the connection."""

    exits_with = UNREACHABLE
    says = "no Ray cluster could be attached to at {address!r}: {reason}"

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address, self.reason = address, reason


class ClusterRefuses(ClusterUnreachable):
    """The control plane of a Ray cluster refuses the token, or a call without one."""


class UnsupportedRay(FabricError):
    """The installed Ray lacks private parts that the fabric uses, or has changed them."""

    exits_with = UNREACHABLE

    def __init__(
        self, version: str, purpose: str, lacks: Sequence[str], oldest: str, newest: str
    ) -> None:
        super().__init__(version, purpose, tuple(lacks), oldest, newest)
        self.version, self.purpose, self.lacks = version, purpose, tuple(lacks)
        self.oldest, self.newest = oldest, newest

    def __str__(self) -> str:
        return (
            f"Ray {self.version} lacks what {self.purpose} of virtual clusters needs: "
            f"{', '.join(self.lacks)}; tried are Ray {self.oldest} to {self.newest}"
        )


class NotInstalled(FabricError):
    """A machine of a Ray cluster has no fedpilot, lacks what it needs, or has another version."""

    exits_with = UNREACHABLE

    def __init__(self, machine: str, module: str) -> None:
        super().__init__(machine, module)
        self.machine, self.module = machine, module

    def __str__(self) -> str:
        where = f"machine {self.machine} of the Ray cluster"
        if self.module.startswith("fedpilot."):
            from importlib.metadata import version

            here = version("fedpilot")
            told = (
                f"{where} has another version of fedpilot than {here}, which is here: it lacks "
                f"{self.module!r}; run `pip install fedpilot=={here}` there"
            )
        else:
            told = f"{where} cannot import {self.module!r}: install fedpilot there"
        return (
            f"{told}, in the environment that Ray runs in; `fedpilot doctor --address` looks at "
            "every machine"
        )


class WorkerLost(FabricError):
    """A worker's process, or its machine, is gone or unreachable."""

    says = "worker {worker!r} is lost: {reason}"

    def __init__(self, worker: str, reason: str) -> None:
        super().__init__(worker, reason)
        self.worker, self.reason = worker, reason


class WorkerFailed(FabricError):
    """The code inside a worker raised an error, which is the cause."""

    says = "{method!r} failed in worker {worker!r}: {kind}: {message}"

    def __init__(
        self, worker: str, method: str, kind: str, message: str, remote_traceback: str
    ) -> None:
        super().__init__(worker, method, kind, message, remote_traceback)
        self.worker, self.method = worker, method
        self.kind, self.message, self.remote_traceback = kind, message, remote_traceback
