"""Policy: what a site's admin allows runs to do, rule by rule.

No run may use declared data until a rule names its users. Only fedpilot's own code runs until a
rule names other code: a user who may call any function with any arguments can do anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from ..traffic import Direction

ANY_CODE = "any"
"""As a code digest: allows all code that a run brings or names."""
ROLE_PREFIX = "role:"
"""`role:operator` among users stands for all users of that role."""
BUILT_IN = "none but built-ins, and installed models that `models` names"
DAY_S = 86_400.0


class CommandPolicy(StrEnum):
    """Which `fedpilot cluster` and `fedpilot job` commands may come through the mediator."""

    NONE = "none"
    READ = "read"
    """Commands that change nothing."""
    ALL = "all"


class Simulations(StrEnum):
    """Which undeclared data a run may simulate clients with."""

    NONE = "none"
    BUILTIN = "builtin"
    """Built-in data sets that read no file."""
    ALL = "all"
    """All data that a loader finds: the rule of a site without a policy file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRule:
    """Which users may train which models on a declared data set."""

    users: tuple[str, ...]
    """Names as in certificates, or `role:` and a role."""
    models: tuple[str, ...] | None = None
    """Patterns such as `hospital.models:*`; None for all that the site allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceCaps:
    """The most that one run gets at this site; None is no cap."""

    vnodes: int | None = None
    cpus: float | None = None
    gpus: float | None = None
    memory: int | None = None
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteCaps:
    """The most bytes of models and updates, by direction; None is no cap."""

    to_site: int | None = None
    from_site: int | None = None

    def of(self, direction: Direction) -> int | None:
        return self.to_site if direction is Direction.TO_SITE else self.from_site


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All rules of a site. The default allows every simulation and no declared data."""

    users: tuple[str, ...] | None = None
    """None: all users whose role may submit runs."""
    models: tuple[str, ...] | None = None
    code_digests: tuple[str, ...] | None = None
    """Of users' modules. None allows installed models that a rule names, and no code of a run."""
    datasets: Mapping[str, DatasetRule] = field(default_factory=dict)
    resources: ResourceCaps = ResourceCaps()
    minimum_cohort: int = 1
    """The fewest clients that an answer about any clients may cover."""
    bytes_per_round: ByteCaps = ByteCaps()
    bytes_per_day: ByteCaps = ByteCaps()
    """Days of UTC, all runs together."""
    simulations: Simulations | tuple[str, ...] = Simulations.ALL
    """A tuple lists the folders, absolute, below which a simulation may read files."""
    commands: CommandPolicy = CommandPolicy.NONE

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def in_words(self) -> tuple[str, ...]:
        """What the policy allows, one line per rule."""

        def most(*amounts: tuple[float | None, str]) -> str:
            said = [f"{amount:.15g} {unit}" for amount, unit in amounts if amount is not None]
            return ", ".join(said) or "no limit"

        caps, rounds, days = self.resources, self.bytes_per_round, self.bytes_per_day
        lines = [
            f"users: {or_all(self.users, 'all that the mediator admits')}",
            f"models: {or_all(self.models, 'all')}",
            f"code: {or_all(self.code_digests, BUILT_IN)}",
            "resources of a run: "
            + most(
                (caps.vnodes, "vnodes"),
                (caps.cpus, "CPUs"),
                (caps.gpus, "GPUs"),
                (caps.memory, "bytes of memory"),
            ),
            f"clients that an answer stands for: at least {self.minimum_cohort}",
            "bytes per round: " + most((rounds.to_site, "in"), (rounds.from_site, "out")),
            "bytes per day: " + most((days.to_site, "in"), (days.from_site, "out")),
            f"simulations: {simulations_in_words(self.simulations)}",
            f"commands through the mediator: {self.commands}",
        ]
        lines += [
            f"data set {name}: {sorted_names(rule.users)}; "
            f"models: {or_all(rule.models, 'as above')}"
            for name, rule in sorted(self.datasets.items())
        ]
        return tuple(lines)


def simulations_in_words(rule: Simulations | tuple[str, ...]) -> str:
    """What a rule about simulations allows."""
    match rule:
        case Simulations.NONE:
            return "none"
        case Simulations.BUILTIN:
            return "built-in data sets that read no file"
        case Simulations.ALL:
            return "all"
    return f"built-in data sets, and files below {', '.join(rule)}"


def or_all(names: Collection[str] | None, otherwise: str) -> str:
    """Join names for a text, or use `otherwise` without a rule."""
    return otherwise if names is None else sorted_names(names)


def sorted_names(names: Collection[str]) -> str:
    """Join sorted names for a text."""
    return ", ".join(sorted(names)) or "none"
