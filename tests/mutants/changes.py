"""Which changes of a statement there are: a table of kinds, each a function of the syntax tree.

Only statements in functions are changed. Left alone are what no test should depend on (docstrings,
log lines, texts) and what nothing runs (annotations, imports).
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

LOGS = {"log", "_log", "logger"}
"""Names of loggers, whose calls are left alone."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Change:
    """Characters of a source that are replaced."""

    start: int
    end: int
    text: str

    def applied(self, source: str) -> str:
        """The mutant's source."""
        return source[: self.start] + self.text + source[self.end :]


@dataclass(frozen=True)
class Edit:
    """A node, or the text from a first node to a last one, and what stands there instead."""

    first: Any
    last: Any
    new: ast.expr | str


@dataclass(frozen=True)
class Statement:
    """A statement, or the head of a compound one, and its edits by kind."""

    function: str
    """Its qualified name inside the module: `Guard.guarded.read`."""
    lines: range
    """Counted from 1."""
    edits: dict[str, list[Edit]]


_BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.LtE: ast.Gt,
    ast.Gt: ast.LtE,
    ast.GtE: ast.Lt,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_SISTERS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_WRAPPERS = {"shield", "sorted", "reversed", "tuple", "list", "set", "frozenset", "abs", "bool"}


def _expressions(head: list[ast.expr]) -> Iterator[ast.expr]:
    """The expressions of a statement's head, without texts."""
    waiting: list[ast.AST] = [*head]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.JoinedStr):
            continue
        if isinstance(node, ast.expr):
            yield node
        waiting.extend(ast.iter_child_nodes(node))


def _compared(
    head: list[ast.expr], table: dict[type[ast.cmpop], type[ast.cmpop]]
) -> Iterator[Edit]:
    for node in _expressions(head):
        if not isinstance(node, ast.Compare):
            continue
        for i, each in enumerate(node.ops):
            if type(each) in table:
                new = copy.deepcopy(node)
                new.ops[i] = table[type(each)]()
                yield Edit(node, node, new)


