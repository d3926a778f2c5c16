"""Transactions of speculative decoding on the emulated texts of a model of four layers.

All of them at the borders on one target; every phase, on both, in `make test-more`.
"""

from __future__ import annotations

import pytest
from artifacts import Build
from emulated.models import EMULATOR, TARGETS
from rewind.table import PHASES, Case, transactions
from rewind.test_tables import Compiled

pytestmark = pytest.mark.slow

LAP = 128
RINGS = {20, 28, 140}
"""Rows of the rings of horizon 12: two groups of 4, the window of 16 or a group of 128, less one, and 13."""

BORDERS = (*range(4), *range(7, 13), *range(122, PHASES))
"""Phases of a block of up to 6 that touches 128, 256, the ends of groups, or 140, where every ring wraps."""


@pytest.fixture(scope="module", params=TARGETS)
def four_layers(built: Build, request: pytest.FixtureRequest) -> Compiled:
    return Compiled(built("four-layers", target=request.param), device=EMULATOR)


at_borders = pytest.mark.parametrize("four_layers", ["metal"], indirect=True)
"""Of the targets the one that needs no compiler of binaries."""


@at_borders
def test_every_transaction_at_the_borders(four_layers: Compiled) -> None:
    """All widths and accepted counts, in place."""
    assert {ring.capacity for ring in four_layers.model.manifest.rings} == RINGS
    assert four_layers.run(transactions(BORDERS), LAP, follow=2) == 27 * 16


@at_borders
def test_the_borders_by_snapshot(four_layers: Compiled) -> None:
    """Two transactions a phase, which over the phases are all widths and accepted counts.

    And one of which nothing is accepted: only that one goes back to the border's own snapshot.
    """
    cases = [transactions([phase])[n % 27] for n, phase in enumerate(BORDERS * 2)]
    assert {(c.q, c.accepted) for c in cases} == {(c.q, c.accepted) for c in transactions([0])}
    cases += [Case(phase, 1 + n % 6, 0) for n, phase in enumerate(BORDERS)]
    assert four_layers.run(cases, LAP, follow=5, away=13) == 48


@pytest.mark.more
@pytest.mark.timeout(1800)  # two minutes of an idle core, ten of one that others use too
def test_every_transaction(four_layers: Compiled) -> None:
    """All phases, widths and accepted counts, in place."""
    assert four_layers.run(transactions(), LAP, follow=2) == 3456


@pytest.mark.more
def test_every_phase_by_snapshot(four_layers: Compiled) -> None:
    cases = [transactions([phase])[(11 * phase) % 27] for phase in range(PHASES)]
    assert four_layers.run(cases, LAP, follow=5, away=13) == 128
