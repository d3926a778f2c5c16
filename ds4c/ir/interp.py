"""Runs a `ds4` module in NumPy, at any level from macros to kernel calls.

The oracle of every pass and kernel: `Machine.call("step", ...)` before and after a pass must agree. States
are pools `[slot, rows, width]`; a write yields a new version, except below `lower-to-kernels`, where
kernels write in place as the compiled code does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import func
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation

from ds4c.ir import numpy_ops as np_ops
from ds4c.ir import numpy_recurrent_ops as np_recurrent
from ds4c.ir.attention_ops import CallKernelOp
from ds4c.ir.block import Block
from ds4c.ir.state_ops import CloseOp, OpenOp, StateOp, states_of
from ds4c.ir.tensor_ops import WeightOp
from ds4c.ir.types import MarksType, StateKind, StateType

Array = NDArray[Any]


@dataclass(frozen=True)
class Pool:
    """A version of a state: rows of all slots and the declaration."""

    rows: Array
    decl: StateOp


@dataclass(frozen=True)
class Frame:
    """Named operands and attributes of the op being run."""

    values: Mapping[str, Any]
    attrs: Mapping[str, Any]
    machine: Machine
    in_place: bool

    def __getitem__(self, name: str) -> Any:
        """Operand value; None for an absent optional operand."""
        return self.values.get(name)

    def writable(self, name: str) -> Pool:
        """The state to write: itself below `lower-to-kernels`, else a copy (the next version)."""
        pool = cast(Pool, self.values[name])
        return pool if self.in_place else Pool(pool.rows.copy(), pool.decl)


class Machine:
    """Sessions of one module: weights, the pools of all states, and calls of functions.

    Args:
        module: a verified module.
        weights: name in `ds4.weight` -> array (cast to `dtype` unless an integer).
        dtype: `np.float32` or `np.float64`; the precision of all arithmetic.
        slots: number of sessions.
        context: largest position + 1; capacity of states that are not planned yet.
    """

    def __init__(
        self,
        module: ModuleOp,
        weights: Mapping[str, Array],
        dtype: Any = np.float32,
        slots: int = 1,
        context: int = 1024,
    ) -> None:
        self.module = module
        self.dtype = np.dtype(dtype)
        self.context = context
        self._weights = weights
        self._cast: dict[str, Array] = {}
        self.decls = {d.state_name: d for d in states_of(module)}
        self.marked: dict[tuple[int, int], dict[str, Array]] = {}
        """`(slot, position)` of a mark of a step -> live rows of every ring there."""
        self.store = {
            name: np.zeros((slots, self._rows(d), d.width), self.dtype)
            for name, d in self.decls.items()
            if d.state_kind is not StateKind.HOST
        }

    def _rows(self, decl: StateOp) -> int:
        if decl.capacity is not None:
            return decl.capacity
        return -(-self.context // decl.row_every) if decl.state_kind is StateKind.APPEND else self.context

    def weight(self, name: str) -> Array:
        """Weight in the machine's precision; angle tables stay float64."""
        if name not in self._cast:
            w = np.asarray(self._weights[name])
            keep = np.issubdtype(w.dtype, np.integer) or w.dtype == np.float64
            self._cast[name] = w if keep else w.astype(self.dtype)
        return self._cast[name]

    def call(self, function: str, *args: Any) -> tuple[Any, ...]:
        """Run a function; tensors, `Block`s, row lists (int32 arrays) and ints as arguments.

        Marks are an int32 array `[n, 2]` of segments and positions; a step without them takes no snapshot.
        """
        for op in self.module.body.block.ops:
            if isinstance(op, func.FuncOp) and op.sym_name.data == function:
                given = list(args)
                if len(given) + 1 == len(op.args) and isinstance(op.args[-1].type, MarksType):
                    given.append(np.zeros((0, 2), np.int32))
                return self._run(op, given)
        raise KeyError(function)

    def _run(self, function: func.FuncOp, args: Sequence[Any]) -> tuple[Any, ...]:
        block = function.body.block
        env: dict[SSAValue, Any] = dict(zip(block.args, args, strict=True))
        for op in block.ops:
            if isinstance(op, func.ReturnOp):
                return tuple(env[v] for v in op.operands)
            for result, value in zip(op.results, self._op(op, env), strict=True):
                env[result] = value
        return ()

    def _op(self, op: Operation, env: Mapping[SSAValue, Any]) -> Sequence[Any]:
        if isinstance(op, OpenOp):
            name = op.res.type.state_name
            return (Pool(self.store[name], self.decls[name]),)
        if isinstance(op, CloseOp):
            name = cast(StateType, op.value.type).state_name
            self.store[name] = cast(Pool, env[op.value]).rows
            return ()
        if isinstance(op, WeightOp):
            return (self.weight(op.weight.data),)
        if isinstance(op, CallKernelOp):
            return self._kernel(op, env)
        frame = Frame(named_operands(op, env), attributes(op), self, in_place=False)
        return _rule(op.name.removeprefix("ds4."))(frame)

    def _kernel(self, op: CallKernelOp, env: Mapping[SSAValue, Any]) -> Sequence[Any]:
        spec = op.kernel_spec
        ins = iter(op.ins)
        buffers = iter(op.buffers)
        values: dict[str, Any] = {}
        left = len(op.ins)
        for operand in spec.operands:
            if operand.role in ("ring", "append"):
                name = next(buffers).string_value()
                values[operand.name] = Pool(self.store[name], self.decls[name])
            elif operand.role in ("in", "weight", "block", "rows", "count", "marks") and left:
                if operand.role == "block" and operand.name == "windows" and spec.op == "windows":
                    continue
                values[operand.name] = env[next(ins)]
                left -= 1
        frame = Frame(variadic(values), dict(spec.attrs), self, in_place=True)
        out = _rule(spec.op)(frame)
        return [v for v in out if not isinstance(v, Pool)]


