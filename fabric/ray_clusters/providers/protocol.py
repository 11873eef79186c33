"""What starts and ends the machines of declared Ray clusters: the protocol of all providers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...core.ray_clusters.declaration import DeclaredRayCluster, MachineGroup, MachineName
from ...core.ray_clusters.machines import MachinePlace, MachineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidedMachine:
    """What a provider has of a machine: processes, or what they have left behind."""

    name: MachineName
    dead: bool = False
    """Whether it cannot be used any more, or has never been."""
    reason: str = ""
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderView:
    """What a provider has of one declared Ray cluster now."""

    machines: Mapping[MachinePlace, ProvidedMachine]
    """Those on hosts that do not answer are left out."""
    silent_hosts: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Hosts that do not answer, and why."""
    silent_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    """For how long they have not, where it is known; below 0 while a first answer is not due."""
    head_waits: str = ""
    """Why a head could not keep its state now; empty if it could, or needs not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOrder:
    """A machine that a provider shall start."""

    machine: MachineRecord
    group: MachineGroup
    cluster: DeclaredRayCluster


class MachineProvider(Protocol):
    """The machines of one declared Ray cluster. Calls raise ProviderFailed, with a reason."""

    async def look(self) -> ProviderView:
        """All machines of the cluster that it has anything of, also those that others asked for."""

    async def start(self, order: MachineOrder, /) -> None:
        """Begin the start of a machine; returns before the machine has joined.

        A machine that it has already is no error.
        """

    async def stop(self, name: MachineName, host: str, /) -> None:
        """End all that belongs to a machine, and leave nothing; a missing one is no error."""

    def declare(self, declared: DeclaredRayCluster, /) -> None:
        """Take another declaration of the cluster, whose provider is the same."""

    async def changed(self) -> None:
        """Return once a machine has ended by itself, or may have."""

    @property
    def address(self) -> str | None:
        """`host:port` of the head; None before there was one."""

    @property
    def token(self) -> str:
        """The secret of the cluster; empty if it has none."""

    @property
    def token_file(self) -> str | None:
        """The file with the secret, for what runs on this computer; None if there is none."""

    async def forget(self) -> None:
        """Keep nothing of the cluster, which has no machines any more."""

    async def close(self) -> None:
        """Stop watching; machines go on."""
