"""Speed as a machine has measured it."""

from __future__ import annotations

import pytest

from ds4c_runtime.step import Rates


def test_measured_speed_is_a_running_mean_of_seconds_a_token() -> None:
    rates = Rates()
    assert rates.estimate(5) == 0
    rates.record(8, 0.8)
    assert rates.estimate(4) == pytest.approx(0.4)
    assert rates.estimate(1) == pytest.approx(0.1), "no step of one row was measured"
    rates.record(10, 2.0)  # a fifth of the new measurement: 0.1 + 0.2 * (0.2 - 0.1)
    assert rates.estimate(10) == pytest.approx(1.2)
    rates.record(1, 0.05)
    assert (rates.estimate(1), rates.estimate(2)) == (pytest.approx(0.05), pytest.approx(0.24))
    rates.record_restore(1000, 0.5)
    assert rates.estimate_restore(3000) == pytest.approx(1.5)
