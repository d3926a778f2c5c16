"""Numbers of the plan that passes leave on the module: limits, sizes and the layout of the `io` arena."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp
from xdsl.utils.exceptions import PassFailedException

ATTRIBUTE = "ds4.plan"


@dataclass(frozen=True)
class Plan:
    """Limits and sizes. Sizes are in bytes and are 0 until the pass that plans them has run.

    Attributes:
        horizon: rewinds of up to that many tokens below the high water move no data.
        context: largest position + 1.
        max_rows: rows of a step. max_segments: sessions of a step. max_logit_rows: rows with logits.
        page_tokens: tokens that a page of append rows covers.
        max_marks: snapshots that one step can take: one per segment and one per page of its rows.
        slot_bytes: ring rows of one session. page_bytes: append rows of all states for `page_tokens`.
        workspace_bytes, weights_bytes, io_bytes: sizes of the other arenas.
        io_*: offsets in the `io` arena.
    """

    horizon: int
    context: int
    max_rows: int
    max_segments: int
    max_logit_rows: int
    page_tokens: int
    max_marks: int = 0
    slot_bytes: int = 0
    page_bytes: int = 0
    workspace_bytes: int = 0
    weights_bytes: int = 0
    io_bytes: int = 0
    io_tokens: int = 0
    io_block: int = 0
    io_page_tables: int = 0
    io_logit_rows: int = 0
    io_fork_args: int = 0
    io_marks: int = 0
    io_logits: int = 0

    @property
    def pages_per_session(self) -> int:
        """Entries of a page table."""
        return -(-self.context // self.page_tokens)

    def with_sizes(self, **sizes: int) -> Plan:
        """Copy with some sizes filled in."""
        return replace(self, **sizes)

    def store(self, module: ModuleOp) -> None:
        """Put the plan on the module."""
        numbers: Mapping[str, int] = asdict(self)
        module.attributes[ATTRIBUTE] = DictionaryAttr({k: IntegerAttr(v, 64) for k, v in numbers.items()})

    @staticmethod
    def of(module: ModuleOp, needed_by: str) -> Plan:
        """The plan of a module.

        Raises:
            PassFailedException: plan-state has not run.
        """
        attr = module.attributes.get(ATTRIBUTE)
        if not isinstance(attr, DictionaryAttr):
            raise PassFailedException(
                f"{needed_by}: expected a planned module, got none; run plan-state first"
            )
        values: dict[str, int] = {}
        for f in fields(Plan):
            number = attr.data[f.name]
            assert isinstance(number, IntegerAttr)
            values[f.name] = number.value.data
        return Plan(**values)


def round64(size: int) -> int:
    """Next multiple of 64 bytes, the alignment of every buffer."""
    return (size + 63) // 64 * 64
