"""Vnode classes: the kinds of vnodes in one gang, and the clients of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Protocol

from annotated_types import Ge, MinLen
from pydantic import Field

from fedpilot.common.strict_yaml.schema_problems import Conflict
from fedpilot.common.strict_yaml.wording import Words
from fedpilot.common.text.amounts import counted, in_bytes
from fedpilot.fabric.core.selectors import check_label, parse

from .values import Bytes, Fraction, Positive, Section

SMALLEST_MEMORY = 1_000_000
"""Bytes; less is a size without its unit, since a worker with PyTorch takes over 200 MB."""
Patterns = str | Annotated[list[str], MinLen(1)]
"""Glob patterns."""
_ROUNDING = 1e-9
"""Three times 0.3333333333 is 1."""


class VNodeSize(Protocol):
    """The size of a vnode, as a config says it."""

    @property
    def cpus_per_worker(self) -> float: ...
    @property
    def gpus_per_worker(self) -> float: ...
    @property
    def memory_per_worker(self) -> int | None: ...


def threads_of(size: VNodeSize) -> int:
    """The threads of PyTorch in a worker on such a vnode."""
    return max(1, int(size.cpus_per_worker))


def device_of(size: VNodeSize) -> str:
    """Where such a worker trains, as PyTorch calls it."""
    return "cuda" if size.gpus_per_worker else "cpu"


def size_conflicts(size: VNodeSize) -> Iterator[Conflict]:
    """The rules about the size of a vnode."""
    if not (size.cpus_per_worker or size.gpus_per_worker):
        yield Conflict(
            key="cpus_per_worker",
            found="a vnode without CPUs and GPUs",
            allowed="one of the two above 0",
        )
    memory = size.memory_per_worker
    if memory is not None and memory < SMALLEST_MEMORY:
        yield Conflict(
            key="memory_per_worker",
            found=f"{counted(memory, 'byte')}, less than any worker needs",
            allowed=f"at least {in_bytes(SMALLEST_MEMORY)}, with its unit, such as 2GB",
        )


class WorkersRange(Section):
    """How many workers a run needs, and how many it takes while they are free."""

    min: Positive
    """Workers that the run reserves together before anything trains."""
    max: Positive
    """The most workers; those above `min` come and leave one by one."""

    def broken_rules(self) -> Iterator[Conflict]:
        if self.min > self.max:
            yield Conflict(
                key="max", found=f"{self.max}, below `min`", allowed=f"at least {self.min}"
            )


class ClientsOfClass(Section):
    """The clients of a vnode class, by one of `ids`, `column` and `share`."""

    ids: Patterns | None = Field(default=None, examples=["clinic_*"])
    """Pattern of client ids, or a list of patterns: `*` stands for any text, `?` for one
    character, `[abc]` for one of these. A client belongs to the first class that matches it."""
    column: str | None = Field(default=None, examples=["hospital"])
    """Name of a column that the data set is loaded with. The value that most of a client's samples
    have (the first one in a tie) decides, by the patterns in `values`."""
    values: Patterns | None = Field(default=None, examples=[["north", "south"]])
    """With `column` (required): pattern of the column's values, or a list of patterns."""
    share: Fraction | None = Field(default=None, examples=[0.25])
    """About this share of the clients that no `ids` and no `column` take. The seed and the client's
    id decide, so a client's class depends neither on sites nor on other clients."""

    def broken_rules(self) -> Iterator[Conflict]:
        given = [key for key in ("ids", "column", "share") if getattr(self, key) is not None]
        if len(given) != 1:
            found = f"both `{given[0]}` and `{given[1]}`" if given else "none of the three"
            yield Conflict(
                key=given[1] if given else "ids",
                found=found,
                allowed="one of `ids`, `column` and `share`",
            )
        if (self.column is None) != (self.values is None):
            there, lacks = ("values", "column") if self.column is None else ("column", "values")
            yield Conflict(
                key="values",
                found=f"`{there}` without `{lacks}`",
                allowed="`column` together with `values`",
            )


class VNodeClassConfig(Section):
    """One class of vnodes."""

    name: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"),
        Words(
            "text of at most 63 letters, digits, `.`, `_` and `-`; first and last a letter or digit"
        ),
    ]
    """Name of the class, once in the list."""
    workers: Positive | WorkersRange
    """Vnodes of this class at each site, with one warm worker each; or `{min: 2, max: 8}`, as for
    `resources.workers`."""
    cpus_per_worker: Annotated[float, Ge(0.0)] = 1.0
    """CPUs of a vnode. PyTorch uses that many threads, rounded down, but at least 1."""
    gpus_per_worker: Annotated[float, Ge(0.0)] = 0.0
    """GPUs of a vnode."""
    memory_per_worker: Bytes | None = Field(default=None, examples=["2GB"])
    """Memory of a vnode, in Ray's accounting; at least 1 MB."""
    labels: dict[str, str] = Field(default={})
    """Labels that a machine must have to carry these vnodes: `a`, `!a`, `in(a,b)`, `!in(a,b)`,
    `exists()` or `!exists()` by label, such as `{gpu-type: "in(a100,h100)"}`."""
    clients: ClientsOfClass | None = None
    """The clients that train, and are evaluated, on these vnodes only. One class may leave it out:
    that one takes all clients that are left."""

    def broken_rules(self) -> Iterator[Conflict]:
        yield from size_conflicts(self)
        for label, condition in self.labels.items():
            try:
                check_label(label)
                parse(condition)
            except ValueError as error:
                allowed, _, found = str(error).removeprefix("expected ").rpartition(", found ")
                yield Conflict(key="labels", found=f"{label}: {found}", allowed=allowed)


def class_conflicts(classes: Sequence[VNodeClassConfig]) -> Iterator[Conflict]:
    """The rules between the classes of a gang; keys count from `resources`."""
    names: set[str] = set()
    for at, each in enumerate(classes):
        if each.name in names:
            yield Conflict(
                key=f"groups[{at}].name",
                found=f'"{each.name}" a second time',
                allowed="each name once",
            )
        names.add(each.name)
    rest = [at for at, each in enumerate(classes) if each.clients is None]
    if len(rest) > 1:
        first = classes[rest[0]].name
        yield Conflict(
            key=f"groups[{rest[1]}].clients",
            found=f'neither "{first}" nor "{classes[rest[1]].name}" says which clients it takes',
            allowed="at most one class without `clients`, which takes those that are left",
        )
    shared = [
        (at, each.clients.share)
        for at, each in enumerate(classes)
        if each.clients is not None and each.clients.share is not None
    ]
    total = sum(share for _, share in shared)
    if total > 1 + _ROUNDING:
        yield Conflict(
            key=f"groups[{shared[-1][0]}].clients.share",
            found=f"shares of {total:.6g} together",
            allowed="at most 1 together",
        )
    if shared and not rest and total < 1 - _ROUNDING:
        yield Conflict(
            key=f"groups[{shared[-1][0]}].clients.share",
            found=f"shares of {total:.6g} together, and no class takes the clients that are left",
            allowed="1 together, or a class without `clients`",
        )
