"""What the fusion passes share: a walker over one pattern and questions about uses."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.pattern_rewriter import PatternRewriter, PatternRewriteWalker, RewritePattern


def apply_pattern(module: ModuleOp, pattern: RewritePattern) -> None:
    """Rewrite every match once."""
    PatternRewriteWalker(pattern, apply_recursively=False).rewrite_module(module)


def has_one_use(value: SSAValue) -> bool:
    """Whether exactly one operand reads the value."""
    return len(list(value.uses)) == 1


def erase_if_unused(op: Operation, rewriter: PatternRewriter) -> None:
    """Erase an op whose results nobody reads."""
    if not any(list(r.uses) for r in op.results):
        rewriter.erase(op)
