"""Pages: their fenced blocks, which the generator takes as they are, and their generated tables."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
TOPOLOGIES = DOCS / "how-to" / "choose-a-topology.md"
ASSIGNMENTS = DOCS / "how-to" / "choose-an-assignment.md"
_FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(
    r"(?P<begin><!-- figures: .*? -->\n).*?(?P<end><!-- end of figures -->)", re.DOTALL
)


def blocks(page: Path, kind: str) -> list[str]:
    """The fenced blocks of a kind, in the order of the page."""
    found = _FENCE.finditer(page.read_text(encoding="utf-8"))
    return [match["text"] for match in found if match["kind"] == kind]


def block(page: Path, kind: str, beginning: str) -> str:
    """The one fenced block of a kind that begins so."""
    (found,) = (each for each in blocks(page, kind) if each.startswith(beginning))
    return found


def files(page: Path) -> dict[str, str]:
    """The files that a page shows: blocks whose first line is a comment with a file's name."""
    found = {}
    for kind in ("python", "text"):
        for each in blocks(page, kind):
            if name := re.match(r"# ([\w.]+\.\w+)\b", each):
                found[name[1]] = each
    return found


def with_table(page: Path, table: list[str]) -> str:
    """The text of a page with these lines as its generated table."""
    text, count = _TABLE.subn(
        lambda match: match["begin"] + "\n".join(["", *table, "", ""]) + match["end"],
        page.read_text(encoding="utf-8"),
    )
    assert count == 1, f"{page} has {count} places for a table"
    return text
