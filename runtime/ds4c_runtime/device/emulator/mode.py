"""How the emulator runs: fast, in shuffled orders, or with checks of every access."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, cast, get_args

from ds4c_runtime.errors import DeviceError

ModeName = Literal["fast", "shuffled", "checked"]
VARIABLE = "DS4C_EMULATOR"


@dataclass(frozen=True)
class Mode:
    """A mode and, where orders are shuffled, their seed.

    Attributes:
        name: `fast`: guard pages and poisoned shared memory find some faults. `shuffled`: as fast, with
            warps, lanes and blocks in other orders; results must be equal. `checked`: every access is
            checked for bounds, initialisation and races; many times slower.
        seed: of the orders of `shuffled`.
    """

    name: ModeName = "fast"
    seed: int = 0

    @staticmethod
    def parse(text: str) -> Mode:
        """Read `fast`, `shuffled`, `shuffled:SEED` or `checked`.

        Raises:
            DeviceError: anything else.
        """
        name, colon, seed = text.partition(":")
        known = name in get_args(ModeName) and (not colon or (name == "shuffled" and seed.isdigit()))
        if not known:
            raise DeviceError(
                f"emulator refused: expected {VARIABLE} to be fast, shuffled, shuffled:SEED or checked, "
                f"got {text!r}"
            )
        return Mode(cast(ModeName, name), int(seed or 0))

    @staticmethod
    def from_environment() -> Mode:
        """The mode that `DS4C_EMULATOR` names; fast without it."""
        return Mode.parse(os.environ.get(VARIABLE, "fast"))


FAST = Mode("fast")
SHUFFLED = Mode("shuffled")
CHECKED = Mode("checked")
