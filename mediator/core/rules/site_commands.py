"""Which arguments of `fedpilot cluster`, `job` and `queue` sites accept, and the exit codes.

Both ends check: the user's command to fail early, the site's agent because it trusts no caller. The
command runs under the agent's account, so it must not name files, or another Ray cluster or
mediator, where that account may have more rights than the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

DASHES = "--"
"""The arguments after it belong to another program."""
OWN_RAY = frozenset({"--address", "--auth-mode", "--ray-cluster"})
OWN_MEDIATOR = frozenset({"--site", "--all-sites", "--mediator", "--credentials", "--profile"})
FLAGS = frozenset(
    {
        "--all",
        "--dry-run",
        "--follow",
        "-f",
        "--force",
        "--forget",
        "--help",
        "--json",
        "--no-preemptible",
        "--no-wait",
        "--preemptible",
        "--yes",
        "-y",
    }
)
"""The options of these commands that take no value."""
WRITTEN = frozenset({"--output", "-o", "--picture"})
"""The options that name a file to write."""
OUT_OF_TIME = 124
"""The exit code of a command that was ended at its deadline, like that of timeout(1)."""
UNANSWERED = 4
FAILED = 1
KNOWN = frozenset({0, 1, 2, 3, 4, 75, 130})
ATTACH_S = 15.0
"""Seconds that a command needs beside `--wait`, to find its Ray and to answer."""


def objection(arguments: Sequence[str]) -> str:
    """Say why a site refuses arguments, or ""; even the values of options count as options.

    The first argument is the group, such as `cluster`.
    """
    own = before_dashes(arguments)
    if [*own[:2]] == ["queue", "apply"] and (file := next(words_of(own[2:]), "")):
        return (
            f"a site has none of your files: say --declaration with the queues, not {file[:200]!r}"
        )
    last = own[-1] if own and len(own) < len(arguments) else ""
    if last.startswith("-") and "=" not in last and last not in FLAGS:
        return f"{last} needs a value, and {DASHES} is none"
    for word, following in pairwise([*own, ""]):
        name, equals, value = word.partition("=")
        if why := _objection(name, value if equals else following):
            return why
    return ""


def _objection(name: str, value: str) -> str:
    if name in OWN_RAY:
        return f"at a site the Ray cluster is the site's own: leave out {name}"
    if name in OWN_MEDIATOR:
        return f"a command at a site asks no other mediator: leave out {name}"
    if name in WRITTEN:
        return f"a site would write the file there: leave out {name}"
    if name == "--spec":
        return "a site has none of your files: say --json-spec or --virtual-cluster, not --spec"
    if name == "--working-dir" and not _is_uri(value):
        return _no_files(name, value)
    if name == "--runtime-env":
        for key, path in _paths(value):
            if not _is_uri(path):
                return _no_files(f"{name}: {key}", path)
    return ""


def words_of(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments that are neither options nor the values of options."""
    rest = iter(arguments)
    for word in rest:
        if not word.startswith("-"):
            yield word
        elif "=" not in word and word not in FLAGS:
            next(rest, "")


def _no_files(where: str, path: str) -> str:
    return (
        f"{where}: a site has none of your folders: wanted the URI of an archive that the site "
        f"reaches, such as https://example.org/code.zip, found {path[:200]!r}"
    )


def _paths(text: str) -> list[tuple[str, str]]:
    """The code locations in a runtime environment; none for malformed JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    env: Mapping[str, Any] = found if isinstance(found, dict) else {}
    modules = env.get("py_modules")
    named = [("working_dir", env.get("working_dir"))] if "working_dir" in env else []
    named += [("py_modules", each) for each in (modules if isinstance(modules, list) else [])]
    return [(key, str(path)) for key, path in named]


def _is_uri(text: str) -> bool:
    return "://" in text


def before_dashes(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments before `--`, which are fedpilot's own."""
    words = list(arguments)
    return words[: words.index(DASHES)] if DASHES in words else words


def longest_wait(arguments: Sequence[str]) -> float:
    """The longest `--wait` of a command in seconds; 0 if there is none or it is no number."""
    longest = 0.0
    for word, following in pairwise([*before_dashes(arguments), ""]):
        name, equals, value = word.partition("=")
        if name == "--wait":
            try:
                longest = max(longest, float(value if equals else following))
            except ValueError:  # the command itself will refuse it
                continue
    return longest


def too_long(arguments: Sequence[str], deadline_s: float) -> str:
    """Say why a command's `--wait` exceeds a deadline; empty if it fits."""
    most = max(0.0, deadline_s - ATTACH_S)
    if (asked := longest_wait(arguments)) <= most:
        return ""
    return (
        f"a command at this site has {deadline_s:g} s, so --wait is at most {most:g}; found "
        f"{asked:g}. With --wait 0 it only asks, and `cluster show` tells what became of it"
    )


def exit_code_here(code: int) -> int:
    """Map a site's exit code to one of `KNOWN`."""
    if code == OUT_OF_TIME:
        return UNANSWERED
    return code if code in KNOWN else FAILED
