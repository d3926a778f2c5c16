"""Traits of state-touching ops: what they read, what they replace, and that a version is replaced once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.traits import OpTrait, SymbolTable, SymbolUserOpInterface
from xdsl.utils.exceptions import VerifyException

from ds4c.ir.types import StateKind, StateType


@dataclass(frozen=True)
class StateAccess(OpTrait):
    """The op reads the state versions in `reads` and replaces those in `writes` (operand names).

    Result number `i` of state type is the next version of `writes[i]`.
    """

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    def verify(self, op: Operation) -> None:
        """Every named operand exists (an error of the dialect, not of the module)."""
        names = {name for name, _ in cast(IRDLOperation, op).get_irdl_definition().operands}
        unknown = {*self.reads, *self.writes} - names
        if unknown:
            raise VerifyException(f"{op.name}: state access: expected operand names, got {sorted(unknown)}")


def access(op: Operation) -> StateAccess:
    """State access of an op; empty for ops that touch no state."""
    found = [t for t in op.get_traits_of_type(StateAccess)]
    return found[0] if found else StateAccess()


def _named(op: Operation, names: tuple[str, ...]) -> list[SSAValue]:
    values = [getattr(op, n) for n in names]
    return [v for v in values if v is not None and isinstance(v.type, StateType)]


def states_read(op: Operation) -> list[SSAValue]:
    """State versions that the op reads (operands that hold plain tensors are left out)."""
    return _named(op, access(op).reads)


def states_replaced(op: Operation) -> list[SSAValue]:
    """State versions that the op replaces."""
    return _named(op, access(op).writes)


def _verify_every(op: Operation, name: str, declared: Operation | None) -> None:
    """An op that pools, scores or attends by windows does so with the window of the rows it reads."""
    of_op, of_state = op.properties.get("every"), getattr(declared, "row_every", 1)
    if isinstance(of_op, IntegerAttr) and of_state > 1 and of_op.value.data not in (0, of_state):
        raise VerifyException(f"{op.name}: @{name}: expected every {of_state}, got {of_op.value.data}")


def next_version(value: SSAValue) -> SSAValue | None:
    """The version that replaces this one in the same function; None for the last."""
    for use in value.uses:
        op = use.operation
        replaced = states_replaced(op)
        if value in replaced:
            results = [r for r in op.results if isinstance(r.type, StateType)]
            return results[replaced.index(value)] if results else None
    return None


class WrittenOnce(OpTrait):
    """At most one op replaces each state version that the op yields."""

    def verify(self, op: Operation) -> None:
        """Raise if a result of state type is replaced by more than one op."""
        for result in op.results:
            if not isinstance(result.type, StateType):
                continue
            writers = [u.operation for u in result.uses if result in states_replaced(u.operation)]
            if len(writers) > 1:
                raise VerifyException(
                    f"{op.name}: version of @{result.type.state_name}: expected at most one op to replace "
                    f"it, got {len(writers)} ({', '.join(w.name for w in writers)})"
                )


@dataclass(frozen=True)
class StateSymbolUser(SymbolUserOpInterface):
    """Every state type of the op names a declared state, and operands have the kind the op can address.

    `ring`, `append` and `by_position` (ring or opaque: one row per position) are operand names; operands
    named in none of them may be states of any kind but host.
    """

    ring: tuple[str, ...] = ()
    append: tuple[str, ...] = ()
    by_position: tuple[str, ...] = ()

    def verify(self, op: Operation) -> None:
        """Raise if an operand or result names an undeclared state, or an operand one of another kind."""
        self._verify_declared(op)
        for names, kinds in (
            (self.ring, (StateKind.RING,)),
            (self.append, (StateKind.APPEND,)),
            (self.by_position, (StateKind.RING, StateKind.OPAQUE)),
        ):
            for value in _named(op, names):
                state = cast(StateType, value.type)
                declared = SymbolTable.lookup_symbol(op, state.symbol)
                found = cast(StateKind, getattr(declared, "state_kind", kinds[0]))
                if found not in kinds:
                    raise VerifyException(
                        f"{op.name}: @{state.state_name}: expected a state of kind {' or '.join(kinds)}, "
                        f"got {found}"
                    )
                _verify_every(op, state.state_name, declared)

    def _verify_declared(self, op: Operation) -> None:
        for value in (*op.operands, *op.results):
            if not isinstance(value.type, StateType):
                continue
            declared = SymbolTable.lookup_symbol(op, value.type.symbol)
            if declared is None or declared.name != "ds4.state":
                raise VerifyException(
                    f"{op.name}: expected a declared state, got @{value.type.state_name}; "
                    "declare it with ds4.state"
                )
