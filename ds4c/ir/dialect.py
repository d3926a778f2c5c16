"""The `ds4` dialect object, and contexts to parse and print modules with."""

from __future__ import annotations

from io import StringIO

from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func, FuncOp
from xdsl.ir import Dialect, SSAValue
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ds4c.ir.attention_ops import ATTENTION_OPS
from ds4c.ir.recurrent_ops import RECURRENT_OPS
from ds4c.ir.state_ops import STATE_OPS
from ds4c.ir.tensor_ops import TENSOR_OPS
from ds4c.ir.types import BlockType, MarksType, RowsType, StateKindAttr, StateType

DS4 = Dialect(
    "ds4",
    [*STATE_OPS, *TENSOR_OPS, *ATTENTION_OPS, *RECURRENT_OPS],
    [StateKindAttr, StateType, BlockType, RowsType, MarksType],
)


def make_context() -> Context:
    """Context that knows builtin, func and ds4."""
    ctx = Context()
    for dialect in (Builtin, Func, DS4):
        ctx.load_dialect(dialect)
    return ctx


def parse_module(text: str, name: str = "<text>") -> ModuleOp:
    """Parse and verify a module.

    Raises:
        xdsl.utils.exceptions.ParseError, VerifyException: with line and column, or the op that is wrong.
    """
    module = Parser(make_context(), text, name).parse_module()
    verify_module(module)
    return module


def verify_module(module: ModuleOp) -> None:
    """Verify every op, and that no op uses a value that is made further down (xDSL does not check that).

    Raises:
        xdsl.utils.exceptions.VerifyException: naming the op.
    """
    module.verify()
    for function in module.body.block.ops:
        if not isinstance(function, FuncOp):
            continue
        made: set[SSAValue] = set(function.body.block.args)
        for op in function.body.block.ops:
            for i, operand in enumerate(op.operands):
                if operand not in made:
                    raise VerifyException(
                        f"{op.name}: operand {i}: expected a value made above it in "
                        f"@{function.sym_name.data}, got one made below"
                    )
            made.update(op.results)


def print_module(module: ModuleOp) -> str:
    """Text form; `parse_module` of it gives an equal module."""
    out = StringIO()
    Printer(stream=out).print_op(module)
    return out.getvalue() + "\n"
