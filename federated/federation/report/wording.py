"""Words a run's events as lines for people; pure, so screen and log agree."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpilot.common.host.machine import Load
from fedpilot.common.text.amounts import counted, duration, in_bytes, listed, number

from ...config.schema.running import ALONE

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """A metric's course in one line of at most `width` characters."""
    if len(values) > width:
        values = [values[(i + 1) * len(values) // width - 1] for i in range(width)]
    if not values:
        return ""
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    return "".join(BARS[int((value - low) / span * (len(BARS) - 1))] for value in values)


def span(least: int | None, median: float | None, most: int | None) -> str:
    """How many samples clients hold, or that sites do not disclose it."""
    if least is None or median is None or most is None:
        return "sites do not say how many samples"
    if least == most:
        return f"{least} samples"
    return f"{least} to {most} (median {median:g}) samples"


def headline(fields: Mapping[str, Any]) -> list[str]:
    """The run about to start, from `run_started`."""
    labels = fields["labels_per_client"]
    each = "" if labels is None else f", {labels:g} labels each"
    begun = fields.get("parent")
    origin = [f"  from     {begun['run_id']}, after round {begun['round']:,}"] if begun else []
    return [
        f"run {fields['run_id']}{' (resumed)' if fields['resumed'] else ''}",
        *origin,
        f"  data     {fields['dataset']}, {fields['distribution']} over "
        f"{counted(fields['clients'], 'client')}: {span(*fields['samples_per_client'])}{each}",
        f"  model    {fields['model']}, {counted(fields['parameters'], 'parameter')}",
        f"  rounds   {fields['rounds']:,} of {counted(fields['clients_per_round'], 'client')}",
    ]


def rate(per_second: float) -> str:
    """Clients per second, with enough digits for slow rounds."""
    if per_second >= 9.95 or per_second <= 0:
        return f"{per_second:,.0f} clients/s"
    return f"{per_second:.2g} clients/s"


def clients_line(fields: Mapping[str, Any], rounds: int) -> str:
    """Progress within a long round, from `clients_done`."""
    width = len(str(rounds))
    done = f"{fields['done']:,} of {counted(fields['of'], 'client')}{_site(fields, 'at')} trained"
    return f"round {fields['round']:>{width}}/{rounds}  {done}"


def round_line(fields: Mapping[str, Any]) -> str:
    """One finished round."""
    width = len(str(fields["of"]))
    parts = [f"round {fields['round']:>{width}}/{fields['of']}"]
    if "accuracy" in fields:
        parts += [f"accuracy {number(fields['accuracy'])}", f"loss {number(fields['loss'])}"]
    if (nodes := fields.get("node_accuracy")) is not None:
        worst = number(fields["worst_node_accuracy"])
        parts.append(f"nodes {number(nodes)} (worst tenth {worst})")
    parts += [
        f"train loss {number(fields['train_loss'])}",
        rate(fields["clients_per_second"]),
    ]
    if (far := fields.get("consensus_distance")) is not None:
        parts.insert(-1, f"models {number(far)} apart")
    if fields["refused"]:
        parts.append(f"{counted(fields['refused'], 'update')} refused")
    return "  ".join(parts)


WAITS_FOR: Mapping[str, str] = {
    "loading": "data and model to be loaded",
    "ray": "Ray",
    "sites": "sites",
    "mediator": "what the mediator tells of the run",
    "gang": "room for the workers",
    "workers": "workers to start",
    "execution": "the way of training to be checked",
    "round": "round {round}",
    "ending": "curves and records to be written",
}
"""Names of the steps in `waiting` events."""


PLAIN: Mapping[str, str] = {
    "site_stands_out": "round {round}: site {site} stands out: {reason}",
    "site_passed_over": "site {site} is ready and not taken into the run: {reason}",
    "site_returned": "site {site} takes part from now on",
    "run_waiting": "run {run_id} waits: {reason}",
    "late_discarded": "round {round}: what {site} has of round {of_round} does not count: {reason}",
    "update_refused": "round {round}: {client} refused, {reason}",
    "replica_missed": "round {round}: no replica was made ({reason}); the next round tries again",
    "reassignment_missed": "round {round}: no client moves ({reason}); it is decided anew later",
    "assignment_kept": "round {round}: clients stay at their sites: {reason}",
    "graph_adapted": "round {round}: `{by}` gives another graph; {new} of {edges} edges are new",
}
"""Events whose line has only their fields."""


def waiting(fields: Mapping[str, Any]) -> str:
    """What the run waits for, since when, and how busy this machine is."""
    what = WAITS_FOR.get(fields["step"], fields["step"]).format_map(fields)
    return f"  waiting  for {what}, {_so_far(fields)}; {_busy(fields)}"


def workers_starting(fields: Mapping[str, Any]) -> str:
    """How many workers are up, and what delays the others."""
    up = f"{fields['up']} of {counted(fields['of'], 'worker')}{_site(fields, 'at')} up"
    busy = f"; {_busy(fields)}" if "load" in fields else ""
    nice = fields.get("niceness", 0)
    advice = "; RAY_worker_niceness=0 where its raylet starts would help" if nice > 0 else ""
    return f"  waiting  for workers: {up}, {_so_far(fields)}{busy}{advice}"


def _site(fields: Mapping[str, Any], word: str) -> str:
    site = fields.get("site", ALONE)
    return "" if site == ALONE else f" {word} {site}"


def _worker(fields: Mapping[str, Any]) -> str:
    return f"worker {fields['worker']}{_site(fields, 'of')}"


def _again(fields: Mapping[str, Any]) -> str:
    return f"; trains again: {', '.join(fields['held'])}" if fields["held"] else ""


def _so_far(fields: Mapping[str, Any]) -> str:
    within = fields.get("within")
    most = "" if within is None else f" of at most {duration(within)}"
    return f"{duration(fields['seconds'])} so far{most}"


def _busy(fields: Mapping[str, Any]) -> str:
    return str(Load(fields["load"], fields["cpus"], fields.get("niceness")))


def remark(name: str, fields: Mapping[str, Any]) -> str | None:
    """A line for an event beside the rounds; None for one that needs no line."""
    match name:
        case "waiting":
            return waiting(fields)
        case "workers_starting":
            return workers_starting(fields)
        case "gang_reserved" if len(fields["vnodes"]) > 1:
            held = [f"{site} {counted(n, 'vnode')}" for site, n in fields["vnodes"].items()]
            return f"  sites    {len(held)}: {', '.join(held)}"
        case "workers_ready":
            workers = counted(fields["workers"], "warm worker")
            kinds = [f"{n} {name}" for name, n in fields.get("vnode_classes", {}).items()]
            of = f" ({', '.join(kinds)})" if kinds else ""
            return f"  workers  {workers}{of}, ready after {duration(fields['seconds'])}"
        case "kernels_compiled":
            where = f" on {fields['host']} of {fields['site']}" if fields["site"] != ALONE else ""
            return (
                f"  compiling {fields['what']} for this kind of processor{where}: some seconds, "
                "once (`fedpilot doctor --warm` does it beforehand)"
            )
        case "execution_chosen":
            clients, way = counted(fields["chunk_size"], "client"), fields["execution"]
            hows = {
                "sequential": "one client after another",
                "compiled": f"up to {clients} per call of compiled code",
            }
            how = hows.get(way, f"up to {clients} at once, {way}")
            return f"  training {how} ({fields['reason']})"
        case "workers_differ":
            others = " or ".join(fields["others"])
            what = f"{fields['what']} is {fields['found']}, elsewhere {others}"
            return f"worker {fields['worker']} is unlike others, and so may be its bits: {what}"
        case "gang_notice":
            what = f"others claim the places of the workers{_site(fields, 'at')}"
            return f"{what} within {duration(fields['seconds'])} ({fields['reason']})"
        case "gang_preempted":
            waits = f"the run{_site(fields, 'at')} waits for its places"
            return f"  preempted {waits}, and goes on by itself ({fields['reason']})"
        case "gang_regained":
            workers = counted(fields["workers"], "worker")
            return f"  workers  {workers}{_site(fields, 'at')} start again"
        case "worker_joined":
            return f"{_worker(fields)} joins"
        case "worker_notice":
            seconds = fields.get("seconds")
            when = "once it is idle" if seconds is None else f"within {duration(seconds)}"
            return f"{_worker(fields)} leaves {when} ({fields['reason']})"
        case "worker_left":
            return f"{_worker(fields)} has left ({fields['reason']}){_again(fields)}"
        case "worker_lost":
            return f"{_worker(fields)} was lost ({fields['reason']}){_again(fields)}"
        case "site_lost" | "site_drained":
            moved = fields["clients"]
            clients = f"; {counted(moved, 'client')} moved to other sites" if moved else ""
            what = "takes no part any more" if name == "site_lost" else "is drained"
            return f"site {fields['site']} {what} ({fields['reason']}){clients}"
        case "replica_made":
            holders = {site: to for site, to in fields["holders"].items() if to}
            where = listed([f"{site} at {to}" for site, to in holders.items()])
            nowhere = [site for site in fields["holders"] if site not in holders]
            left = [f"{site} has none: {fields['reasons'][site]}" for site in nowhere]
            made = [f"replica of {in_bytes(fields['bytes'])}, {where}"] if holders else []
            return f"round {fields['round']}: {'; '.join([*made, *left])}"
        case "reassigned":
            parts = [f"{e['clients']:,} from {e['from']} to {e['to']}" for e in fields["moves"]]
            clients = counted(fields["clients"], "client")
            ways = f"{clients} moved ({listed(parts)})"
            return f"round {fields['round']}: {ways}: {fields['reason']}"
        case "went_back":
            moved = [f"clients of {site} go on at {to}" for site, to in fields["sites"].items()]
            return (
                f"round {fields['round']}: {_lost(fields['reasons'])}; the run goes back to its "
                f"replica after round {fields['to']}, and {listed(moved)}"
            )
        case "link_slow":
            rate = fields["bytes_per_second"] * 8 / 1e6
            took = f"{fields['seconds']:.0f} s a round at {rate:.2g} Mbit/s"
            return f"the link of {fields['site']} is too slow: {took}"
        case "clients_printed":
            printed = zip(fields["clients"], fields["texts"], strict=True)
            said = [f"  {client}: {line}" for client, text in printed for line in text.split("\n")]
            return "\n".join(said)
        case "site_refused":
            kept = "; it takes no further part" if fields["quarantined"] else ""
            what = f"what site {fields['site']} hands up does not count"
            return f"round {fields['round']}: {what}: {fields['reason']}{kept}"
        case "round_quorum" if fields["clients"] < fields["of"]:
            counts = f"{fields['clients']} of {counted(fields['of'], 'client')}"
            return f"round {fields['round']}: closed with {counts}: {fields['reason']}"
        case "late_counted":
            sites, clients = ", ".join(fields["sites"]), counted(fields["clients"], "client")
            of = f"round {fields['of_round']}"
            return f"round {fields['round']}: {clients} of {of} counted late, from {sites}"
        case "grid_coarsened":
            tensors = ", ".join(fields["tensors"])
            return f"round {fields['round']}: sum of {tensors} out of range, repeated more coarsely"
        case name if name in PLAIN:
            return PLAIN[name].format_map(fields)
    return None


def _lost(reasons: Mapping[str, str]) -> str:
    """Sites that were lost, and why."""
    sites = [f"site {site} stays away ({why})" for site, why in sorted(reasons.items())]
    return "; ".join(sites)


def resume_command(folder: str) -> str:
    """The command that continues the run in this folder."""
    path = Path(folder)
    elsewhere = "" if str(path.parent) == "runs" else f" --folder {shlex.quote(str(path.parent))}"
    return f"fedpilot run --resume {path.name}{elsewhere}"


def summary(fields: Mapping[str, Any]) -> list[str]:
    """The run's end, from `run_finished`."""
    status = fields["status"]
    why = f": {fields['reason']}" if status == "finished" else ""
    lines = [f"run {fields['run_id']} {status} after {duration(fields['seconds'])}{why}"]
    if fields["folder"] is None:
        return lines
    if "accuracy" in fields:
        lines.append(f"  accuracy {number(fields['accuracy'])}, loss {number(fields['loss'])}")
    if "best" in fields:
        lines.append(f"  best     {number(fields['best'])} in round {fields['best_round']}")
    lines.append(f"  model    sha256 {fields['digest'][:16]}… after {fields['rounds']} rounds")
    lines.append(f"  folder   {fields['folder']}")
    if status != "finished":
        resume = fields.get("resume") or resume_command(fields["folder"])
        lines.append(f"  resume   {resume}")
    return lines
