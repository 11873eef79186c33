"""When a group whose machines fail may try again: a backoff after each attempt, and a budget."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .declaration import GroupName


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A machine that failed before it had been ready for long."""

    group: GroupName
    template: str
    """The digest of its template: a changed one gets a new budget."""
    started_s: float
    at_s: float
    joined: bool
    """Whether Ray had accepted it. One that never joined is no crash of its group."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings:
    """How patient the manager is with a group whose machines fail."""

    stable_s: float = 60.0
    """A machine that was ready for this long and dies is replaced, and does not count."""
    forget_s: float = 600.0
    """So long after its last failure a group starts as if it had never failed."""
    first_s: float = 1.0
    """The wait after the second failed attempt, which each further one doubles. The first failure
    costs no time."""
    longest_s: float = 60.0
    crashes: int = 5
    """After so many attempts in a row whose machines died soon after they had joined, a group gives
    up."""
    joins: int = 10
    """After so many attempts in a row whose machines did not join, a group gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDecision:
    """From when on a group may start machines."""

    from_s: float
    reason: str = ""
    """Why it waits or has given up; empty if it may start now."""
    given_up: bool = False


def counting(
    failures: Iterable[Failure],
    useful_since_s: Mapping[GroupName, float],
    now: float,
    settings: FailureSettings,
) -> tuple[Failure, ...]:
    """The failures that still count.

    Those from before a machine of the group became ready and stayed so do not (`useful_since_s`),
    nor does any once the last one is long ago.
    """
    every = list(failures)
    last: dict[GroupName, float] = {}
    for each in every:
        last[each.group] = max(each.at_s, last.get(each.group, each.at_s))
    return tuple(
        each
        for each in every
        if now - last[each.group] < settings.forget_s
        and each.at_s >= useful_since_s.get(each.group, each.at_s)
    )


def patience(
    failures: Iterable[Failure],
    group: GroupName,
    template: str,
    now: float,
    settings: FailureSettings,
) -> RetryDecision:
    """When a group may start its next machine, given its failures that still count."""
    attempts = _attempts(
        each for each in failures if each.group == group and each.template == template
    )
    if not attempts:
        return RetryDecision(from_s=now)
    last = attempts[-1][-1]
    crashes = sum(any(each.joined for each in attempt) for attempt in attempts)
    for many, most, what in (
        (crashes, settings.crashes, "machines died soon after they had joined"),
        (len(attempts) - crashes, settings.joins, "machines did not join"),
    ):
        if many >= most:
            return RetryDecision(
                from_s=last.at_s + settings.forget_s,
                reason=f"its {what} {many} times in a row; the last time: {last.reason}",
                given_up=True,
            )
    wait_s = 0.0 if len(attempts) == 1 else settings.first_s * 2 ** (len(attempts) - 2)
    until = last.at_s + min(wait_s, settings.longest_s)
    if until <= now:
        return RetryDecision(from_s=now)
    return RetryDecision(
        from_s=until, reason=f"a machine failed, and it waits a moment: {last.reason}"
    )


def _attempts(failures: Iterable[Failure]) -> Sequence[Sequence[Failure]]:
    """The failures by attempt: one cause may end all machines that run at its time."""
    found: list[list[Failure]] = []
    for each in sorted(failures, key=lambda each: (each.at_s, each.started_s)):
        if found and each.started_s <= found[-1][0].at_s:
            found[-1].append(each)
        else:
            found.append([each])
    return found
