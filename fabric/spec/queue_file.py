"""Reads an admin's file of queues, or reports all that is wrong with it: file, line, key.

`QueueFile` says who may ask for what; `queue_table` turns it into queues of the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from fedpilot.common.strict_yaml.checks import in_file, known, problem
from fedpilot.common.strict_yaml.errors import BadFile, Path, Problem, dotted, printable
from fedpilot.common.strict_yaml.reading import read, text_of
from fedpilot.common.strict_yaml.schema_problems import MISSING, Located, problems_of, value_at
from fedpilot.common.text.amounts import counted, listed

from ..core.scheduling.priority_classes import CLASSES, DEFAULT_CLASS
from ..core.selectors import Selector, check_label, matches, parse
from .queues import (
    DEFAULT_POOL,
    DEFAULT_PROJECT,
    DeclaredProject,
    Department,
    Pool,
    PriorityClass,
    QueueSettings,
    QueuesSection,
)

LONGEST_NAME = 63
ROLE = "role:"
"""Begins an entry of `users` that stands for all users with a role."""
OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")
"""Resources that Ray itself counts, as it spells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFile:
    """What an admin declared, with the project `default`."""

    pools: Sequence[Pool] = ()
    departments: Sequence[Department] = ()
    projects: Sequence[DeclaredProject]
    classes: Sequence[PriorityClass] = ()
    settings: QueueSettings = field(default_factory=QueueSettings)
    document: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the file, as JSON values; `queue_file_of` reads it back."""
    selectors: Mapping[str, Selector] = field(default_factory=dict)
    """By pool, in the order of the file."""
    stops: bool = True
    """Whether work is stopped for other work at all."""

    @classmethod
    def unlimited(cls) -> QueueFile:
        """What counts without a file: one project with an unlimited quota, and no work is stopped.

        Who names no priority class has priority 0, so that priorities compare as they are.
        """
        return cls(
            projects=(DeclaredProject(name=DEFAULT_PROJECT),),
            classes=(PriorityClass(name=DEFAULT_CLASS, priority=0),),
            settings=QueueSettings(stale_gang_grace_s=-1.0, surplus_claims="none"),
            stops=False,
        )

    @property
    def pool_names(self) -> tuple[str, ...]:
        """All pools, `default` last."""
        return (*self.selectors, DEFAULT_POOL)

    @property
    def class_names(self) -> tuple[str, ...]:
        """All priority classes, the highest first."""
        levels = {**CLASSES, **{each.name: each.priority for each in self.classes}}
        return tuple(sorted(levels, key=lambda name: (-levels[name], name)))

    @property
    def resources(self) -> frozenset[str]:
        """The resources that its queues name."""
        return frozenset(
            name
            for queue in (*self.departments, *self.projects)
            for by_pool in (queue.quota, queue.over_quota_weight, queue.limit)
            for amounts in by_pool.values()
            for name in amounts
        )

    def pools_of(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        """The pools that a machine with these labels matches, in order; the first has it."""
        found = tuple(name for name, each in self.selectors.items() if matches(each, labels))
        return found or (DEFAULT_POOL,)

    def first_pool(self, project: str) -> str:
        """The pool of requests that name none: the first with a quota above 0 for their project."""
        for each in self.projects:
            if each.name == (project or DEFAULT_PROJECT):
                for pool in self.selectors:
                    if any(amount != 0 for amount in each.quota.get(pool, {}).values()):
                        return pool
        return DEFAULT_POOL

    def refusal(
        self,
        project: str,
        user: str | None,
        roles: Collection[str] = (),
        priority_class: str = "",
        pool: str = "",
    ) -> str | None:
        """Why a request is refused; None if it may wait in its queue.

        Empty names stand for `default`, `train`, and the first pool. A user of None may be any.
        """
        name = project or DEFAULT_PROJECT
        mine = next((each for each in self.projects if each.name == name), None)
        if mine is None:
            return _unknown("project", name, [each.name for each in self.projects])
        if pool and pool not in self.pool_names:
            return _unknown("pool", pool, self.pool_names)
        theirs = {user, *(f"{ROLE}{role}" for role in roles)}
        if user is not None and mine.users is not None and not theirs & {*mine.users}:
            takes = listed([printable(each) for each in mine.users])
            return f"project {printable(name)} takes requests of {takes}, not of {printable(user)}"
        kind = priority_class or DEFAULT_CLASS
        if kind not in self.class_names:
            return _unknown("priority class", kind, self.class_names)
        if mine.classes is not None and kind not in mine.classes:
            takes = listed([printable(each) for each in mine.classes])
            return f"project {printable(name)} allows the priority classes {takes}, not {kind}"
        return None


def _unknown(what: str, name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, 1)
    hint = f" (did you mean {printable(near[0])}?)" if near else ""
    there = listed([printable(each) for each in names], 20)
    return f"there is no {what} {printable(name)}{hint}; there are: {there}"


def read_queue_file(path: FilePath, one_pool: str = "") -> QueueFile:
    """The queues in a file. Raises BadFile, with the line of each problem.

    `one_pool` names what is a single pool, so that the file may declare none.
    """
    name = printable(str(path), 200)
    read_as = read(text_of(path), lambda line: f"{name}:{line}")
    if read_as.problems:
        raise BadFile([problem for _, problem in read_as.problems])
    values = {} if read_as.value is None else read_as.value
    found = _declared(values)
    if isinstance(found, QueueFile):
        if not (one_pool and found.pools):
            return found
        allowed = f"no pools: {one_pool} are the pool `{DEFAULT_POOL}`"
        found = [problem(("pools",), counted(len(found.pools), "pool"), allowed)]
    raise BadFile(in_file(found, read_as.lines, name, values))


def queue_file_of(document: Mapping[str, Any]) -> QueueFile:
    """The queues in a document. Raises BadFile."""
    found = _declared(document)
    if isinstance(found, QueueFile):
        return found
    raise BadFile([problem for _, problem in found])


def _declared(values: Any) -> QueueFile | list[Located]:
    """The queues, or all that is wrong with them."""
    try:
        section = QueuesSection.model_validate(values)
    except ValidationError as error:
        return list(problems_of(QueuesSection, error, values))
    if problems := list(_problems_in(section)) or list(_left_out(section)):
        return problems
    projects = [each for each in section.projects if each.name != DEFAULT_PROJECT]
    given = next((each for each in section.projects if each.name == DEFAULT_PROJECT), None)
    mentioned = {pool: list(names) for pool, names in _mentioned(section).items()}
    completed = _completed(given or DeclaredProject(name=DEFAULT_PROJECT), mentioned)
    if given is None:
        projects.append(completed)
    else:
        projects.insert(section.projects.index(given), completed)
    return QueueFile(
        pools=tuple(section.pools),
        departments=tuple(section.departments),
        projects=tuple(projects),
        classes=tuple(section.classes),
        settings=section.settings,
        document=section.model_dump(mode="json", exclude_unset=True),
        selectors={
            each.name: {label: parse(text) for label, text in each.selector.items()}
            for each in section.pools
        },
    )


def _completed(given: DeclaredProject, mentioned: Mapping[str, Sequence[str]]) -> DeclaredProject:
    """The project `default` with a quota of 0 and a weight of 1 where it says nothing."""
    quota = {pool: dict(amounts) for pool, amounts in given.quota.items()}
    weight = {pool: dict(amounts) for pool, amounts in given.over_quota_weight.items()}
    for pool, names in mentioned.items():
        for name in names:
            if name not in quota.setdefault(pool, {}):
                quota[pool][name] = 0.0
                weight.setdefault(pool, {}).setdefault(name, 1.0)
    return given.model_copy(update={"quota": quota, "over_quota_weight": weight})


# -- what a file must keep beyond the form of its keys ---------------------------------------------


def _problems_in(section: QueuesSection) -> Iterator[Located]:
    yield from _names(section)
    for i, pool in enumerate(section.pools):
        yield from _selector(("pools", i, "selector"), pool.selector)
    departments = [each.name for each in section.departments]
    for i, project in enumerate(section.projects):
        at: Path = ("projects", i)
        if project.department is not None:
            yield from known((*at, "department"), "department", project.department, departments)
        for j, user in enumerate(project.users or ()):
            if not user.removeprefix(ROLE).strip():
                found = f'the text "{printable(user)}"'
                yield problem((*at, "users", j), found, f"a user, or `{ROLE}` with a role")
        classes = [*CLASSES, *(each.name for each in section.classes)]
        for j, name in enumerate(project.classes or ()):
            yield from known((*at, "classes", j), "priority class", name, classes)
    pools = [*(each.name for each in section.pools), DEFAULT_POOL]
    for path, queue in _queues(section):
        for key in ("quota", "over_quota_weight", "limit"):
            for pool_name, amounts in getattr(queue, key).items():
                yield from known((*path, key, pool_name), "pool", pool_name, pools)
                for resource in amounts:
                    yield from _resource((*path, key, pool_name, resource), resource)
    for pool_name in section.settings.pool_placement:
        path = ("settings", "pool_placement", pool_name)
        yield from known(path, "pool", pool_name, pools)


def _queues(section: QueuesSection) -> Iterator[tuple[Path, Department]]:
    for key, queues in (("departments", section.departments), ("projects", section.projects)):
        for i, queue in enumerate(queues):
            yield (key, i), queue


def _names(section: QueuesSection) -> Iterator[Located]:
    """Names twice, reserved, or in a form that commands could not take."""
    pools = [(("pools", i), each.name) for i, each in enumerate(section.pools)]
    queues = [(path, queue.name) for path, queue in _queues(section)]
    classes = [(("classes", i), each.name) for i, each in enumerate(section.classes)]
    for what, named, taken in (
        ("pool", pools, {DEFAULT_POOL: "machines that match no pool are in `default`"}),
        ("department or project", queues, {}),
        ("priority class", classes, dict.fromkeys(CLASSES, "it is a preset")),
    ):
        first: dict[str, Path] = {}
        for above, name in named:
            path: Path = (*above, "name")
            found = f'"{printable(name)}"'
            if "/" in name or not name.isprintable() or name != name.strip():
                allowed = f"at most {LONGEST_NAME} characters, without `/` and outer spaces"
                yield problem(path, f"the name {found}", allowed)
            elif len(name) > LONGEST_NAME:
                yield problem(path, f"{len(name)} characters", f"at most {LONGEST_NAME}")
            elif name in taken:
                yield problem(path, found, f"another name: {taken[name]}")
            elif name in first:
                allowed = f"a name that no other {what} has, as `{dotted(first[name])}` does"
                yield problem(path, f"{found} a second time", allowed)
            if above == ("departments", above[1]) and name == DEFAULT_PROJECT:
                yield problem(path, found, "another name: `default` is a project")
            first.setdefault(name, path)


def _selector(path: Path, selector: Mapping[str, str]) -> Iterator[Located]:
    if not selector:
        yield problem(path, "an empty section", "a condition for at least one label")
    for label, text in selector.items():
        try:
            check_label(label)
        except ValueError:
            allowed = "a label of letters, digits, '-', '_' and '.', 63 at most"
            yield problem((*path, label), f'the label "{printable(label)}"', allowed)
        try:
            parse(text)
        except ValueError:
            allowed = "a condition: a, !a, in(a,b), !in(a,b), exists() or !exists()"
            yield problem((*path, label), f'the text "{printable(text)}"', allowed)


def _resource(path: Path, name: str) -> Iterator[Located]:
    """Resources that Ray would spell otherwise, and so would never have."""
    spelled = {each.lower(): each for each in OF_RAY}.get(name.lower(), name)
    if name != spelled:
        allowed = f"a resource as Ray spells it: {', '.join(OF_RAY)}, or a custom one"
        found = f'the resource "{printable(name)}"'
        yield path, Problem(key=dotted(path), found=found, allowed=allowed, nearest=spelled)
    elif not name.strip():
        yield problem(path, "a resource without a name", "the name of a resource")


def _mentioned(section: QueuesSection) -> dict[str, dict[str, Path]]:
    """The resources that a quota or a weight names, by pool, and where first."""
    found: dict[str, dict[str, Path]] = {}
    for path, queue in _queues(section):
        for key in ("quota", "over_quota_weight"):
            for pool, amounts in getattr(queue, key).items():
                for name in amounts:
                    found.setdefault(pool, {}).setdefault(name, (*path, key, pool, name))
    return found


def _left_out(section: QueuesSection) -> Iterator[Located]:
    """Resources that some queues of a pool name in their quota, and others do not."""
    mentioned = _mentioned(section)
    for path, queue in _queues(section):
        if queue.name == DEFAULT_PROJECT:
            continue
        for pool, names in mentioned.items():
            for name, first in names.items():
                if value_at(queue.quota, (pool, name)) is MISSING:
                    allowed = f"a number, or null for unlimited, since `{dotted(first)}` is given"
                    yield problem((*path, "quota", pool, name), "it is missing", allowed)
