"""Every transaction of speculative decoding on the emulated texts of a model of four layers."""

from __future__ import annotations

import pytest
from artifacts import Build
from emulated.models import EMULATOR, TARGETS
from rewind.table import PHASES, transactions
from rewind.test_tables import Compiled

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=TARGETS)
def four_layers(built: Build, request: pytest.FixtureRequest) -> Compiled:
    return Compiled(built("four-layers", target=request.param), device=EMULATOR)


def test_every_transaction(four_layers: Compiled) -> None:
    """All phases, widths and accepted counts, in place."""
    assert four_layers.run(transactions(), lap=128, follow=2) == 3456


def test_every_phase_by_snapshot(four_layers: Compiled) -> None:
    cases = [transactions([phase])[(11 * phase) % 27] for phase in range(PHASES)]
    assert four_layers.run(cases, lap=128, follow=5, away=13) == 128
