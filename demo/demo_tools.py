"""The two tools that the demo runs for the model: arithmetic, and the sum of a list."""

import ast
import operator
from collections.abc import Callable, Mapping

from demo_server import DemoError

OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def evaluate(expression: str) -> float:
    """The value of an expression of numbers, `+ - * /` and brackets; nothing else is run.

    Raises:
        DemoError: the text is anything else.
    """
    refusal = f"calc failed: expected numbers and + - * /, got {expression!r}"

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
                return OPERATORS[type(sign)](value(left), value(right))
            case _:
                raise DemoError(refusal)

    try:
        return value(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ZeroDivisionError) as error:
        raise DemoError(refusal) from error


def plain(number: float) -> str:
    """As a person writes it: no trailing zeros, at most three decimals."""
    return str(int(number)) if float(number).is_integer() else f"{number:.3f}".rstrip("0").rstrip(".")


def run_tool(name: str, arguments: Mapping[str, object]) -> str:
    """Result of a tool call, as text.

    Raises:
        DemoError: no such tool, or arguments that it does not take.
    """
    match name, dict(arguments):
        case "calc", {"expression": str() as expression}:
            return plain(evaluate(expression))
        case "total", {"values": list() as values} if all(isinstance(v, int | float) for v in values):
            return plain(sum(values))
        case _:
            raise DemoError(f"tool call failed: expected calc or total, got {name}({dict(arguments)})")
