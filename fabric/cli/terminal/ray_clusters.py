"""The output of `fedpilot raycluster`: clusters, groups, machines and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from fedpilot.common.terminal.layout import head, named, ruled, timestamp
from fedpilot.common.terminal.statuses import Looks, marked
from fedpilot.common.text.amounts import DASH, ago, counted

from ...core.resources import amounts

if TYPE_CHECKING:
    from ...ray_clusters.declarations.records import RayClusterEvent

RAY_CLUSTERS: Looks = {
    "ready": ("●", "green"),
    "scaling": ("◐", "cyan"),
    "starting": ("◐", "cyan"),
    "declared": ("○", "yellow"),
    "suspended": ("○", "bright_black"),
    "recovering": ("▲", "red"),
    "failed": ("×", "red"),
    "refused": ("×", "red"),
    "deleting": ("◌", "bright_black"),
}
MACHINES: Looks = {
    "ready": ("●", "green"),
    "starting": ("◐", "cyan"),
    "draining": ("◌", "yellow"),
    "stopping": ("◌", "bright_black"),
}
UNMANAGED = "no lifecycle manager runs: `fedpilot raycluster serve` starts one"


def cluster_table(found: Sequence[dict[str, Any]], managed: bool, now: float) -> RenderableType:
    """All declared Ray clusters, a line each."""
    if not found:
        return Text("no Ray cluster is declared: `fedpilot raycluster apply FILE` declares one")
    table = ruled("name", "state", "machines", "provider", "address", "revision", "declared")
    for each in found:
        table.add_row(
            each["name"],
            marked(RAY_CLUSTERS, _state(each)),
            _ready(each["groups"].values()),
            each["provider"],
            each["address"] or DASH,
            str(each["revision"]),
            ago(each["at"], now, 1),
        )
    return table if managed else Group(table, Text(), Text(UNMANAGED, "yellow"))


def cluster_details(found: dict[str, Any], now: float) -> RenderableType:
    """One Ray cluster, its groups and its machines."""
    facts = named()
    facts.add_row("declared", f"{ago(found['at'], now)} by {found['by']}, {_revision(found)}")
    facts.add_row("provider", found["provider"])
    facts.add_row("address", found["address"] or DASH)
    if found["reason"]:
        facts.add_row("reason", Text(found["reason"], "yellow"))
    for host, why in found["hosts_silent"].items():
        facts.add_row("silent host", Text(f"{host}: {why}", "yellow"))
    parts: list[RenderableType] = [_title(found, now), facts, Text()]
    for name, group in found["groups"].items():
        mine = [each for each in found["machines"] if each["group"] == name]
        line = Text().append(name, "bold").append(f"  {_ready([group])}")
        parts.append(line)
        if group["reason"]:
            parts.append(Padding(Text(group["reason"], "yellow"), (0, 0, 0, 2)))
        if mine:
            parts.append(Padding(_machine_table(mine, now), (0, 0, 0, 2), expand=False))
        parts.append(Text())
    return Group(*parts[:-1])


def _machine_table(machines: Sequence[dict[str, Any]], now: float) -> RenderableType:
    """Machines of one group; what they have only where the declaration does not say it."""
    seen = any(each["offers"] for each in machines)
    columns = ["machine", "state", "host", "since"]
    table = ruled(*columns, *(["offers", "labels"] if seen else []), "because", wraps="because")
    for machine in machines:
        offers = [amounts(machine["offers"]), _labels(machine["labels"])] if seen else []
        table.add_row(
            machine["name"],
            marked(MACHINES, machine["state"]),
            machine["host"] or "here",
            ago(machine["since"], now, 1),
            *offers,
            machine["reason"],
        )
    return table


def _labels(labels: Mapping[str, str]) -> str:
    """The labels that people gave; Ray's own are in `--json`."""
    given = [
        f"{key}={value}" for key, value in sorted(labels.items()) if not key.startswith("ray.io/")
    ]
    return ", ".join(given) or DASH


def explanation(found: dict[str, Any], now: float) -> RenderableType:
    """Why a Ray cluster is not as declared."""
    parts: list[RenderableType] = [_title(found, now)]
    if found["reason"]:
        parts.append(Text(found["reason"], "yellow"))
    for host, why in found["hosts_silent"].items():
        parts.append(Text(f"host {host} does not answer: {why}", "yellow"))
    if found["seen_revision"] not in (None, found["revision"]):
        seen = found["seen_revision"]
        parts.append(f"the manager has seen revision {seen}, not {found['revision']} yet")
    for name, group in found["groups"].items():
        short = group["wanted"] - group["ready"]
        if group["reason"]:
            parts.append(f"{name}: {group['reason']}")
        for machine in found["machines"]:
            if machine["group"] == name and machine["state"] != "ready":
                parts.append(f"{machine['name']} is {machine['state']}: {machine['reason']}")
        if short <= 0 and not group["reason"]:
            parts.append(f"{name}: {_ready([group])}")
    return Group(*parts)


def event_line(event: RayClusterEvent) -> str:
    """One event."""
    about = f"{event.machine}: " if event.machine else ""
    said = f"{about}{event.reason}".removesuffix(": ")
    return f"{timestamp(event.at)}  {event.kind:<20} {said}".rstrip()


def _title(found: dict[str, Any], now: float) -> Text:
    since = f" for {ago(found['since'], now).removesuffix(' ago')}"
    return head(found["name"], marked(RAY_CLUSTERS, _state(found), since))


def _state(found: dict[str, Any]) -> str:
    return "deleting" if found["deleted"] else str(found["state"])


def _revision(found: dict[str, Any]) -> str:
    return f"revision {found['revision']}"


def _ready(groups: Any) -> str:
    many = list(groups)
    if not many:
        return DASH
    ready, wanted = (sum(each[key] for each in many) for key in ("ready", "wanted"))
    return (
        f"{ready} of {counted(wanted, 'machine')}" if ready != wanted else counted(ready, "machine")
    )
