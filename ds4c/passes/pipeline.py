"""The pass pipeline on one screen, the registry of passes by name, and dumps after each pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.transforms.dead_code_elimination import DeadCodeElimination

from ds4c.ir.dialect import make_context, print_module, verify_module
from ds4c.passes.choose_layout import ChooseLayout
from ds4c.passes.expand_macros import ExpandMacros
from ds4c.passes.fuse_gated_linear import FuseGatedLinear
from ds4c.passes.fuse_hc_enter import FuseHcEnter
from ds4c.passes.fuse_index_select import FuseIndexSelect
from ds4c.passes.fuse_linear import FuseLinear
from ds4c.passes.fuse_norm_rope import FuseNormRope
from ds4c.passes.fuse_reads import FuseReads
from ds4c.passes.insert_snapshots import InsertSnapshots
from ds4c.passes.lower_to_kernels import LowerToKernels
from ds4c.passes.plan_buffers import PlanBuffers
from ds4c.passes.plan_state import PlanState
from ds4c.passes.prove_rewind import ProveRewind
from ds4c.passes.target import get_target
from ds4c.passes.verify_model import VerifyModel

PASSES: dict[str, type[ModulePass]] = {
    p.name: p
    for p in (
        VerifyModel,
        ExpandMacros,
        PlanState,
        ProveRewind,
        InsertSnapshots,
        CanonicalizePass,
        CommonSubexpressionElimination,
        DeadCodeElimination,
        FuseReads,
        FuseGatedLinear,
        FuseHcEnter,
        FuseNormRope,
        FuseIndexSelect,
        FuseLinear,
        ChooseLayout,
        LowerToKernels,
        PlanBuffers,
    )
}


@dataclass(frozen=True)
class PipelineOptions:
    """What `ds4c build` lets a user choose; the meaning is that of `plan-state`."""

    target: str = "cpu"
    horizon: int = 64
    context: int = 4096
    rows: int = 512
    segments: int = 8
    logit_rows: int = 64


def pipeline(options: PipelineOptions) -> list[ModulePass]:
    """All passes in order; the target says which fusions it wants."""
    o = options
    return [
        # the model, with every macro taken apart
        VerifyModel(),
        ExpandMacros(),
        # how states are laid out and rewound
        PlanState(o.horizon, o.context, o.rows, o.segments, o.logit_rows),
        ProveRewind(),
        InsertSnapshots(),
        # only now is anything deleted; states live through close
        CanonicalizePass(),
        CommonSubexpressionElimination(),
        DeadCodeElimination(),
        # what the target wants
        *(PASSES[name]() for name in get_target(o.target).fusions()),
        ChooseLayout(o.target),
        # kernels and addresses
        LowerToKernels(o.target),
        PlanBuffers(o.target),
    ]


def run_pipeline(
    module: ModuleOp,
    passes: Sequence[ModulePass],
    dump: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Run passes on a module, verifying between them.

    Args:
        module: changed in place.
        passes: in order.
        dump: folder that gets the text after each pass, `00-input.mlir`, `01-verify-model.mlir`, ...
        progress: called with the name of each pass before it runs.

    Raises:
        PassFailedException, VerifyException: a pass refuses the module or leaves an invalid one.
    """
    ctx: Context = make_context()
    _dump(dump, 0, "input", module)
    verify_module(module)
    for i, item in enumerate(passes, 1):
        if progress is not None:
            progress(item.name)
        item.apply(ctx, module)
        verify_module(module)
        _dump(dump, i, item.name, module)


def _dump(folder: Path | None, index: int, name: str, module: ModuleOp) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:02d}-{name}.mlir").write_text(print_module(module))
