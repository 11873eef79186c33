"""Settles a scheduler case: round after round until one changes nothing, and says what ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.ray_clusters.demand import unplaced
from ..core.scheduling.plan import plan
from ..core.scheduling.records import (
    UNLIMITED,
    Decision,
    MoveMember,
    SchedulingPlan,
    StartMembers,
    StopMembers,
    WorkloadId,
)
from ..core.scheduling.snapshot import SchedulingSnapshot
from .case_schema import SettleCase, TimelineCase
from .facts import CaseFacts
from .replay import replayed, summary

MOST_ROUNDS = 100
"""After so many rounds a case counts as one that never settles; every known one takes a few."""

Observer = Callable[[SchedulingSnapshot, SchedulingPlan], None]
"""Called with what each round saw and decided."""


@dataclass(slots=True)
class Settlement:
    """What happened until a case settled."""

    rounds: int = 0
    """The rounds that changed something."""
    settled: bool = True
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    last: SchedulingPlan | None = None


def settle_case(case: SettleCase, observe: Observer | None = None) -> dict[str, Any]:
    """Play a case and answer in the form of the reference page."""
    facts = CaseFacts(case)
    facts.until(0.0)
    for workload in case.workloads:
        if workload.leaves_s is None:
            facts.submit(workload, 0.0)
    first = _running(facts)
    done = settle(facts, case, 0.0, observe)
    return _answer(case, facts, first, done)


def replay_case(case: SettleCase) -> dict[str, Any]:
    """Replay a case in virtual time; the situation in the answer is the one at the end."""
    played = replayed(case)
    done = Settlement(decisions=played.decisions, last=played.last)
    done.rounds = len({at for at, _ in played.decisions})
    first = {each.id: len(each.running or each.running_on) for each in case.workloads}
    answer = _answer(case, played.facts, first, done, when="at_s")
    return {**answer, "replay": summary(case, played)}


def timeline_case(case: TimelineCase, observe: Observer | None = None) -> dict[str, Any]:
    """Play all steps of a case."""
    facts = CaseFacts(case)
    by_id = {each.id: each for each in case.workloads}
    steps = []
    for step in case.steps:
        facts.until(step.at_s)
        for event in step.do:
            match event.op:
                case "submit" if event.workload not in facts.facts.workloads:
                    facts.submit(by_id[event.workload or ""], step.at_s)
                case "finish" if event.workload in facts.facts.workloads:
                    facts.facts.remove(WorkloadId(event.workload or ""))
                case "node_lost":
                    facts.facts.machine_lost(event.node or "", step.at_s)
                case "node_back":
                    facts.facts.machine_back(event.node or "")
        first = _running(facts)
        done = settle(facts, case, step.at_s, observe)
        steps.append({"at_s": step.at_s, **_answer(case, facts, first, done)})
    return {"steps": steps}


def settle(
    facts: CaseFacts,
    case: SettleCase | TimelineCase,
    now: float,
    observe: Observer | None = None,
) -> Settlement:
    """Plan and apply until a plan decides nothing."""
    settings = facts.settings
    done = Settlement()
    while True:
        snapshot = facts.facts.snapshot()
        done.last = plan(snapshot, now, settings)
        if observe is not None:
            observe(snapshot, done.last)
        if not done.last.decisions:
            return done
        done.rounds += 1
        for decision in done.last.decisions:
            facts.facts.apply(decision, now)
            done.decisions.append((done.rounds, decision))
        if done.rounds >= MOST_ROUNDS:
            done.settled = False
            return done


def _answer(
    case: SettleCase | TimelineCase,
    facts: CaseFacts,
    first: Mapping[str, int],
    done: Settlement,
    when: str = "round",
) -> dict[str, Any]:
    """The answer of the reference page; `first` is how many members of each ran at first."""
    names = facts.facts.fleet.names
    running: dict[str, int] = {}
    placement: dict[str, dict[str, int]] = {}
    for each in case.workloads:
        workload = facts.facts.workloads.get(WorkloadId(each.id))
        members = workload.members if workload is not None else ()
        running[each.id] = len(members)
        placement[each.id] = dict(sorted(Counter(names[m.machine] for m in members).items()))
    assert done.last is not None
    projects, departments = _shares(facts, done.last)
    answer = {
        "running": running,
        "placement": placement,
        "disturbed": _disturbed(first, done),
        "stopped": _stopped(case, done),
        "fairshare": projects,
        "rounds": done.rounds,
        "settled": done.settled,
        "decisions": [{when: n, **_decision(names, each)} for n, each in done.decisions],
        "waiting": {
            id: {"rule": str(wait.reason.rule), "text": wait.reason.text}
            for wait in done.last.waits
            for id in wait.workloads
        },
        "unplaced": [each.document() for each in unplaced(facts.facts.snapshot(), done.last)],
    }
    if departments:
        answer["department_fairshare"] = departments
    return answer


def _running(facts: CaseFacts) -> dict[str, int]:
    return {id: len(each.members) for id, each in facts.facts.workloads.items()}


def _disturbed(first: Mapping[str, int], done: Settlement) -> list[str]:
    """The workloads of which a member that ran at first was stopped or moved."""
    members = {id: [True] * count for id, count in first.items()}
    found = set()
    for _, decision in done.decisions:
        old = members[decision.workload]
        match decision:
            case StartMembers():
                old.extend([False] * len(decision.members))
            case StopMembers():
                gone = set(decision.positions)
                if any(old[at] for at in gone):
                    found.add(decision.workload)
                members[decision.workload] = [x for at, x in enumerate(old) if at not in gone]
            case MoveMember():
                if old[decision.position]:
                    found.add(decision.workload)
    return sorted(found)


def _stopped(case: SettleCase | TimelineCase, done: Settlement) -> dict[str, int]:
    counts = {each.id: 0 for each in case.workloads}
    for _, decision in done.decisions:
        if isinstance(decision, StopMembers):
            counts[decision.workload] += len(decision.positions)
        elif isinstance(decision, MoveMember):
            counts[decision.workload] += 1
    return counts


def _shares(facts: CaseFacts, last: SchedulingPlan) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fair share by project and by department, each by pool and resource."""
    projects: dict[str, Any] = {}
    departments: dict[str, Any] = {}
    for queue, share in zip(facts.queues, last.fairshare, strict=True):
        amounts = facts.scale.by_name(share)
        known = {
            name: amounts[name]
            for name, amount in zip(facts.scale.names, share, strict=True)
            if amount < UNLIMITED
        }
        section = projects if queue.leaf else departments
        section.setdefault(queue.name, {})[queue.pool] = known
    return projects, departments


def _decision(names: tuple[str, ...], decision: Decision) -> dict[str, Any]:
    told: dict[str, Any] = {"workload": decision.workload}
    match decision:
        case StartMembers():
            told |= {"action": "start", "nodes": [names[m.machine] for m in decision.members]}
        case StopMembers():
            told |= {"action": "stop", "nodes": [names[m.machine] for m in decision.members]}
            told["claimant"] = decision.claimant
        case MoveMember():
            told |= {"action": "move", "from": names[decision.source.machine]}
            told |= {"nodes": [names[decision.target.machine]], "claimant": decision.claimant}
    told["reason"] = {"rule": str(decision.reason.rule), "text": decision.reason.text}
    return told
