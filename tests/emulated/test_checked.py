"""A whole model in the checked mode of the emulator: no race, no stray or uninitialised access.

Kernels are checked one by one as CUDA text; here the Metal text, in `make test-more` that of CUDA too.
"""

from __future__ import annotations

import pytest
from artifacts import Build, tokens_for
from emulated.models import CUDA, METAL, emulated
from sizes import more

from ds4c_runtime.device.emulator.mode import VARIABLE

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("target", [more(CUDA), METAL])
def test_steps_and_a_rewind_touch_only_what_they_may(
    built: Build, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the checks change no bit: a session of the fast mode has the same logits."""
    made, fast = emulated(built, "tiny-8", target)
    tokens = tokens_for(made.config, 20, seed=8)
    expected = fast.session()
    expected.prefill(tokens[:14])
    after = expected.step(tokens[14:15])[-1].tobytes()

    monkeypatch.setenv(VARIABLE, "checked")
    _, checked = emulated(built, "tiny-8", target)
    session = checked.session()
    session.prefill(tokens)
    session.step(tokens[:1])
    session.step(tokens[1:4], all_logits=True)
    session.rewind(14)
    assert session.step(tokens[14:15])[-1].tobytes() == after