def _boundary(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    return _compared(head, _BOUNDARIES)


def _comparison(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    return _compared(head, _OPPOSITES)


def _boolean(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    for each in _expressions(head):
        if isinstance(each, ast.BoolOp):
            other = ast.Or() if isinstance(each.op, ast.And) else ast.And()
            yield Edit(each, each, ast.BoolOp(other, each.values))
        elif isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not):
            yield Edit(each, each, each.operand)


def _condition(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    tests = [each.test for each in _expressions(head) if isinstance(each, ast.IfExp)]
    if isinstance(node, ast.If | ast.While):
        tests.append(node.test)
    for test in tests:
        if not isinstance(test, ast.Compare | ast.UnaryOp):  # these are changed by other kinds
            yield Edit(test, test, ast.UnaryOp(ast.Not(), test))


def _number(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    for each in _expressions(head):
        match each:
            case ast.Constant(value=bool() as flag):
                yield Edit(each, each, ast.Constant(not flag))
            case ast.Constant(value=int() | float() as number):
                yield Edit(each, each, ast.Constant(number + 1))
                if number > 0:
                    yield Edit(each, each, ast.Constant(number - 1))


def _arithmetic(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    for each in _expressions(head):
        if isinstance(each, ast.BinOp) and type(each.op) in _OPERATORS:
            other = _OPERATORS[type(each.op)]()
            yield Edit(each, each, ast.BinOp(each.left, other, each.right))


def _removed(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    match node:
        case (
            ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() | ast.Delete() | ast.Raise()
        ):
            yield Edit(node, node, "pass")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield Edit(node, node, "pass")
        case ast.Continue() | ast.Break():
            yield Edit(node, node, "break" if isinstance(node, ast.Continue) else "continue")


def _arguments(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    for each in _expressions(head):
        if not isinstance(each, ast.Call):
            continue
        if len(each.args) >= 2 and ast.dump(each.args[0]) != ast.dump(each.args[1]):
            swapped = copy.deepcopy(each)
            swapped.args[:2] = swapped.args[1::-1]
            yield Edit(each, each, swapped)
        for i in range(len(each.keywords)):
            fewer = copy.deepcopy(each)
            del fewer.keywords[i]
            yield Edit(each, each, fewer)


def _call(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    """`sorted(x)` becomes `x`, `min` becomes `max`."""
    for each in _expressions(head):
        match each:
            case ast.Call(func=ast.Name(id=name)) if name in _SISTERS:
                sister = copy.deepcopy(each)
                sister.func = ast.Name(_SISTERS[name])
                yield Edit(each, each, sister)
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[argument], keywords=[]
            ) if name in _WRAPPERS:
                yield Edit(each, each, argument)


def _return(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    match node:
        case ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            return
        case ast.Return(value=value):
            yield Edit(value, value, ast.Constant(None))


def _handler(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    if not isinstance(node, ast.ExceptHandler):
        return
    if isinstance(node.type, ast.Tuple) and len(node.type.elts) > 1:
        for i in range(len(node.type.elts)):
            kept = [each for j, each in enumerate(node.type.elts) if j != i]
            new = kept[0] if len(kept) == 1 else ast.Tuple(kept, ast.Load())
            yield Edit(node.type, node.type, new)
    if not isinstance(node.body[0], ast.Raise):
        yield Edit(node.body[0], node.body[-1], "raise")


def _finally(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    if isinstance(node, _Finally):
        yield Edit(node.body[0], node.body[-1], "pass")


def _context(node: ast.AST, head: list[ast.expr]) -> Iterator[Edit]:
    match node:
        case (
            ast.With(items=[ast.withitem(manager, None)])
            | ast.AsyncWith(items=[ast.withitem(manager, None)])
        ):
            yield Edit(node, manager, "if True")


class _Finally(ast.AST):
    """What a `finally` does; Python's own tree has no node for it."""

    def __init__(self, body: list[ast.stmt]) -> None:
        self.body = body
        self.lineno, self.end_lineno = body[0].lineno, body[0].lineno


KINDS: dict[str, Callable[[ast.AST, list[ast.expr]], Iterator[Edit]]] = {
    "boundary": _boundary,
    "comparison": _comparison,
    "boolean": _boolean,
    "condition": _condition,
    "number": _number,
    "arithmetic": _arithmetic,
    "removed": _removed,
    "arguments": _arguments,
    "call": _call,
    "return": _return,
    "handler": _handler,
    "finally": _finally,
    "context": _context,
}


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """All functions of a module by qualified name."""
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        name, node = waiting.pop(0)
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, Function | ast.ClassDef):
                inner = f"{name}.{child.name}" if name else child.name
                if isinstance(child, Function):
                    yield inner, child
            waiting.append((inner, child))


class Source:
    """A module's text, with the statements that can be changed."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._offsets = list(
            itertools.accumulate(map(len, text.splitlines(keepends=True)), initial=0)
        )

    def statements(self) -> Iterator[Statement]:
        """Each statement in a function that has a change."""
        for name, function in functions(ast.parse(self.text)):
            if function.name in {"__repr__", "__str__"}:
                continue
            for node, head in _statements(function.body):
                made = {kind: list(make(node, head)) for kind, make in KINDS.items()}
                edits = {kind: each for kind, each in made.items() if each}
                if edits:
                    last = max((each.end_lineno or 0 for each in head), default=node.lineno)
                    yield Statement(name, range(node.lineno, last + 1), edits)

    def change(self, edit: Edit) -> Change | None:
        """The edit as a change of the text; nothing if it cannot be written."""
        start = self._at(edit.first.lineno, edit.first.col_offset)
        end = self._at(edit.last.end_lineno, edit.last.end_col_offset)

        def with_text(text: str) -> Change:
            return Change(start, end, text)

        if isinstance(edit.new, str):
            made = with_text(edit.new)
            return made if _meaning(made.applied(self.text)) else None
        plain = ast.unparse(ast.fix_missing_locations(edit.new))
        bare, braced = with_text(plain), with_text(f"({plain})")
        wanted = _meaning(braced.applied(self.text))
        if wanted is None:
            return None
        return bare if _meaning(bare.applied(self.text)) == wanted else braced

    def _at(self, line: int, column: int) -> int:
        """The character at a line (from 1) and a column, which the tree counts in bytes."""
        begin = self._offsets[line - 1]
        return begin + len(self.text[begin : self._offsets[line]].encode()[:column].decode())


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.AST, list[ast.expr]]]:
    """Each statement with the expressions of its head, handlers and `finally` too."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef):
            continue  # a function has its own turn
        if not _left_alone(node):
            yield node, _head(node)
        for inner in ("body", "orelse"):
            yield from _statements(getattr(node, inner, []))
        for handler in getattr(node, "handlers", []):
            yield handler, []
            yield from _statements(handler.body)
        for case in getattr(node, "cases", []):
            yield from _statements(case.body)
        if final := getattr(node, "finalbody", []):
            yield _Finally(final), []
            yield from _statements(final)


def _left_alone(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in LOGS
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _head(node: ast.stmt) -> list[ast.expr]:
    match node:
        case ast.If() | ast.While():
            return [node.test]
        case ast.For() | ast.AsyncFor():
            return [node.iter]
        case ast.With() | ast.AsyncWith():
            return [item.context_expr for item in node.items]
        case ast.Match():
            return [node.subject]
        case ast.AnnAssign():
            return [] if node.value is None else [node.value]
        case ast.Raise():
            return []  # its texts
        case ast.Try() | ast.TryStar():
            return []
    return [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.expr)]


def _meaning(source: str) -> str | None:
    """The tree as text; nothing if it does not parse."""
    try:
        return ast.dump(ast.parse(source))
    except SyntaxError:
        return None
