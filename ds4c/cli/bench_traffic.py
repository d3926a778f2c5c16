"""How many bytes a kernel has to move in a step: the least that any code for it would read and write."""

from __future__ import annotations

from dataclasses import dataclass

from ds4c.ir.kernel import KernelSpec, Operand

_SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}
_BY_ROW = {"embed": "table", "route_hash": "table", "rope_table": "coarse fine"}
"""Weights of which a step reads one row for each of its own."""


@dataclass(frozen=True)
class StepShape:
    """What decides the traffic of a step.

    Attributes:
        rows: tokens of the step.
        logit_rows: rows whose logits are wanted.
        position: position of the first row.
        max_rows, max_logit_rows: largest step of the artifact.
    """

    rows: int
    logit_rows: int
    position: int
    max_rows: int
    max_logit_rows: int

    def rows_of(self, size: int, every: int) -> int:
        """Rows that are in use of an activation of `size` rows at most.

        Args:
            size: first dimension of the operand.
            every: tokens per row where it is neither `max_rows` nor `max_logit_rows`.
        """
        if size == self.max_rows:
            return self.rows
        if size == self.max_logit_rows:
            return self.logit_rows
        return self.closed(every)

    def closed(self, every: int) -> int:
        """Groups of `every` tokens that end within the step; without groups, the rows."""
        if every <= 1:
            return self.rows
        return (self.position + self.rows) // every - self.position // every


def kernel_bytes(spec: KernelSpec, step: StepShape, experts: int) -> int:
    """Bytes of one call of a kernel.

    Weights count once, experts as many as are used, activations and states by the rows that are in use.
    Scratch and tables of a few numbers (blocks, counts, page tables) are left out.

    Args:
        spec: the kernel.
        step: the step it is part of.
        experts: different experts that the rows of this call use; counts for `moe_experts` only.
    """
    every = int(dict(spec.attrs).get("every", 0)) or max((o.every for o in spec.operands), default=0)
    return sum(_operand_bytes(spec, operand, step, experts, every) for operand in spec.operands)


def _operand_bytes(spec: KernelSpec, operand: Operand, step: StepShape, experts: int, every: int) -> int:
    row = _SIZES[operand.dtype] * _product(operand.shape[1:])
    if operand.role == "weight":
        if operand.name in _BY_ROW.get(spec.op, "").split():
            return row * step.rows
        if spec.op == "moe_experts":
            return row * experts
        return row * operand.shape[0]
    if operand.role in ("in", "out"):
        return row * step.rows_of(operand.shape[0], every)
    if operand.role == "ring":
        return row * _ring_rows(spec, operand, step)
    if operand.role == "append":
        return row * _append_rows(spec, operand, step)
    return 0


def _ring_rows(spec: KernelSpec, operand: Operand, step: StepShape) -> int:
    if spec.op == "attention":
        return min(step.position, int(spec.attr("window")))
    if spec.op == "pool":  # rows before this step of the groups that end in it
        reach = int(spec.attr("lanes")) * int(spec.attr("every"))
        return min(step.position, reach) if step.closed(int(spec.attr("every"))) else 0
    return min(step.rows, operand.shape[0])


def _append_rows(spec: KernelSpec, operand: Operand, step: StepShape) -> int:
    visible = (step.position + step.rows) // operand.every
    if spec.op == "append":
        return step.closed(operand.every)
    if spec.has("selection"):
        return (
            min(visible, spec.operand("selection").shape[1] * step.rows)
            if spec.op == "attention"
            else visible
        )
    return visible


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for extent in shape:
        total *= extent
    return total
