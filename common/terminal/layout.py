"""The shapes of tables."""

from __future__ import annotations

import time
from collections.abc import Collection

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text


def ruled(
    *columns: str, right: Collection[str] = (), wraps: str | None = None, fold: bool = False
) -> Table:
    """A table with column names and a line below them; columns in `right` are right-aligned.

    If `wraps` is given, only that column may take several lines. `fold` breaks long words instead
    of cutting them.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=wraps is not None and name != wraps,
            overflow="fold" if fold else "ellipsis",
        )
    return table


def bare() -> Table:
    """A table that only aligns."""
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))


def named() -> Table:
    """A table of facts, each after its name."""
    facts = bare()
    facts.add_column(style="bright_black")
    return facts


def head(id: str, state: Text) -> Text:
    """The first line of the details of one thing."""
    return Text().append(id, "bold").append("  ").append(state)


def timestamp(then: float) -> str:
    """A moment as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(then))
