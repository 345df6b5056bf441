"""Small wrong changes of a Python file: each another program that still reads well, as a slip would leave it.

Left alone is what changes nothing that is promised: docstrings, annotations, decorators, assertions, `__repr__`, texts
and what is put into them, arguments of an exception or of what is only told (`print`, `warn`, loggers).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

_COMPARE: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">"), ast.LtE: ("<", ">="), ast.Gt: (">=", "<"), ast.GtE: (">", "<="), ast.Eq: ("!=",),
    ast.NotEq: ("==",), ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",),
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*",
}  # fmt: skip
_OTHER_CALL = {"max": "min", "min": "max", "any": "all", "all": "any", "sorted": "list", "argmax": "argmin"}
_OTHER_CALL |= {"mean": "sum", "argmin": "argmax", "startswith": "endswith", "floor": "ceil", "ceil": "floor"}
_ANY_ORDER = {"max", "min", "transpose", "swapaxes", "isinstance", "issubclass", "getattr", "hasattr", "setattr", "zip"}
_TOLD = {"print", "warn", "note", "debug", "info", "warning"}
# how often each kind is chosen; refusals are many, and guards of them count as comparisons, too
WEIGHTS = {
    "comparison": 4, "number": 3, "default": 2, "logic": 3, "condition": 3, "arithmetic": 4, "call": 2, "removed": 4,
    "arguments": 2, "returned": 1, "flag": 2, "seed": 1, "refusal": 1, "end": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Change:
    """Text that stands for other text of a file."""

    kind: str
    start: int
    end: int
    text: str
    line: int

    def apply(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def changes(source: str) -> list[Change]:
    return sorted(_Finder(source).found, key=lambda change: (change.start, change.end, change.kind, change.text))


class _Finder(ast.NodeVisitor):
    """Finds changes; a node that it does not name is gone through."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[Change] = []
        lines = source.encode().splitlines(keepends=True)
        self._begins = [0]
        for line in lines:
            self._begins.append(self._begins[-1] + len(line.decode()))
        self._lines = lines
        self.visit(ast.parse(source))

    def _place(self, line: int, column: int) -> int:
        return self._begins[line - 1] + len(self._lines[line - 1][:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno, node.end_col_offset)

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self.source[start:end]

    def _add(self, kind: str, node: ast.expr | ast.stmt, text: str) -> None:
        self.found.append(Change(kind, *self._span(node), text, node.lineno))

    def _between(self, kind: str, left: ast.expr, right: ast.expr, text: str) -> None:
        """Replace the operator that stands between two nodes; brackets around them stay."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self.source[start:end]
        if "#" in gap or "\n" in gap:
            return
        inner = gap.lstrip(") ").rstrip("( ")
        place = start + gap.index(inner)
        self.found.append(Change(kind, place, place + len(inner), text, left.end_lineno or left.lineno))

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            for text in _COMPARE[type(operator)]:
                self._between("comparison", left, right, text)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = isinstance(node.left, ast.JoinedStr) or (
            isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        )
        if type(node.op) in _ARITHMETIC and not text:
            self._between("arithmetic", node.left, node.right, _ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between("logic", left, right, "or" if isinstance(node.op, ast.And) else "and")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add("logic", node, f"({self._text(node.operand)})")
        self.generic_visit(node)

    def _condition(self, node: ast.If | ast.IfExp | ast.While) -> None:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return
        self._add("condition", node.test, f"(not ({self._text(node.test)}))")
        self.generic_visit(node)

    visit_If = visit_IfExp = visit_While = _condition  # type: ignore[assignment]

    def visit_Constant(self, node: ast.Constant, *, kind: str = "number") -> None:
        value = node.value
        if isinstance(value, bool):
            self._add("flag", node, str(not value))
        elif isinstance(value, int):
            for text in (str(value + 1), str(value - 1)):
                self._add(kind, node, f"({text})" if text[0] == "-" else text)
        elif isinstance(value, float):
            self._add(kind, node, str(value * 2 if value else 1.0))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _TOLD or name.endswith("Error"):
            return
        if name in _OTHER_CALL and not (name == "sorted" and node.keywords):
            end = self._span(node.func)[1]
            self.found.append(Change("call", end - len(name), end, _OTHER_CALL[name], node.func.end_lineno or 0))
        pairs = [] if name in _ANY_ORDER else zip(node.args, node.args[1:], strict=False)
        for left, right in (pair for pair in pairs if self._may_swap(*pair)):
            (start, middle), (begin, end) = self._span(left), self._span(right)
            text = self._text(right) + self.source[middle:begin] + self._text(left)
            self.found.append(Change("arguments", start, end, text, left.lineno))
        for keyword in node.keywords:
            if keyword.arg == "seed" and not isinstance(keyword.value, ast.Constant):
                self._add("seed", keyword.value, "0")
        self.generic_visit(node)

    @staticmethod
    def _may_swap(left: ast.expr, right: ast.expr) -> bool:
        plain = not any(isinstance(one, ast.Starred | ast.GeneratorExp) for one in (left, right))
        return plain and ast.dump(left) != ast.dump(right)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not self._is_told(node.value):
            self._add("removed", node, "pass")
        self.generic_visit(node)

    @staticmethod
    def _is_told(call: ast.Call) -> bool:
        return (call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")) in _TOLD

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._add("removed", node, "pass")
        if type(node.op) in _ARITHMETIC and isinstance(node.op, ast.Add | ast.Sub):
            self._between("arithmetic", node.target, node.value, _ARITHMETIC[type(node.op)] + "=")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if all(isinstance(target, ast.Subscript) for target in node.targets):
            self._add("removed", node, "pass")
        if not any(getattr(target, "id", "") == "__all__" for target in node.targets):
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._add("returned", node.value, "None")
        self.generic_visit(node)

    def _end(self, node: ast.Break | ast.Continue) -> None:
        self._add("end", node, "pass")

    visit_Break = visit_Continue = _end  # type: ignore[assignment]

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._add("refusal", node, "pass")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._default(node.value)

    def _default(self, value: ast.expr) -> None:
        if isinstance(value, ast.Constant):
            self.visit_Constant(value, kind="default")
        else:
            self.visit(value)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in ("__repr__", "__str__"):
            return
        for value in (*node.args.defaults, *node.args.kw_defaults):
            if value is not None:
                self._default(value)
        for statement in node.body:
            self.visit(statement)

    visit_FunctionDef = visit_AsyncFunctionDef = _function  # type: ignore[assignment]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def _leave(self, node: ast.AST) -> None:
        """Nothing in it is changed."""

    visit_Assert = visit_JoinedStr = visit_Import = visit_ImportFrom = _leave  # type: ignore[assignment]


def is_other(source: str, change: Change) -> bool:
    """Whether the changed file compiles, and is another program."""
    try:
        return ast.dump(ast.parse(change.apply(source))) != ast.dump(ast.parse(source))
    except SyntaxError:
        return False
