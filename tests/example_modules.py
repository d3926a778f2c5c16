"""Modules of the tiny presets at every stage of the pipeline, and random sessions run on the interpreter.

The target here is a stand-in that packs nothing and wants every fusion, so that no test needs tvm.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from session_model import Reach
from xdsl.dialects.builtin import ModuleOp

from ds4c.errors import TargetError
from ds4c.ir.block import Block
from ds4c.ir.dialect import make_context, verify_module
from ds4c.ir.interp import Machine
from ds4c.ir.kernel import KernelSpec
from ds4c.ir.types import StateKind
from ds4c.models.architecture import architecture_of
from ds4c.models.generate import generate_weights
from ds4c.models.ir_weights import IrWeightMap
from ds4c.models.presets import preset
from ds4c.passes import pipeline as pipe
from ds4c.passes.elements import element_bytes

Array = NDArray[Any]
CONTEXT = 512
TINY = ("tiny-8", "tiny-128", "tiny-delta")
FUSIONS = (
    "fuse-reads",
    "fuse-gated-linear",
    "fuse-hc-enter",
    "fuse-norm-rope",
    "fuse-index-select",
    "fuse-linear",
)


@dataclass(frozen=True)
class FakeTarget:
    """What the passes ask of a target, answered without a code generator."""

    name: str = "cpu"

    def fusions(self) -> tuple[str, ...]:
        return FUSIONS

    def weight_layout(self, op: str, operand: str, dtype: str, shape: tuple[int, ...]) -> str:
        return "panels" if op.endswith("linear") and len(shape) == 2 else "row"

    def packed_bytes(self, layout: str, dtype: str, shape: tuple[int, ...]) -> int:
        rows = -(-shape[0] // 16) * 16 if layout == "panels" else shape[0]
        return rows * math.prod(shape[1:]) * element_bytes(dtype)

    def scratch_bytes(self, spec: KernelSpec) -> int:
        if spec.op == "add_position_bias" and spec.operand("x").shape[1] == 13:
            raise TargetError("target: expected a width that is not 13, got 13")
        return 192 if spec.op in ("attention", "moe_experts", "index_select") else 0


def _fake_get_target(name: str) -> FakeTarget:
    if name != "cpu":
        raise TargetError(f"target: expected one of cpu, got {name}")
    return FakeTarget()


@contextmanager
def fake_target() -> Generator[None]:
    """Within it, the passes find `FakeTarget` under the name `cpu` and no other target."""
    users = ("pipeline", "choose_layout", "lower_to_kernels", "plan_buffers")
    patches = [patch(f"ds4c.passes.{user}.get_target", _fake_get_target) for user in users]
    for item in patches:
        item.start()
    try:
        yield
    finally:
        for item in patches:
            item.stop()


@lru_cache(maxsize=6)
def weights_of(name: str) -> IrWeightMap:
    """Seeded weights of a tiny preset, angle tables up to `CONTEXT`."""
    return IrWeightMap.of_arrays(preset(name), CONTEXT, generate_weights(preset(name), 1))


def fresh_module(name: str) -> ModuleOp:
    """The module of a tiny preset as built, before any pass."""
    return architecture_of(preset(name)).build_module(preset(name), weights_of(name).table)


def options(horizon: int = 20) -> pipe.PipelineOptions:
    """Small limits, two sessions and more."""
    return pipe.PipelineOptions(context=CONTEXT, horizon=horizon, rows=64, segments=4, logit_rows=64)


def stages(name: str, horizon: int = 20) -> tuple[tuple[str, ModuleOp], ...]:
    """(`input`, module), then (pass, module after it) for every pass of the pipeline; do not change them."""
    return _stages(name, horizon)


@lru_cache(maxsize=8)
def _stages(name: str, horizon: int) -> tuple[tuple[str, ModuleOp], ...]:
    with fake_target():
        module, ctx = fresh_module(name), make_context()
        out = [("input", module.clone())]
        for item in pipe.pipeline(options(horizon)):
            item.apply(ctx, module)
            verify_module(module)
            out.append((item.name, module.clone()))
    return tuple(out)


def stage(name: str, after: str, horizon: int = 20) -> ModuleOp:
    """A copy of the module after a pass of the pipeline."""
    return dict(stages(name, horizon))[after].clone()


PIPELINE = ("verify-model", "expand-macros", "plan-state", "prove-rewind", "insert-snapshots",
            "canonicalize", "cse", "dce", *FUSIONS, "choose-layout", "lower-to-kernels",
            "plan-buffers")  # fmt: skip


def machine_of(name: str, module: ModuleOp, dtype: Any = np.float32, slots: int = 2) -> Machine:
    """Interpreter of a module with the weights of its preset."""
    return Machine(module, weights_of(name), dtype, slots=slots, context=CONTEXT)


def step(machine: Machine, tokens: Array | list[int], block: Block) -> Array:
    """Logits of every row of a block."""
    rows = np.arange(block.num_rows, dtype=np.int32)
    return machine.call("step", np.asarray(tokens, np.int32), block, rows)[0]


def live_rows(machine: Machine, slot: int, position: int) -> dict[str, Array]:
    """Rows that a session at `position` may still read, from the read sets (not from the plan)."""
    out: dict[str, Array] = {}
    for name, rows in machine.store.items():
        decl = machine.decls[name]
        every = decl.row_every
        if decl.state_kind is StateKind.APPEND:
            out[name] = rows[slot, : position // every].copy()
        else:
            first = decl.window(position + (-(position + 1)) % every)[0]
            out[name] = rows[slot, np.arange(max(0, first), position) % rows.shape[1]].copy()
    return out


@dataclass
class Session:
    """One slot under the rule of the horizon; the tokens that survive and the logits seen for them."""

    slot: int
    horizon: int
    tokens: list[int] = field(default_factory=list[int])
    logits: list[Array] = field(default_factory=list[Array])

    def __post_init__(self) -> None:
        self.reach = Reach(self.horizon)

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def high_water(self) -> int:
        return self.reach.high_water

    @property
    def lowest(self) -> int:
        """Lowest position to step from: one below the oldest, whose last token may be stepped again."""
        return max(0, self.reach.oldest - 1)

    def took(self, tokens: list[int], logits: Array) -> None:
        self.tokens += tokens
        self.logits += list(logits)
        self.reach.wrote(self.position)

    def rewind(self, to: int) -> None:
        assert self.lowest <= to <= self.position
        del self.tokens[to:], self.logits[to:]


def run_step(machine: Machine, parts: list[tuple[Session, list[int]]]) -> Array:
    """One step over several sessions; each takes its tokens and logits. Returns the logits of all rows."""
    block = Block.of(*((s.slot, s.position, len(t)) for s, t in parts))
    logits = step(machine, [token for _, tokens in parts for token in tokens], block)
    at = 0
    for session, tokens in parts:
        session.took(tokens, logits[at : at + len(tokens)])
        at += len(tokens)
    return logits


FIRST = {"tiny-8": (9, 4), "tiny-128": (125, 6), "tiny-delta": (9, 2)}
"""Tokens that a walk gives to its two sessions before it starts: just before the heavy ratio closes."""


def random_walk(
    machine: Machine, name: str, horizon: int, seed: int, steps: int = 12
) -> tuple[list[Session], Array]:
    """Blocks of one and two sessions, rejected drafts, and rewinds to the edge of the horizon.

    Returns:
        The two sessions, and the logits of all rows in the order they were seen, `[n, V]`.
    """
    rng = np.random.default_rng(seed)

    def draw(n: int) -> list[int]:
        return rng.integers(0, preset(name).vocab_size, n).tolist()

    sessions = [Session(slot, horizon) for slot in range(2)]
    seen = [run_step(machine, [(s, draw(n)) for s, n in zip(sessions, FIRST[name], strict=True)])]
    for _ in range(steps):
        chosen = ((0,), (1,), (1, 0))[int(rng.integers(3))]
        seen.append(run_step(machine, [(sessions[i], draw(int(rng.integers(1, 12)))) for i in chosen]))
        for session in (sessions[i] for i in chosen):
            low = session.lowest
            to = (low, int(rng.integers(low, session.position + 1)), session.position)[int(rng.integers(3))]
            session.rewind(to)
    return sessions, np.concatenate(seen)
