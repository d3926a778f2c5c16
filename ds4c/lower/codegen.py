"""TIR functions to an LLVM module, by the few TVM passes that our kernels need.

The kernels are flat, final TIR: they have no blocks, schedules or vector loops, so most of TVM's
default pipeline finds nothing to do, in three quarters of the compile time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.tirx import transform


def compile_functions(functions: Sequence[Any], llvm: dict[str, Any]) -> Any:
    """One LLVM module with all functions, each under its `global_symbol`.

    Args:
        functions: TIR functions.
        llvm: TVM target description.
    """
    target = tvm.target.Target(llvm)
    module = tvm.IRModule({tvm.ir.GlobalVar(f.attrs["global_symbol"]): f for f in functions})
    passes = (
        transform.BindTarget(target.with_host(target)),
        transform.FlattenBuffer(),
        transform.UnrollLoop(),
        transform.StmtSimplify(),
        transform.MakePackedAPI(),
        transform.LowerTVMBuiltin(),
        transform.LowerIntrin(),
    )
    for each in passes:
        module = each(module)
    return tvm.get_global_func("target.build.llvm")(module, target)
