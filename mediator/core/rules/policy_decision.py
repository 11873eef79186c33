"""Decides whether a site's policy allows a run, an answer, bytes across its boundary, or a command.

A decision is None, or the broken rule with what was found and what it allows. If a run does not
state a fact that a rule needs, it breaks the rule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePath

from fedpilot.fabric.core.resources import UNIT

from ...errors import PolicyRefused
from ..traffic import Direction, Limit
from .policy import (
    ANY_CODE,
    BUILT_IN,
    ROLE_PREFIX,
    CommandPolicy,
    Policy,
    Simulations,
    or_all,
    simulations_in_words,
    sorted_names,
)
from .roles import Act, act_of_command
from .wants import Wants

WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A rule that is broken."""

    rule: str
    """Its dotted key in the policy file."""
    found: str
    allowed: str


def enforce(site: str, refused: Refused | None) -> None:
    """Raise PolicyRefused if a rule is broken."""
    if refused is not None:
        raise PolicyRefused(site, refused.rule, refused.found, refused.allowed)


# -- a run ----------------------------------------------------------------------------------------


def judge(policy: Policy, wants: Wants) -> Refused | None:
    """The first rule that a run breaks, checked before it gets anything."""
    return (
        _judge_user("users", policy.users, wants)
        or _judge_model("models", policy.models, wants)
        or _judge_code(policy, wants)
        or _judge_datasets(policy, wants)
        or _judge_simulation(policy, wants)
        or judge_gang(policy, wants.gang)
        or _judge_cohort(policy, wants)
    )


def _judge_user(rule: str, users: Collection[str] | None, wants: Wants) -> Refused | None:
    named = wants.user and not wants.user.startswith(ROLE_PREFIX)
    if users is None or (named and wants.user in users):
        return None
    if wants.role and f"{ROLE_PREFIX}{wants.role}" in users:
        return None
    role = f" ({wants.role})" if wants.role else ""
    found = f"{wants.user}{role}" if wants.user else f"a user without a name{role}"
    return Refused(rule=rule, found=found, allowed=sorted_names(users))


def _judge_model(rule: str, models: Collection[str] | None, wants: Wants) -> Refused | None:
    if models is None or any(wants.model and fnmatchcase(wants.model, each) for each in models):
        return None
    found = wants.model or "a model without a name"
    return Refused(rule=rule, found=found, allowed=sorted_names(models))


def _judge_code(policy: Policy, wants: Wants) -> Refused | None:
    """Without a digest rule, allow only installed models that another rule names."""
    digests = policy.code_digests
    judged = [("code that came with the run, ", wants.brought_code)]
    if digests is not None or wants.installed_code is None:
        judged.append(("code ", wants.code_digest))
    for what, digest in judged:
        if digest and not {digest, ANY_CODE} & set(digests or ()):
            found = f"{what}with the digest {digest}"
            return Refused(rule="code_digests", found=found, allowed=or_all(digests, BUILT_IN))
    if digests is None:
        for name in sorted(wants.installed_code or ()):
            if not (name == wants.model and _names_model(policy, wants)):
                found = f"{name}, code that is installed there"
                return Refused(rule="code_digests", found=found, allowed=BUILT_IN)
    return None


def _names_model(policy: Policy, wants: Wants) -> bool:
    """Whether a pattern that allows the model spells out its package, since `*` names no code."""
    rules = [policy.datasets[name].models for name in wants.datasets if name in policy.datasets]
    patterns = [pattern for models in (policy.models, *rules) for pattern in models or ()]
    return any(
        fnmatchcase(wants.model, pattern)
        and not WILDCARDS & set(pattern.partition(":")[0].partition(".")[0])
        for pattern in patterns
    )


def _judge_datasets(policy: Policy, wants: Wants) -> Refused | None:
    for name in sorted(wants.datasets):
        rule = policy.datasets.get(name)
        if rule is None:
            return Refused(
                rule="datasets",
                found=f"data set {name}, about which it has no rule",
                allowed=sorted_names(policy.datasets),
            )
        refused = _judge_user(f"datasets.{name}.users", rule.users, wants) or _judge_model(
            f"datasets.{name}.models", rule.models, wants
        )
        if refused is not None:
            return refused
    return None


