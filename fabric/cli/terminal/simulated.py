"""The output of `simulate`: what runs where, the shares, and every decision with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedpilot.common.terminal.layout import ruled

from ...simulation.case_schema import Case

MOST_DECISIONS = 50
"""How many decisions are shown; `--json` lists all."""


def case_view(case: Case, answer: Mapping[str, Any], failed: Sequence[str]) -> RenderableType:
    """One case."""
    parts: list[RenderableType] = [Text(case.id, "bold"), *_about(case)]
    if "steps" in answer:
        for step in answer["steps"]:
            parts.append(Text(f"at {step['at_s']:.15g} s", "bold"))
            parts += _situation(step)
    else:
        parts += _situation(answer)
    parts += [Text(f"expected otherwise: {each}", "red") for each in failed]
    return Group(*parts, Text())


def _about(case: Case) -> Iterator[RenderableType]:
    if case.summary:
        yield Text(case.summary)


def _situation(told: Mapping[str, Any]) -> Iterator[RenderableType]:
    if "running" in told:
        yield _workloads(told)
        yield Text()
        yield _shares(told)
        yield Text()
        if "replay" in told:
            yield from _replay(told["replay"])
            yield Text()
        yield from _decisions(told["decisions"])
    elif "unassigned" in told:
        table = ruled("queue", "fair share", right=("fair share",))
        for name, share in {**told["department_fairshare"], **told["fairshare"]}.items():
            table.add_row(name, f"{share:.15g}")
        yield table
        yield Text(f"unassigned: {told['unassigned']:.15g}")
    else:
        for key, value in told.items():
            if key not in ("id", "at_s") and value not in ({}, None):
                yield Text(f"{key}: {json.dumps(value)}")


def _replay(told: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(f"ends after {told['ends_s']:.15g} s")
    for pool, used in told["utilisation"].items():
        words = ", ".join(f"{share:.0%} of {name}" for name, share in used.items())
        yield Text(f"used of {pool}: {words}")
    columns = ("project", "started", "finished", "waited (mean)", "waited (longest)", "stopped")
    table = ruled(*columns, right=columns[1:])
    for name, found in told["projects"].items():
        waits = (found["waited_mean_s"], found["waited_longest_s"])
        words_of = ["" if each is None else f"{each:.4g} s" for each in waits]
        counts = (str(found["started"]), str(found["finished"]))
        table.add_row(name, *counts, *words_of, str(found["stopped_members"]))
    yield table


def _workloads(told: Mapping[str, Any]) -> RenderableType:
    table = ruled("workload", "members", "on", "waits because", right=("members",))
    for id, count in told["running"].items():
        places = ", ".join(f"{node} x{n}" for node, n in told["placement"][id].items())
        why = told["waiting"].get(id)
        table.add_row(id, str(count), places, why["text"] if why else "")
    return table


def _shares(told: Mapping[str, Any]) -> RenderableType:
    table = ruled("queue", "pool", "fair share")
    for shares in (told.get("department_fairshare", {}), told["fairshare"]):
        for queue, pools in shares.items():
            for pool, amounts in pools.items():
                words = ", ".join(f"{amount:.15g} {name}" for name, amount in amounts.items())
                table.add_row(queue, pool, words or "not rationed")
    return table


def _decisions(decisions: Sequence[Mapping[str, Any]]) -> Iterator[RenderableType]:
    if not decisions:
        yield Text("no decisions")
        return
    table = ruled("when", "decision", "on", "reason", right=("when",))
    for each in decisions[:MOST_DECISIONS]:
        reason = f"{each['reason']['rule']}: {each['reason']['text']}"
        claimant = each.get("claimant")
        words = f"{each['action']} {each['workload']}" + (f" for {claimant}" if claimant else "")
        table.add_row(
            f"{each.get('round', each.get('at_s')):.15g}", words, ", ".join(each["nodes"]), reason
        )
    yield table
    if len(decisions) > MOST_DECISIONS:
        yield Text(f"{len(decisions) - MOST_DECISIONS} more decisions: --json lists all")
