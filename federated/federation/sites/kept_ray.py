"""KeptRay: a Ray that several federations of this process use, one after another.

A private one keeps its workers too, for the next federation with workers of the same size.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from fedpilot.fabric import WarmCluster

from ...config.schema import RunConfig
from ...prepare.gang_request import SMALLEST_OBJECT_STORE, begin_ray, declared_ray, enter_ray

if TYPE_CHECKING:
    from fedpilot.fabric import Cluster


class KeptRay:
    """The Ray that a config asks for, from its first use to `close`."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._cluster: Cluster | None = None
        self._is: tuple[Any, int] = (None, 0)

    def entered(self, config: RunConfig, store: int) -> Cluster:
        """The Ray, with at least `store` bytes for objects. NotFeasible, ClusterStartFailed.

        Another one replaces it where this config asks for another, or for a larger store.
        """
        asked, has = self._is
        if self._cluster is None or asked != config.resources.ray or has < store:
            self.close()
            begun = begin_ray(config)
            if begun is not None:
                self._undo.callback(begun.close)
            declared = declared_ray(config)
            cluster = enter_ray(config, store, begun, declared, self._undo)
            if not cluster.shared:
                cluster = warm = WarmCluster(cluster)
                self._undo.callback(warm.close)
            self._cluster = cluster
            self._is = config.resources.ray, max(SMALLEST_OBJECT_STORE, store)
        return self._cluster

    def close(self) -> None:
        """End the Ray; may be called twice."""
        self._cluster = None
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