def _judge_simulation(policy: Policy, wants: Wants) -> Refused | None:
    """Without declared data, judge the simulated data; `code_digests` judges what code reads."""
    rule, simulated = policy.simulations, wants.simulated
    if wants.datasets or rule is Simulations.ALL:
        return None
    found = ""
    if rule is Simulations.NONE or simulated is None:
        found = f"a simulation of {simulated.loader if simulated else 'unknown data'}"
    elif rule is Simulations.BUILTIN and ":" in simulated.loader:
        found = f"a simulation that loads its data by {simulated.loader}"
    else:
        folders = () if isinstance(rule, Simulations) else rule
        outside = [
            path
            for path in simulated.reads
            if not any(PurePath(path).is_relative_to(folder) for folder in folders)
        ]
        if outside:
            found = f"a simulation of {simulated.loader} that reads {outside[0]}"
    if not found:
        return None
    return Refused(rule="simulations", found=found, allowed=simulations_in_words(rule))


def _judge_cohort(policy: Policy, wants: Wants) -> Refused | None:
    """Judge the smallest answer of a run, or what other sites see of single clients."""
    refused = None if wants.cohort is None else judge_answer(policy, wants.cohort)
    return replace(refused, found=wants.crosses) if refused and wants.crosses else refused


def judge_gang(policy: Policy, gang: Iterable[tuple[int, Mapping[str, float]]]) -> Refused | None:
    """The first cap that a gang exceeds: so many vnodes of each of its sizes."""
    parts = list(gang)
    vnodes, most_of_all = sum(count for count, _ in parts), policy.resources.vnodes
    if most_of_all is not None and vnodes > most_of_all:
        return Refused(
            rule="resources.vnodes", found=f"{vnodes} vnodes", allowed=f"at most {most_of_all}"
        )
    for key, name, most in _caps(policy):
        wanted = sum(count * _units(each.get(name, 0.0)) for count, each in parts)
        if wanted > _units(most):
            return Refused(
                rule=f"resources.{key}",
                found=f"{wanted / UNIT:g} in {vnodes} vnodes",
                allowed=f"at most {most:g}",
            )
    return None


def most_vnodes(
    policy: Policy,
    resources: Mapping[str, float],
    others: Iterable[tuple[int, Mapping[str, float]]] = (),
) -> int | None:
    """How many vnodes of a size the caps allow beside others; None for no limit."""
    beside, caps = list(others), policy.resources
    found = []
    if caps.vnodes is not None:
        found = [max(0, caps.vnodes - sum(count for count, _ in beside))]
    for _, name, most in _caps(policy):
        if (each := _units(resources.get(name, 0.0))) > 0:
            taken = sum(count * _units(other.get(name, 0.0)) for count, other in beside)
            found.append(max(0, _units(most) - taken) // each)
    return min(found, default=None)


def _caps(policy: Policy) -> list[tuple[str, str, float]]:
    """The caps on resources: key in the policy file, name in Ray, amount."""
    caps = policy.resources
    amounts = (("cpus", "CPU", caps.cpus), ("gpus", "GPU", caps.gpus))
    found = (*amounts, ("memory", "memory", caps.memory))
    return [(key, name, most) for key, name, most in found if most is not None]


def _units(amount: float) -> int:
    """An amount in Ray's integer units, so that three times 0.1 is 0.3."""
    return round(amount * UNIT)


# -- what leaves and enters -----------------------------------------------------------------------


def judge_answer(policy: Policy, clients: int) -> Refused | None:
    """Decide whether an answer about this many clients may leave; one about none always may."""
    if clients == 0 or clients >= policy.minimum_cohort:
        return None
    return Refused(
        rule="minimum_cohort",
        found=f"an answer of {clients} {'client' if clients == 1 else 'clients'}",
        allowed=f"at least {policy.minimum_cohort} at this site",
    )


def judge_bytes(
    policy: Policy, direction: Direction, *, in_round: int, today: int, more: int
) -> Refused | None:
    """Decide whether `more` bytes may cross after those of this round and of today."""
    rounds, days = policy.bytes_per_round.of(direction), policy.bytes_per_day.of(direction)
    for limit in (
        Limit(f"bytes_per_round.{direction}", "in this round", rounds, in_round, more),
        Limit(f"bytes_per_day.{direction}", "today", days, today, more),
    ):
        if limit.broken:
            return Refused(
                rule=limit.name,
                found=f"{more} bytes after {limit.spent} {limit.span}",
                allowed=f"at most {limit.allowed}",
            )
    return None


def judge_command(policy: Policy, arguments: Sequence[str]) -> Refused | None:
    """Decide whether a command may run at the site; `arguments` are those after `fedpilot`."""
    looks = act_of_command(arguments) is Act.LOOK_AT_SITE
    if policy.commands is CommandPolicy.ALL or (policy.commands is CommandPolicy.READ and looks):
        return None
    allowed = "commands that only look" if policy.commands is CommandPolicy.READ else "none"
    return Refused(rule="commands", found=f"fedpilot {' '.join(arguments[:2])}", allowed=allowed)
