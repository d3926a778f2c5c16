"""Changes of a source by its syntax tree: one operator, constant, condition, slice, result or statement."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

SMALL_LINES = 12
"""Functions up to this length have their results replaced."""
SWAPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_LOGS = ("debug", "info", "warning", "error", "exception", "log", "print", "write_line")
_TEXTS = ("__repr__", "__str__")


@dataclass(frozen=True)
class Edit:
    """Bytes `[start, end)` of the source replaced by a text.

    `line` is that of the start, `scope` the function or class around it (`Class.name`), empty at the top.
    """

    line: int
    start: int
    end: int
    text: str
    kind: str
    scope: str

    def applied(self, source: str) -> str:
        """The source with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.text.encode() + raw[self.end :]).decode()


def edits_of(source: str, left_out: Collection[str] = ()) -> list[Edit]:
    """All changes of a source that leave it valid and other than it was.

    Docstrings, annotations, decorators, texts of errors and logs, asserts, `__repr__` and what only a type
    checker sees stay as they are, and so do the functions and classes in `left_out` (`Class.name` or `name`).
    """
    return [*_Finder(source, left_out).walk(ast.parse(source))]


def choose(edits: dict[str, Sequence[Edit]], count: int, seed: int) -> list[tuple[str, Edit]]:
    """`count` changes of random lines of files: no line twice before every line was taken once."""
    generator = random.Random(seed)
    lines: dict[tuple[str, int], list[Edit]] = {}
    for file, found in sorted(edits.items()):
        for edit in found:
            lines.setdefault((file, edit.line), []).append(edit)
    taken: list[tuple[str, Edit]] = []
    while lines and len(taken) < count:
        order = sorted(lines)
        generator.shuffle(order)
        for key in order[: count - len(taken)]:
            edit = lines[key].pop(generator.randrange(len(lines[key])))
            taken.append((key[0], edit))
            if not lines[key]:
                del lines[key]
    return taken


class _Finder:
    """Walks a tree; for each node that may be changed, the changes, then those of what is in it."""

    def __init__(self, source: str, left_out: Collection[str]) -> None:
        self._left_out = left_out
        self._starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._scope: list[str] = []
        self._makers: dict[type[ast.AST], Callable[[ast.AST], Iterator[tuple[ast.AST, str, str]]]] = {
            ast.Compare: _compare,
            ast.BoolOp: _bool_op,
            ast.UnaryOp: _unary,
            ast.BinOp: _binary,
            ast.Constant: _constant,
            ast.If: _condition,
            ast.IfExp: _condition,
            ast.Call: _call,
            ast.Slice: _slice,
            ast.Expr: _dropped,
            ast.Assign: _dropped,
            ast.AugAssign: _dropped,
        }

    def walk(self, node: ast.AST) -> Iterator[Edit]:
        if self._is_skipped(node):
            return
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if named:
            self._scope.append(node.name)
            if {node.name, ".".join(self._scope)} & set(self._left_out):
                self._scope.pop()
                return
            if not isinstance(node, ast.ClassDef):
                for at, text, kind in _results(node):
                    yield self._edit(at, text, kind)
        for at, text, kind in self._makers.get(type(node), _nothing)(node):
            yield self._edit(at, text, kind)
        for child in _children(node):
            yield from self.walk(child)
        if named:
            self._scope.pop()

    def _edit(self, node: ast.AST, text: str, kind: str) -> Edit:
        at = node  # every node that a maker gives has a place
        assert isinstance(at, ast.expr | ast.stmt)
        assert at.end_lineno is not None
        assert at.end_col_offset is not None
        start = self._starts[at.lineno - 1] + at.col_offset
        end = self._starts[at.end_lineno - 1] + at.end_col_offset
        return Edit(at.lineno, start, end, text, kind, ".".join(self._scope))

    def _is_skipped(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
            return True
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(d) for d in node.decorator_list}
            return node.name in _TEXTS or bool(decorators & {"overload", "typing.overload"})
        if isinstance(node, ast.If):
            return "TYPE_CHECKING" in ast.unparse(node.test)
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            return name in _LOGS
        return isinstance(node, ast.Expr) and not isinstance(node.value, ast.Call | ast.Await | ast.Yield)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """What is inside, without annotations, decorators and bases, and without flags of `zip`."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params", "ctx", "op", "ops"):
            continue
        if isinstance(node, ast.ClassDef) and name == "keywords":
            continue
        for child in value if isinstance(value, list) else [value]:
            is_flag = isinstance(child, ast.keyword) and child.arg == "strict"
            if isinstance(child, ast.AST) and not is_flag:
                yield child


def _nothing(_node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    return iter(())


def _compare(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.Compare)
    for index, operator in enumerate(node.ops):
        for other in SWAPS[type(operator)]:
            changed = copy.copy(node)
            changed.ops = [*node.ops[:index], other(), *node.ops[index + 1 :]]
            yield node, ast.unparse(changed), "comparison"


def _bool_op(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.BoolOp)
    other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield node, ast.unparse(ast.BoolOp(other, node.values)), "and, or"


def _unary(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.UnaryOp)
    if isinstance(node.op, ast.Not):
        yield node, f"({ast.unparse(node.operand)})", "not"


def _binary(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.BinOp)
    is_text = any(
        isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )
    if isinstance(node.op, ast.Add | ast.Sub) and not is_text:
        other = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
        yield node, ast.unparse(ast.BinOp(node.left, other, node.right)), "plus, minus"


def _constant(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.Constant)
    if isinstance(node.value, bool):
        yield node, str(not node.value), "truth value"
    elif isinstance(node.value, int):
        yield node, str(node.value + 1), "constant"
        yield node, f"({node.value - 1})" if node.value < 1 else str(node.value - 1), "constant"


def _condition(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.If | ast.IfExp)
    yield node.test, f"(not ({ast.unparse(node.test)}))", "condition"


def _call(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.Call)
    other = {"min": "max", "max": "min"}.get(getattr(node.func, "id", ""))
    if other is not None:
        yield node.func, other, "min, max"


def _slice(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    assert isinstance(node, ast.Slice)
    if node.lower is not None:
        yield node.lower, f"({ast.unparse(node.lower)}) + 1", "slice"
    if node.upper is not None:
        yield node.upper, f"({ast.unparse(node.upper)}) - 1", "slice"


def _dropped(node: ast.AST) -> Iterator[tuple[ast.AST, str, str]]:
    """A call, or an assignment to something that lasts, left out."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    lasts = any(isinstance(t, ast.Attribute | ast.Subscript) for t in targets)
    if lasts or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        yield node, "pass", "statement"


def _results(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.AST, str, str]]:
    """Results of a small function, replaced by nothing or by the other truth value."""
    if (node.end_lineno or 0) - node.lineno >= SMALL_LINES:
        return
    kind = ast.unparse(node.returns) if node.returns is not None else ""
    for inner in ast.walk(node):
        if not isinstance(inner, ast.Return) or inner.value is None:
            continue
        before = ast.unparse(inner.value)
        after = f"not ({before})" if kind == "bool" else "0" if kind in ("int", "float") else "None"
        if after != before:
            yield inner.value, after, "result"
