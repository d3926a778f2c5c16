"""`choose-layout`: how each weight is packed, by what the target's kernels want of its users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from ds4c.ir.tensor_ops import WeightOp, shape
from ds4c.passes.elements import element_name
from ds4c.passes.target import get_target


def operand_name(op: Operation, value: SSAValue) -> str:
    """Name of the operand of `op` that is `value` (the variadic name for one of many)."""
    for name, _ in cast(IRDLOperation, op).get_irdl_definition().operands:
        operand = getattr(op, name)
        if operand is value or (not isinstance(operand, SSAValue) and operand and value in operand):
            return name
    raise KeyError(op.name)


@dataclass(frozen=True)
class ChooseLayout(ModulePass):
    """Sets `layout` on every `ds4.weight`; one weight has one layout."""

    name = "choose-layout"
    target: str = "cpu"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Ask the target about every use of every weight."""
        target = get_target(self.target)
        seen: dict[str, str] = {}
        for weight in op.walk():
            if not isinstance(weight, WeightOp):
                continue
            name, dtype = weight.weight.data, element_name(weight.res.type)
            for use in weight.res.uses:
                kind = use.operation.name.removeprefix("ds4.")
                layout = target.weight_layout(
                    kind, operand_name(use.operation, weight.res), dtype, shape(weight.res)
                )
                if seen.setdefault(name, layout) != layout:
                    raise PassFailedException(
                        f"choose-layout: weight {name}: expected one layout, got {seen[name]} and {layout}"
                    )
            weight.layout = StringAttr(seen.get(name, "row"))
