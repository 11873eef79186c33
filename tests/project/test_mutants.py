"""The mutants' own tools: which changes there are, how a place is found again, what a try tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants.changes import Source
from mutants.patches import Lost, Mutant, find, load, patch_of
from mutants.trying import Copy, Fate, try_out, where

MODULE = '''"""A module."""


class Desk:
    async def answer(self, order):
        """Answer it."""
        if order.late or not self.open:
            log.warning("late by %d", 3)
            return None
        async with self.lock:
            await asyncio.shield(self.write(order, wait_s=2))
        return sorted(self.orders)
'''


def mutants_of(line: str, kind: str) -> set[str]:
    """What a line in a function becomes, by changes of a kind."""
    text = f"def f():\n    {line}\n"
    source = Source(text)
    return {
        change.applied(text).removeprefix("def f():\n    ").removesuffix("\n")
        for statement in source.statements()
        for edit in statement.edits.get(kind, [])
        if (change := source.change(edit))
    }


@pytest.mark.parametrize(
    ("line", "kind", "becomes"),
    [
        pytest.param("x = a < b", "boundary", {"x = a <= b"}, id="a boundary moves by one"),
        pytest.param("x = a is None", "comparison", {"x = a is not None"}, id="an opposite"),
        pytest.param("x = not (a and b)", "boolean", {"x = a and b", "x = not (a or b)"}, id="or"),
        pytest.param("x = a and b == c", "boolean", {"x = a or b == c"}, id="and binds as before"),
        pytest.param(
            "x = f() if y else 0", "condition", {"x = f() if not y else 0"}, id="a choice"
        ),
        pytest.param("x = 2 * y", "number", {"x = 3 * y", "x = 1 * y"}, id="a number"),
        pytest.param("f(a, b)", "arguments", {"f(b, a)"}, id="arguments change places"),
        pytest.param("f(a, b=1)", "arguments", {"f(a)"}, id="a named argument is missing"),
        pytest.param("await f(x)", "removed", {"pass"}, id="a call is missing"),
        pytest.param("self.x[y] = z", "removed", {"pass"}, id="a note is missing"),
        pytest.param("return x", "return", {"return None"}, id="an answer is missing"),
        pytest.param("await shield(f(x))", "call", {"await f(x)"}, id="a shield is missing"),
        pytest.param("return min(x, y)", "call", {"return max(x, y)"}, id="the other extreme"),
        pytest.param("with lock: f()", "context", {"if True: f()"}, id="a lock is missing"),
        pytest.param("x = f'{a < b}'", "boundary", set(), id="texts stay"),
        pytest.param("log.info(a < b)", "boundary", set(), id="log lines stay"),
    ],
)
def test_a_kind_of_change_writes(line: str, kind: str, becomes: set[str]) -> None:
    assert mutants_of(line, kind) == becomes


def test_handlers_and_finally_are_changed() -> None:
    text = "def f():\n try:\n  g()\n except (A, B):\n  h()\n finally:\n  i()\n"
    source = Source(text)
    made = {
        change.applied(text)
        for statement in source.statements()
        for kind in ("handler", "finally")
        for edit in statement.edits.get(kind, [])
        if (change := source.change(edit))
    }
    assert made == {
        text.replace("(A, B)", "A"),
        text.replace("(A, B)", "B"),
        text.replace("h()", "raise"),
        text.replace("i()", "pass"),
    }


def mutant(before: str = MODULE, old: str = "or not", new: str = "and not") -> Mutant:
    """A mutant of the module above."""
    patch = patch_of("fabric/desk.py", before, before.replace(old, new))
    return Mutant("001-desk-boolean", "fabric/desk.py", "Desk.answer", "boolean", patch)


def test_a_mutant_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = Mutant(**{**vars(mutant()), "tests": ("t.py::a", "t.py::b"), "survives": "why: so"})
    written.save(tmp_path)
    assert load(tmp_path / "001-desk-boolean.patch") == written


@pytest.mark.parametrize(
    ("path", "now"),
    [
        pytest.param("fabric/desk.py", MODULE, id="where it was"),
        pytest.param("fabric/desk.py", "import os\n\n\n" + MODULE, id="further down"),
        pytest.param("fabric/manager/dispatch.py", MODULE, id="in another file"),
        pytest.param(
            "fabric/desk.py", MODULE.replace("by %d", "for %d"), id="beside a line that changed"
        ),
        pytest.param(
            "fabric/desk.py",
            MODULE + MODULE.split("class")[0] + "class Other" + MODULE.split("class Desk")[1],
            id="beside the same lines in another function",
        ),
    ],
)
def test_a_mutant_is_found_again(path: str, now: str) -> None:
    place = find(mutant(), {path: now, "fabric/empty.py": ""})
    assert place.path == path
    assert place.before == now
    assert place.after == now.replace("or not", "and not", 1)


@pytest.mark.parametrize(
    ("now", "why"),
    [
        pytest.param(MODULE.replace("late or", "old or"), "is not there any more", id="changed"),
        pytest.param(MODULE.replace("answer(", "told("), "is not there any more", id="renamed"),
        pytest.param(MODULE + MODULE, "occurs more than once", id="twice"),
    ],
)
def test_a_mutant_without_its_place_says_so(now: str, why: str) -> None:
    with pytest.raises(Lost, match=rf"001-desk-boolean: `if order\.late .* {why}; .* anew 001"):
        find(mutant(), {"fabric/desk.py": now})


TESTED = "def larger(a, b):\n    return a > b\n"


def test_a_copy_has_all_but_what_is_made(tmp_path: Path) -> None:
    for folder in ("site", "federated/site", "federated/__pycache__", ".venv"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "page").touch()
    copy = Copy(tmp_path)
    try:
        found = {file.relative_to(copy.root).as_posix() for file in copy.root.rglob("page")}
        assert found == {"federated/site/page"}
    finally:
        copy.close()
    assert not copy.root.exists()


def test_a_try_tells_whether_a_test_saw_the_mutant(tmp_path: Path) -> None:
    (tmp_path / "fabric").mkdir()
    (tmp_path / "fabric" / "sizes.py").write_text(TESTED)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "sizes.py").symlink_to("../fabric/sizes.py")
    (tmp_path / "tests" / "moved").mkdir(parents=True)
    (tmp_path / "tests" / "moved" / "test_sizes.py").write_text(
        "import sizes\n\n\n"
        "def test_two():\n    assert sizes.larger(2, 1)\n\n\n"
        "def test_same():\n    assert not sizes.larger(1, 1)\n"
    )
    patch = patch_of("fabric/sizes.py", TESTED, TESTED.replace(">", ">="))
    same = Mutant("002-sizes-boundary", "fabric/sizes.py", "larger", "boundary", patch)
    assert (
        where("tests/test_sizes.py::test_same", tmp_path) == "tests/moved/test_sizes.py::test_same"
    )
    copy = Copy(tmp_path)
    try:
        tried = try_out(copy, same, ["tests/test_sizes.py::test_same"])
        assert (tried.fate, tried.failed) == (
            Fate.KILLED,
            ("tests/moved/test_sizes.py::test_same",),
        )
        assert try_out(copy, same, ["tests/test_sizes.py::test_two"]).fate is Fate.SURVIVED
        assert try_out(copy, same, ["tests/test_sizes.py::test_three"]).fate is Fate.UNTESTED
        assert copy.run(["tests/moved"]).fate is Fate.SURVIVED, "the copy is whole again"
    finally:
        copy.close()
    assert (tmp_path / "fabric" / "sizes.py").read_text() == TESTED