def variadic(values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect `w0, w1, ...` of a variadic operand under `w` as a list, as the op has it."""
    many = [values[f"w{i}"] for i in range(len(values)) if f"w{i}" in values and "w0" in values]
    return {**values, "w": many} if many else dict(values)


def named_operands(op: Operation, env: Mapping[SSAValue, Any]) -> dict[str, Any]:
    """Operand name -> value; variadic operands as lists, absent optional ones as None."""
    out: dict[str, Any] = {}
    for name, _ in cast(IRDLOperation, op).get_irdl_definition().operands:
        value = getattr(op, name)
        if value is None:
            out[name] = None
        elif isinstance(value, SSAValue):
            out[name] = env[value]
        else:
            out[name] = [env[v] for v in value]
    return out


def attributes(op: Operation) -> dict[str, Any]:
    """Numeric and string properties of an op as Python values."""
    out: dict[str, Any] = {}
    for name, attr in op.properties.items():
        if isinstance(attr, IntegerAttr):
            out[name] = attr.value.data
        elif isinstance(attr, FloatAttr):
            out[name] = attr.value.data
        elif isinstance(attr, StringAttr):
            out[name] = attr.data
    return out


# ---------------------------------------------------------------- meaning of ops by name

Rule = Callable[[Frame], Sequence[Any]]
_RULES: dict[str, Rule] = {}


def _rule(name: str) -> Rule:
    if name not in _RULES:
        raise KeyError(f"interpreter: no meaning for op {name}")
    return _RULES[name]


def rule(fn: Rule) -> Rule:
    """Register the meaning of the op with the function's name."""
    _RULES[fn.__name__.strip("_")] = fn
    return fn


def _simple(
    name: str, operands: Sequence[str], attrs: Sequence[str] = (), meanings: ModuleType = np_ops
) -> None:
    meaning = getattr(meanings, name)

    def run(f: Frame) -> Sequence[Any]:
        out = meaning(*(f[o] for o in operands), *(f.attrs[a] for a in attrs))
        return out if isinstance(out, tuple) else (out,)

    _RULES[name] = run


for _name, _operands, _attrs in (
    ("embed", ("tokens", "table"), ("copies",)),
    ("take_rows", ("x", "rows"), ()),
    ("linear", ("x", "w"), ()),
    ("grouped_linear", ("x", "w"), ("groups",)),
    ("rms_norm", ("x", "gain"), ("eps",)),
    ("head_norm", ("x",), ("heads", "eps")),
    ("rope", ("x", "table"), ("heads", "inverse")),
    ("add", ("x", "y"), ()),
    ("add_position_bias", ("x", "bias", "at"), ()),
    ("swiglu", ("gate", "up"), ("clamp",)),
    ("hc_mix", ("x", "fn", "base", "scale"), ("iters", "eps", "norm_eps")),
    ("hc_pre", ("x", "pre"), ()),
    ("hc_post", ("x", "y", "post", "mix"), ()),
    ("hc_collapse", ("x", "fn", "base", "scale"), ("eps", "norm_eps")),
    ("select_rows", ("scores", "at"), ("every", "top_k")),
    ("route_top", ("logits", "bias"), ("top_k", "scale")),
    ("route_hash", ("logits", "tokens", "table"), ("scale",)),
    ("moe_experts", ("x", "experts", "weights", "w1", "w3", "w2"), ("clamp",)),
):
    _simple(_name, _operands, _attrs)

for _name, _operands, _attrs in (
    ("causal_conv", ("old", "own", "taps", "at"), ()),
    ("delta_gates", ("a", "b", "rate", "bias"), ()),
    ("gated_delta", ("qkv", "decay", "beta", "old", "at"), ("key_heads", "key_width", "eps")),
    ("gated_norm", ("x", "gate", "gain"), ("eps",)),
):
    _simple(_name, _operands, _attrs, np_recurrent)


@rule
def rope_table(f: Frame) -> Sequence[Any]:
    """Angles in float64, rounded once to the machine's precision."""
    return (np_ops.rope_table(f["at"].positions, f["coarse"], f["fine"], f.machine.dtype),)


@rule
def multi_linear(f: Frame) -> Sequence[Any]:
    """Each weight in turn."""
    return tuple(np_ops.linear(f["x"], w) for w in f["w"])


@rule
def gated_linear(f: Frame) -> Sequence[Any]:
    """Gate and up product, then SwiGLU."""
    gate, up = np_ops.linear(f["x"], f["w1"]), np_ops.linear(f["x"], f["w3"])
    return (np_ops.swiglu(gate, up, f.attrs["clamp"]),)


@rule
def norm_rope(f: Frame) -> Sequence[Any]:
    """Norm with gain (one head) or of each head, then rotation."""
    heads, eps = f.attrs["heads"], f.attrs["eps"]
    if f["gain"] is not None:
        y = np_ops.rms_norm(f["x"], f["gain"], eps)
    else:
        y = np_ops.head_norm(f["x"], heads, eps)
    return (np_ops.rope(y, f["table"], heads, inverse=False),)


@rule
def hc_enter(f: Frame) -> Sequence[Any]:
    """Control vector, sublayer input and its norm."""
    a = f.attrs
    pre, post, mix = np_ops.hc_mix(
        f["x"], f["fn"], f["base"], f["scale"], a["iters"], a["eps"], a["norm_eps"]
    )
    return (np_ops.rms_norm(np_ops.hc_pre(f["x"], pre), f["gain"], a["norm_eps"]), post, mix)


@rule
def windows(f: Frame) -> Sequence[Any]:
    """Windows that close in the block."""
    return (cast(Block, f["at"]).windows(f.attrs["every"]),)


@rule
def read_rows(f: Frame) -> Sequence[Any]:
    """Old ring rows."""
    return (np_ops.read_rows(f["state"].rows, f["at"], f.attrs["span"]),)


@rule
def write(f: Frame) -> Sequence[Any]:
    """Ring write."""
    state = f.writable("state")
    np_ops.write(state.rows, f["rows"], f["at"])
    return (state,)


@rule
def append(f: Frame) -> Sequence[Any]:
    """Append write."""
    state = f.writable("state")
    np_ops.append(state.rows, f["rows"], f["at"], state.decl.row_every)
    return (state,)


def _old(value: Any, block: Block, span: int) -> Array:
    return np_ops.read_rows(value.rows, block, span) if isinstance(value, Pool) else value


@rule
def pool(f: Frame) -> Sequence[Any]:
    """Pooled rows; a ring operand is read as `read_rows` would."""
    every, lanes = f.attrs["every"], f.attrs["lanes"]
    span = every * lanes - 1
    kv_old, score_old = _old(f["kv_old"], f["at"], span), _old(f["score_old"], f["at"], span)
    return (np_ops.pool(kv_old, f["kv"], score_old, f["score"], f["at"], every, lanes),)


@rule
def compressor_step(f: Frame) -> Sequence[Any]:
    """The macro's meaning: pool from old rows, norm, rotate, append, then write the rings."""
    kv, score, rows = f.writable("kv"), f.writable("score"), f.writable("rows")
    every, lanes = rows.decl.row_every, f.attrs["lanes"]
    span = every * lanes - 1
    old = [np_ops.read_rows(s.rows, f["at"], span) for s in (kv, score)]
    pooled = np_ops.pool(old[0], f["kv_rows"], old[1], f["score_rows"], f["at"], every, lanes)
    row = np_ops.rope(np_ops.rms_norm(pooled, f["gain"], f.attrs["eps"]), f["table"], 1, inverse=False)
    np_ops.append(rows.rows, row, f["windows"], every)
    np_ops.write(kv.rows, f["kv_rows"], f["at"])
    np_ops.write(score.rows, f["score_rows"], f["at"])
    return (kv, score, rows)


@rule
def index_scores(f: Frame) -> Sequence[Any]:
    """Scores of visible rows."""
    every, scale = f.attrs["every"], f.attrs["scale"]
    return (np_ops.index_scores(f["q"], f["weights"], f["rows"].rows, f["at"], every, scale),)


@rule
def index_select(f: Frame) -> Sequence[Any]:
    """Scores, then selection."""
    every = f.attrs["every"]
    return (np_ops.select_rows(index_scores(f)[0], f["at"], every, f.attrs["top_k"]),)


@rule
def attention(f: Frame) -> Sequence[Any]:
    """Attention; a ring operand is read as `read_rows` would."""
    a = f.attrs
    old = _old(f["old"], f["at"], a["window"] - 1)
    rows = None if f["rows"] is None else f["rows"].rows
    return (
        np_ops.attention(
            f["q"],
            f["sink"],
            old,
            f["own"],
            f["at"],
            a["scale"],
            a["window"],
            rows,
            f["selection"],
            a["every"],
        ),
    )


def _ring_positions(decl: StateOp, first: int, at: int) -> Array:
    begin = decl.live_begin(first)
    return np.arange(max(0, begin, at - (decl.capacity or at)), at)


@rule
def snapshot(f: Frame) -> Sequence[Any]:
    """Copy of the live rows."""
    state, at = cast(Pool, f["state"]), f["at"]
    if state.decl.state_kind is StateKind.APPEND:
        return (state.rows[f["slot"], : at // state.decl.row_every].copy(),)
    live = _ring_positions(state.decl, at, at)
    return (state.rows[f["slot"], live % state.rows.shape[1]].copy(),)


@rule
def snapshot_rows(f: Frame) -> Sequence[Any]:
    """Live rows at the marks, from the ring before the block and from the block's own rows."""
    state, block = cast(Pool, f["state"]), cast(Block, f["at"])
    for segment, at in np.asarray(f["marks"]).tolist():
        slot, start, first = block.slots[segment], block.segment_starts[segment], block.first(segment)
        live = _ring_positions(state.decl, at, at)
        old = state.rows[slot, live[live < first] % state.rows.shape[1]]
        own = f["rows"][start + live[live >= first] - first]
        kept = f.machine.marked.setdefault((int(slot), at), {})
        kept[state.decl.state_name] = np.concatenate([old, own])
    return ()


@rule
def restore(f: Frame) -> Sequence[Any]:
    """Live rows put back; every dead row becomes NaN, so that a reader of one is found out."""
    state, at, slot = f.writable("state"), f["at"], f["slot"]
    state.rows[slot] = np.nan
    if state.decl.state_kind is StateKind.APPEND:
        state.rows[slot, : at // state.decl.row_every] = f["rows"]
    else:
        live = _ring_positions(state.decl, at, at)
        state.rows[slot, live % state.rows.shape[1]] = f["rows"]
    return (state,)


@rule
def fork(f: Frame) -> Sequence[Any]:
    """Rows of one slot copied to another; dead rows of the target become NaN."""
    state = f.writable("state")
    if f["args"] is not None:
        source, target, first, at = (int(v) for v in f["args"])
    else:
        source, target, first, at = f["source"], f["target"], f["first"], f["at"]
    if state.decl.state_kind is StateKind.APPEND:
        live = np.arange(at // state.decl.row_every)
    else:
        live = _ring_positions(state.decl, first, at) % state.rows.shape[1]
    kept = state.rows[source, live].copy()
    state.rows[target] = np.nan
    state.rows[target, live] = kept
    return (state,)


@rule
def rewind(f: Frame) -> Sequence[Any]:
    """Checks the rule of the horizon and yields the new position."""
    to, low = f["to"], max(f["floor"], f["high_water"] - f.attrs["horizon"])
    if not low <= to <= f["position"]:
        raise ValueError(f"rewind: to: expected [{low}, {f['position']}], got {to}")
    return (to,)
