"""A plan on the screen: a table of sites, and what follows from it in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedpilot.common.terminal.layout import named, ruled
from fedpilot.common.text.amounts import DASH, brief, counted, duration, in_bytes, listed
from fedpilot.mediator.core.assignment import Reassignment, size
from fedpilot.mediator.core.links import LinkSpeed, in_words

from ...core.planning.plan import Cut, Plan, PlannedReplicas, SitePlan

SITES_SHOWN = 40
"""Rows of sites; the others are summed in the last row."""


def plan_table(plan: Plan, config: Path, now: float) -> RenderableType:
    """A row for each site, and the facts about the run; `now` in epoch seconds."""
    facts = named()
    for name, value in _facts(plan, now):
        facts.add_row(name, Text(value))
    return Group(Text(_headline(plan, config), "bold"), Text(), _sites(plan), Text(), facts)


def _headline(plan: Plan, config: Path) -> str:
    inputs, vnodes = plan.inputs, sum(site.vnodes for site in plan.sites)
    cohort = inputs.clients_per_round
    training = "" if cohort == inputs.population else f", {cohort:,} in a round"
    return (
        f"{config}: {counted(inputs.population, 'client')}{training}, "
        f"{counted(len(plan.sites), 'site')} with {counted(vnodes, 'vnode')}, "
        f"{counted(inputs.rounds, 'round')}"
    )


def _sites(plan: Plan) -> Table:
    numbers = ("clients", "vnodes", "samples", "in", "out", "compute", "transfer")
    table = ruled("site", *numbers, right=numbers)
    shown = plan.sites[: SITES_SHOWN - 1] if len(plan.sites) > SITES_SHOWN else plan.sites
    for site in shown:
        table.add_row(Text(site.site, "bold"), *_cells(site, plan))
    if len(plan.sites) > 1:
        table.add_section()
        table.add_row(Text("all", "bold"), *_sums(plan.sites))
    return table


def _cells(site: SitePlan, plan: Plan) -> Iterator[str | Text]:
    yield f"{site.clients:,}"
    yield f"{site.vnodes:,}"
    yield DASH if site.samples is None else f"{site.samples:,.0f}"
    yield in_bytes(site.bytes_in)
    yield in_bytes(site.bytes_out)
    bounds = plan.bound is not None and plan.bound.site == site.site and len(plan.sites) > 1
    computes = bounds and plan.bound is not None and plan.bound.resource == "computation"
    yield _seconds(site.compute_s, marked=computes)
    yield _seconds(site.transfer_s, marked=bounds and not computes)


def _seconds(value: float | None, *, marked: bool = False) -> Text:
    return Text(DASH if value is None else brief(value), "bold yellow" if marked else "")


def _sums(sites: Sequence[SitePlan]) -> Iterator[str]:
    samples = [site.samples for site in sites if site.samples is not None]
    yield f"{sum(site.clients for site in sites):,}"
    yield f"{sum(site.vnodes for site in sites):,}"
    yield f"{sum(samples):,.0f}" if len(samples) == len(sites) else DASH
    yield in_bytes(sum(site.bytes_in for site in sites))
    yield in_bytes(sum(site.bytes_out for site in sites))
    yield ""
    yield ""


def _facts(plan: Plan, now: float) -> Iterator[tuple[str, str]]:
    yield from _round(plan)
    yield from _graph(plan)
    if plan.replicas is not None:
        yield "replicas", _replicas(plan.replicas)
    if plan.reassignment is not None:
        yield "moves", _moves(plan.reassignment, plan.inputs.reassign_every or 0)
    if len(plan.sites) > 1 and plan.assignment.strategy:
        reason = f": {plan.assignment.reason}" if plan.assignment.reason else ""
        yield "assignment", f"{plan.assignment.strategy}{reason}"
    if pinned := sum(site.pinned for site in plan.sites):
        whose = "all" if pinned == plan.inputs.population else f"{pinned:,}"
        yield "residency", f"{whose} clients stay at the sites of their data"
    if plan.inputs.classes:
        yield "vnode classes", _classes(plan)
    yield "memory", _memory(plan)
    yield "pace", _pace(plan)
    yield "links", _links(plan, now)
    places = sorted({site.from_ for site in plan.sites if site.from_})
    yield "sites", "; ".join(_whose(plan, place) for place in places)


def _round(plan: Plan) -> Iterator[tuple[str, str]]:
    rounds = counted(plan.inputs.rounds, "round")
    if plan.seconds is None:
        yield "a round", "seconds are not known: no pace and no link is"
    else:
        bound = ""
        if plan.bound is not None:
            bound = f", bound by the {plan.bound.resource} of {plan.bound.site}"
        whole = duration(plan.seconds * plan.inputs.rounds)
        about = f"about {brief(plan.seconds)} of computation and transfers"
        yield "a round", f"{about} ({whole} in {rounds}){bound}"
    measured = plan.inputs.measured
    if measured is not None and measured.seconds is not None:
        took = f"took {brief(measured.seconds)} a round in all"
        yield "measured", f"run {measured.run} {took}, the median of {measured.rounds}"
    moved = in_bytes(sum(plan.bytes_of_run))
    each = f"{in_bytes(plan.bytes_in)} to the sites and {in_bytes(plan.bytes_out)} from them"
    yield "traffic", f"{each} in a round, {moved} in {rounds}: {plan.inputs.bytes_source}"


def _graph(plan: Plan) -> Iterator[tuple[str, str]]:
    if plan.edges is None:
        return
    graphs = len(plan.inputs.exchanges)
    edges = counted(plan.edges, "edge")
    if not plan.inputs.lasting:
        edges += f" in a round, other ones in each; means of the first {graphs} rounds"
    if plan.cut is None:
        yield "graph", edges
        return
    yield "graph", edges
    yield "cut", _cut(plan.cut)
    if plan.round_robin is not None:
        yield "round robin", _cut(plan.round_robin)


def _replicas(replicas: PlannedReplicas) -> str:
    found = replicas.holders.items()
    held = [f"{site} at {each.site} ({each.reason})" for site, each in found if each.site]
    nowhere = [f"{site} has none: {each.reason}" for site, each in found if not each.site]
    each = f"{in_bytes(replicas.nbytes)} every {counted(replicas.every, 'round')}"
    times = f"{counted(replicas.count, 'time')} in the run"
    return "; ".join([f"{each}, {times}", *([listed(held)] if held else []), *nowhere])


def _moves(found: Reassignment, every: int) -> str:
    when = "after each round" if every == 1 else f"every {counted(every, 'round')}"
    decided = f"decided {when}; by the links known now, {found.reason}"
    parts = [
        f"{counted(size(move.clients), 'client')} from {move.origin} to {move.to}"
        for move in found.moves
    ]
    return f"{decided} ({listed(parts)})" if parts else decided


def _cut(cut: Cut) -> str:
    time = "" if cut.seconds is None else f", {brief(cut.seconds)} a round"
    edges = f"{counted(cut.edges, 'edge')} {'crosses' if cut.edges == 1 else 'cross'}"
    sums = f" and {counted(cut.sums, 'partial sum')}" if cut.sums else ""
    crossing = f"{counted(cut.models, 'model')}{sums} ({in_bytes(cut.nbytes)})"
    return f"{edges}, {crossing} in a round{time}"


def _classes(plan: Plan) -> str:
    """What each class has in all sites, and how long it takes at the slowest one."""
    told = []
    for parts in zip(*(site.classes for site in plan.sites), strict=True):
        known = [part.seconds for part in parts if part.seconds is not None]
        vnodes, clients = sum(each.vnodes for each in parts), sum(each.clients for each in parts)
        took = f", {brief(max(known))} a round" if known else ""
        has = f"{counted(vnodes, 'vnode')} for {counted(clients, 'client')}"
        told.append(f"{parts[0].name} {has}{took}")
    return "; ".join(told)


def _memory(plan: Plan) -> str:
    memory = plan.inputs.memory
    parts = [f"object store {in_bytes(memory.store_bytes)} a site"]
    if memory.chunk_bytes is not None:
        clients = counted(memory.chunk_clients, "client")
        parts.insert(0, f"{in_bytes(memory.chunk_bytes)} a vnode for {clients} at once")
    kept = max((site.kept_bytes for site in plan.sites), default=0)
    if kept:
        parts.append(f"clients' models up to {in_bytes(kept)} a site, held twice")
    return ", ".join(parts)


def _pace(plan: Plan) -> str:
    pace = plan.inputs.pace
    own = [
        f"{site.site} {brief(site.seconds_per_sample)}"
        for site in plan.sites
        if site.seconds_per_sample is not None and site.seconds_per_sample != pace.value
    ]
    words = pace.source if pace.value is None else f"{brief(pace.value)} a sample, {pace.source}"
    if plan.inputs.measured is None:
        words += "; --like RUN takes a measured one"
    return "; ".join([words, *([f"as declared or measured: {listed(own)}"] if own else [])])


def _links(plan: Plan, now: float) -> str:
    there = [site for site in plan.sites if site.link != LinkSpeed()]
    known = [f"{site.site} {in_words(site.link, now)}" for site in there]
    unknown = [site.site for site in plan.sites if not site.link.has_speed]
    if not known:
        return "not known, so transfers count as free"
    if unknown:
        known.append(f"the speeds of {listed(unknown)} are not known, and count as free")
    return "; ".join(known)


def _whose(plan: Plan, place: str) -> str:
    names = [site.site for site in plan.sites if site.from_ == place]
    return place if len(names) == len(plan.sites) else f"{listed(names)}: {place}"
