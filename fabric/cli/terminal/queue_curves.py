"""What the samples of a manager's queues say of each project over time, for `queue history`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.resources import GIB, ordered
from ...simulation.picture import QueueCurve
from .view import Document


def curves(document: Document, samples: Sequence[Document], now: float) -> list[QueueCurve]:
    """A curve for each project and pool with a quota or something held, since the first sample.

    Each is of GPUs if they are rationed there, or else of the first resource that is. Managers of
    older versions sample no quotas, so those of now count.
    """
    if not samples:
        return []
    begin = samples[0]["time"]
    times = [*(each["time"] - begin for each in samples), max(now, samples[-1]["time"]) - begin]
    found = []
    for queue in document["queues"]:
        told = [_told(sample, queue) for sample in samples]
        resource = _resource(queue, told)
        if queue["kind"] != "project" or resource is None:
            continue
        unit = GIB if resource == "memory" else 1
        shares = [each["fairshare"].get(resource) for each in told]
        limited = [each for each in shares if each is not None]
        quotas = [each.get("quota", queue["quota"]).get(resource) for each in told]
        found.append(
            QueueCurve(
                title=f"{queue['name']} in {queue['pool']}",
                resource="memory (GiB)" if resource == "memory" else resource,
                times_s=times,
                allocated=[each["allocated"].get(resource, 0.0) / unit for each in told],
                fairshare=[(each or 0.0) / unit for each in shares] if limited else None,
                quota=_limits(quotas, unit),
            )
        )
    return found


def _limits(amounts: Sequence[float | None], unit: float) -> list[float] | None:
    """What is limited at some time, with no number where it is not; None if it never is."""
    if all(each is None for each in amounts):
        return None
    return [math.nan if each is None else each / unit for each in amounts]


def _told(sample: Document, queue: Document) -> Document:
    """What a sample says of a queue; one that was not there yet had nothing."""
    wanted = queue["name"], queue["pool"]
    nothing: Document = {"allocated": {}, "fairshare": {}}
    return next((q for q in sample["queues"] if (q["name"], q["pool"]) == wanted), nothing)


def _resource(queue: Document, told: list[Document]) -> str | None:
    """GPUs if they are rationed, else the first resource that is, else the first that it held.

    None if it held nothing and has no quota.
    """
    held = ordered({name for each in told for name in each["allocated"]})
    if not held and not any(queue["quota"].values()):
        return None
    rationed = [name for name, amount in queue["quota"].items() if amount is not None]
    if "GPU" in rationed:
        return "GPU"
    return next(iter([*ordered(rationed), *held]), None)
