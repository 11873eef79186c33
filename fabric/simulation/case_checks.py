"""What a case must keep beyond the form of its keys: names that exist, amounts that fit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedpilot.common.strict_yaml.checks import known, problem, unique
from fedpilot.common.strict_yaml.errors import Path, printable
from fedpilot.common.strict_yaml.schema_problems import Located

from ..core.scheduling.priority_classes import CLASSES
from ..core.scheduling.records import Rule
from ..core.selectors import check_value, parse
from .case_schema import (
    Case,
    CaseDepartment,
    CaseEvent,
    CaseProject,
    CaseWorkload,
    ClusterEvent,
    FairshareCase,
    MemberCounts,
    SchedulerCase,
    SettleCase,
    SettleExpect,
    TimelineCase,
    Used,
    VirtualClusterCase,
    parts_of,
)

MOST_GPUS = 10_000
"""Of one machine, since shares are counted GPU by GPU."""
INSTEAD_OF_PARTS = {
    "members",
    "member_request",
    "node_selector",
    "flexible",
    "policy",
    "running_on",
}
"""The keys of a workload whose members are all equal."""
SLACK = 1e-9
"""How much a sum of fractions may exceed a capacity by rounding."""


def problems_in(case: Case) -> Iterator[Located]:
    """Every rule that a case breaks."""
    match case:
        case SchedulerCase():
            yield from _scheduler_case(case)
        case FairshareCase():
            yield from _fairshare_case(case)
        case VirtualClusterCase():
            yield from _virtual_cluster_case(case)


def _scheduler_case(case: SchedulerCase) -> Iterator[Located]:
    yield from unique("nodes", "name", [each.name for each in case.nodes])
    yield from unique("departments", "name", [each.name for each in case.departments])
    yield from unique("projects", "name", [each.name for each in case.projects])
    yield from unique("workloads", "id", [each.id for each in case.workloads])
    yield from unique(
        "classes", "name", [*CLASSES, *(each.name for each in case.classes)], len(CLASSES)
    )
    departments = {each.name for each in case.departments}
    pools = case.pools
    for i, node in enumerate(case.nodes):
        for name, amount in node.capacity.items():
            if name.lower() == "gpu" and amount > MOST_GPUS:
                found = f"the number {amount:.15g}"
                yield problem(("nodes", i, "capacity", name), found, f"at most {MOST_GPUS}")
    for i, project in enumerate(case.projects):
        if project.department is not None:
            path: Path = ("projects", i, "department")
            yield from known(path, "department", project.department, departments)
    queues: list[tuple[Path, CaseDepartment | CaseProject]] = []
    queues += [(("departments", i), each) for i, each in enumerate(case.departments)]
    queues += [(("projects", i), each) for i, each in enumerate(case.projects)]
    for at, queue in queues:
        for key, amounts in (
            ("quota", queue.quota),
            ("over_quota_weight", queue.over_quota_weight),
            ("limit", queue.limit),
        ):
            for pool in amounts:
                yield from known((*at, key, pool), "pool", pool, pools)
        yield from _usage((*at, "usage"), queue.usage, case)
    yield from _shares_without_room(case)
    used: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for i, workload in enumerate(case.workloads):
        yield from _workload(case, ("workloads", i), workload, pools, used)
    yield from _over_capacity(case, used)
    ids = {each.id for each in case.workloads}
    if isinstance(case, SettleCase) and case.expect is not None:
        yield from _expected(("expect",), case.expect, ids, case)
    if isinstance(case, TimelineCase):
        yield from _in_time([step.at_s for step in case.steps])
        nodes = {each.name for each in case.nodes}
        for i, step in enumerate(case.steps):
            for j, event in enumerate(step.do):
                yield from _event(("steps", i, "do", j), event, ids, nodes)
            if step.expect is not None:
                yield from _expected(("steps", i, "expect"), step.expect, ids, case)


def _usage(at: Path, spans: Sequence[Used], case: SchedulerCase) -> Iterator[Located]:
    resources = {name for capacity in case.capacities for name in capacity}
    for i, span in enumerate(spans):
        yield from known((*at, i, "pool"), "pool", span.pool, case.pools)
        for name in span.amounts:
            yield from known((*at, i, "amounts", name), "resource", name, resources)
        if not span.from_s < span.to_s <= case.begins_s:
            found = f"from {span.from_s:.15g} to {span.to_s:.15g} s"
            allowed = f"a span that ends by {case.begins_s:.15g} s, when the case begins"
            yield problem((*at, i, "to_s"), found, allowed)


def _workload(
    case: SchedulerCase,
    at: Path,
    workload: CaseWorkload,
    pools: set[str],
    used: dict[str, dict[str, float]],
) -> Iterator[Located]:
    projects = {each.name for each in case.projects}
    yield from known((*at, "project"), "project", workload.project, projects)
    yield from known((*at, "pool"), "pool", workload.pool, pools)
    if workload.class_ is not None:
        classes = {*CLASSES, *(each.name for each in case.classes)}
        yield from known((*at, "class"), "class", workload.class_, classes)
    if workload.parts:
        yield from _parts(case, at, workload)
    elif workload.member_request is None:
        yield problem((*at, "member_request"), "it is missing", "what each member asks for")
    else:
        yield from _equal_members(case, at, workload)
    nodes = {each.name: each for each in case.nodes}
    for path, name, request in _running(at, workload):
        yield from known(path, "node", name, set(nodes))
        if name not in nodes:
            continue
        if nodes[name].pool != workload.pool:
            found = f'"{printable(name)}" of the pool "{printable(nodes[name].pool)}"'
            yield problem(path, found, f'a node of its pool "{printable(workload.pool)}"')
        for resource, amount in request.items():
            used[name][resource] += amount


def _equal_members(case: SchedulerCase, at: Path, workload: CaseWorkload) -> Iterator[Located]:
    """Members that all ask for the same."""
    yield from _counts((*at, "members"), workload.members)
    if len(workload.running_on) > workload.members.max:
        yield problem(
            (*at, "running_on"),
            f"a list of {len(workload.running_on)}",
            f"at most `members.max`, which is {workload.members.max}",
        )
    for key in ("policies", "running"):
        if getattr(workload, key):
            yield problem((*at, key), "a list", "left out, since there are no `parts`")
    for label, value in workload.node_selector.items():
        yield from _selected((*at, "node_selector", label), [value])
    yield from _request(case, (*at, "member_request"), workload.member_request or {})


def _parts(case: SchedulerCase, at: Path, workload: CaseWorkload) -> Iterator[Located]:
    """Members that differ."""
    for key in sorted(workload.model_fields_set & INSTEAD_OF_PARTS):
        yield problem((*at, key), "a value", "left out, since there are `parts`")
    groups = len(workload.policies) or 1
    for i, part in enumerate(workload.parts):
        path = (*at, "parts", i)
        yield from _counts((*path, "members"), part.members)
        yield from _request(case, (*path, "request"), part.request)
        if part.group >= groups:
            allowed = f"less than the number of `policies`, which is {groups}"
            yield problem((*path, "group"), f"the number {part.group}", allowed)
        for label, text in part.selector.items():
            try:
                parse(text)
            except ValueError as error:
                yield problem((*path, "selector", label), printable(text), str(error))
    running = Counter(each.part for each in workload.running)
    for j, member in enumerate(workload.running):
        path = (*at, "running", j, "part")
        if member.part >= len(workload.parts):
            allowed = f"less than the number of `parts`, which is {len(workload.parts)}"
            yield problem(path, f"the number {member.part}", allowed)
        elif not workload.parts[member.part].borrowed and running[member.part] > (
            most := workload.parts[member.part].members.max
        ):
            found = f"a member of a part with {running[member.part]}"
            yield problem(path, found, f"at most its `members.max`, which is {most}")


def _running(at: Path, workload: CaseWorkload) -> Iterator[tuple[Path, str, Mapping[str, float]]]:
    """Each running member: where it is given, its node, and what it holds."""
    for j, name in enumerate(workload.running_on):
        yield (*at, "running_on", j), name, workload.member_request or {}
    for j, member in enumerate(workload.running):
        if member.part < len(workload.parts):
            yield (*at, "running", j, "node"), member.node, workload.parts[member.part].request


def _counts(at: Path, members: MemberCounts) -> Iterator[Located]:
    if members.min > members.max:
        allowed = f"at most `members.max`, which is {members.max}"
        yield problem((*at, "min"), f"the number {members.min}", allowed)


def _request(case: SchedulerCase, at: Path, request: Mapping[str, float]) -> Iterator[Located]:
    """Resources that some machine has, with GPUs that are shares of one or whole ones."""
    offered = {name for capacity in case.capacities for name in capacity}
    for name, amount in request.items():
        if amount:
            yield from known((*at, name), "resource", name, offered)
        if name.lower() == "gpu" and amount > 1 and amount % 1:
            allowed = "a share of one GPU, or whole GPUs"
            yield problem((*at, name), f"the number {amount:.15g}", allowed)


def _over_capacity(
    case: SchedulerCase, used: Mapping[str, Mapping[str, float]]
) -> Iterator[Located]:
    last = {
        name: path
        for i, workload in enumerate(case.workloads)
        for path, name, _ in _running(("workloads", i), workload)
    }
    for node in case.nodes:
        for resource, amount in used.get(node.name, {}).items():
            most = node.capacity.get(resource, 0.0)
            if amount > most + SLACK:
                found = f"{amount:.15g} {resource} in use on {printable(node.name)}"
                yield problem(last[node.name], found, f"at most {most:.15g} {resource}")


def _shares_without_room(case: SchedulerCase) -> Iterator[Located]:
    """Running shares of a GPU that no single GPU has room for, given those before them."""
    if not any(
        amount % 1
        for workload in case.workloads
        for part in parts_of(workload)
        for name, amount in part.request.items()
        if name.lower() == "gpu"
    ):
        return
    gpus = {
        node.name: [1.0] * int(amount) + [amount % 1] * bool(amount % 1)
        for node in case.nodes
        for name, amount in node.capacity.items()
        if name.lower() == "gpu"
    }
    for i, workload in enumerate(case.workloads):
        for path, name, request in _running(("workloads", i), workload):
            asked = sum(n for resource, n in request.items() if resource.lower() == "gpu")
            left = gpus.get(name, [])
            each = min(asked, 1.0)
            fits = sorted((room, at) for at, room in enumerate(left) if room >= each - SLACK)
            wanted = 1 if 0 < asked < 1 else int(asked)
            if len(fits) < wanted and sum(left) >= asked - SLACK:
                found = f"{asked:.15g} gpu, where no single GPU of {printable(name)} has so much"
                yield problem(path, found, "shares that fit GPUs")
            for _, at in fits[:wanted]:
                left[at] -= each


def _expected(
    at: Path, expect: SettleExpect, ids: set[str], case: SchedulerCase
) -> Iterator[Located]:
    named: list[tuple[Path, str]] = []
    for key in ("running", "running_min", "placement", "stopped", "waiting"):
        named += [((*at, key, id), id) for id in getattr(expect, key)]
    if isinstance(expect.nodes_used, dict):
        named += [((*at, "nodes_used", id), id) for id in expect.nodes_used]
    named += [((*at, "undisturbed", i), id) for i, id in enumerate(expect.undisturbed)]
    for i, total in enumerate(expect.running_total):
        named += [
            ((*at, "running_total", i, "workloads", j), id) for j, id in enumerate(total.workloads)
        ]
    for i, counts in enumerate(expect.any_of):
        named += [((*at, "any_of", i, id), id) for id in counts]
    for path, id in named:
        yield from known(path, "workload", id, ids)
    for id, rule in expect.waiting.items():
        yield from known((*at, "waiting", id), "rule", rule, set(Rule))
    projects = {each.name for each in case.projects}
    for name, pools in expect.fairshare.items():
        yield from known((*at, "fairshare", name), "project", name, projects)
        for pool in pools:
            yield from known((*at, "fairshare", name, pool), "pool", pool, case.pools)
    nodes = {each.name for each in case.nodes}
    for id, counts in expect.placement.items():
        for node in counts:
            yield from known((*at, "placement", id, node), "node", node, nodes)


def _event(at: Path, event: CaseEvent, ids: set[str], nodes: set[str]) -> Iterator[Located]:
    if event.op in ("submit", "finish"):
        yield from _named((*at, "workload"), "workload", event.workload, ids)
    else:
        yield from _named((*at, "node"), "node", event.node, nodes)


def _fairshare_case(case: FairshareCase) -> Iterator[Located]:
    yield from unique("departments", "name", [each.name for each in case.departments])
    yield from unique("queues", "name", [each.name for each in case.queues])
    departments = {each.name for each in case.departments}
    queues = {each.name for each in case.queues}
    for i, queue in enumerate(case.queues):
        if queue.department is not None:
            path: Path = ("queues", i, "department")
            yield from known(path, "department", queue.department, departments)
    if case.expect is not None:
        for name in case.expect.fairshare:
            yield from known(("expect", "fairshare", name), "queue", name, queues)
        for name in case.expect.department_fairshare:
            path = ("expect", "department_fairshare", name)
            yield from known(path, "department", name, departments)


def _virtual_cluster_case(case: VirtualClusterCase) -> Iterator[Located]:
    yield from unique("nodes", "name", [each.name for each in case.nodes])
    yield from unique("virtual_clusters", "id", [each.id for each in case.virtual_clusters])
    clusters = {each.id for each in case.virtual_clusters}
    parents = {each.id: each.parent for each in case.virtual_clusters}
    for i, cluster in enumerate(case.virtual_clusters):
        path: Path = ("virtual_clusters", i, "parent")
        if cluster.parent is not None:
            yield from known(path, "virtual cluster", cluster.parent, clusters)
        for j, fixed in enumerate(cluster.fixed_nodes):
            for label, values in fixed.parent_selector.items():
                at: Path = ("virtual_clusters", i, "fixed_nodes", j, "parent_selector", label)
                yield from _selected(at, values)
        if _in_circle(cluster.id, parents):
            yield problem(path, f'"{cluster.parent}", inside "{cluster.id}"', "no circle")
        for name, least in cluster.flex_min.items():
            most = cluster.flex_max.get(name)
            if most is not None and least > most:
                yield problem(
                    ("virtual_clusters", i, "flex_min", name),
                    f"the number {least:.15g}",
                    f"at most `flex_max`, which is {most:.15g}",
                )
    yield from _in_time([step.at_s for step in case.steps])
    tasks: set[str] = set()
    nodes, created = {each.name for each in case.nodes}, set[str]()
    for i, step in enumerate(case.steps):
        for j, event in enumerate(step.do):
            at = ("steps", i, "do", j)
            yield from _cluster_event(at, event, clusters, tasks)
            if event.op == "add_node" and event.node in nodes:
                yield problem((*at, "node"), f'"{event.node}" a second time', "each node once")
            if event.op == "create_cluster" and event.cluster in created:
                found = f'"{event.cluster}" a second time'
                yield problem((*at, "cluster"), found, "a virtual cluster that does not exist now")
            if event.op == "add_node":
                nodes.add(event.node or "")
            elif event.op == "create_cluster":
                created.add(event.cluster or "")
            elif event.op == "end_cluster":
                created = _without(event.cluster, created, parents)


def _cluster_event(
    at: Path, event: ClusterEvent, clusters: set[str], tasks: set[str]
) -> Iterator[Located]:
    if event.op in ("create_cluster", "end_cluster", "submit_task"):
        yield from _named((*at, "cluster"), "virtual cluster", event.cluster, clusters)
    if event.op == "submit_task":
        if event.task in tasks:
            yield problem((*at, "task"), f'the task "{event.task}" a second time', "a new name")
        if event.task is None:
            yield problem((*at, "task"), "it is missing", "a new name")
        if event.resources is None:
            yield problem((*at, "resources"), "it is missing", "amounts by name")
        tasks.add(event.task or "")
    if event.op == "finish_task":
        yield from _named((*at, "task"), "task", event.task, tasks)
    if event.op == "add_node":
        if event.node is None:
            yield problem((*at, "node"), "it is missing", "a new name")
        if event.capacity is None:
            yield problem((*at, "capacity"), "it is missing", "amounts by name")


def _without(ended: str | None, created: set[str], parents: Mapping[str, str | None]) -> set[str]:
    """The virtual clusters that are left when one ends, with all in it."""
    gone = {ended}
    while more := {each for each in created - gone if parents.get(each) in gone}:
        gone |= more
    return created - gone


def _in_circle(start: str, parents: Mapping[str, str | None]) -> bool:
    seen, now = {start}, parents.get(start)
    while now is not None and now not in seen:
        seen.add(now)
        now = parents.get(now)
    return now == start


def _in_time(times: list[float]) -> Iterator[Located]:
    for i in range(1, len(times)):
        if times[i] < times[i - 1]:
            path: Path = ("steps", i, "at_s")
            yield problem(
                path, f"the number {times[i]:.15g}", f"at least {times[i - 1]:.15g}, as before it"
            )


def _selected(path: Path, values: list[str]) -> Iterator[Located]:
    """Label values that a selector cannot ask for."""
    if not values:
        yield problem(path, "an empty list", "at least one value")
    for value in values:
        try:
            check_value(value)
        except ValueError:
            allowed = "letters, digits, '-', '_' and '.', 63 at most"
            yield problem(path, f'"{printable(value, 40)}"', allowed)


def _named(path: Path, what: str, name: str | None, those: Iterable[str]) -> Iterator[Located]:
    if name is None:
        yield problem(path, "it is missing", f"a {what}")
    else:
        yield from known(path, what, name, those)
