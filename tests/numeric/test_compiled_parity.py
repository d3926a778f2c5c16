"""Compiled artifacts against transformers (golden vectors, and live where it is installed)."""

from __future__ import annotations

import numpy as np
import pytest
from artifacts import Build
from golden_vectors import load_golden
from oracle_hf import hf_logits

from ds4c_runtime.local import open_local

NAMES = ["tiny-128", "tiny-8", "demo", "tiny-delta"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers(built: Build, name: str) -> None:
    golden = load_golden(name)
    model = open_local(built(name).artifact)
    logits = model.session().step(golden.tokens.tolist(), all_logits=True)
    assert len(golden.tokens) >= 300
    assert np.abs(logits[golden.positions] - golden.logits).max() <= golden.tolerance
    assert (logits.argmax(1) == golden.argmax).all()


@pytest.mark.parametrize("name", NAMES)
def test_short_prompts_equal_transformers(built: Build, name: str) -> None:
    golden = load_golden(name)
    model = open_local(built(name).artifact, sessions=5)
    assert [len(tokens) for tokens, _ in golden.shorts] == [1, 2, 3, 4, 5]
    for tokens, wanted in golden.shorts:
        logits = model.session().step(tokens.tolist(), all_logits=True)
        assert np.abs(logits - wanted).max() <= golden.tolerance


@pytest.mark.oracle
@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_transformers_run_here(built: Build, name: str) -> None:
    made, golden = built(name), load_golden(name)
    tokens = np.random.default_rng(5).integers(0, made.config.vocab_size, 330)
    logits = open_local(made.artifact).session().step(tokens.tolist(), all_logits=True)
    assert np.abs(logits - hf_logits(made.checkpoint, tokens)).max() <= golden.tolerance


@pytest.mark.parametrize("name", ["tiny-128", "tiny-8"])
def test_logits_equal_the_float64_reference(built: Build, name: str) -> None:
    golden = load_golden(name)
    assert golden.logits64 is not None
    logits = open_local(built(name).artifact).session().step(golden.tokens.tolist(), all_logits=True)
    assert np.abs(logits[golden.positions64] - golden.logits64).max() <= 2e-5
