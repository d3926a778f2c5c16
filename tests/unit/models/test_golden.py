"""Golden vectors: they belong to today's weights, and the float64 reference agrees with transformers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from golden_vectors import DEMO_FOLDER, GOLDEN_NAMES, TOLERANCE, load_golden, weights_sha256
from sizes import more

from ds4c.models.generate import generate_weights, write_checkpoint
from ds4c.models.presets import PRESETS
from tools.golden.reference64 import Reference64, rope_frequencies


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_weights_are_those_of_the_vectors(name: str) -> None:
    golden = load_golden(name)
    assert weights_sha256(golden.weights()) == golden.weights_sha256


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_vectors_cover_the_borders(name: str) -> None:
    golden, config = load_golden(name), load_golden(name).config
    num_tokens, stored = len(golden.tokens), set(golden.positions.tolist())
    heavy = max(config.compress_ratios)
    assert num_tokens > 2 * heavy + 1
    assert num_tokens > config.sliding_window
    assert num_tokens // 4 > config.index_topk
    for border in (config.sliding_window, heavy, 2 * heavy):
        assert {border - 2, border - 1, border, border + 1} <= stored
    assert 4 * config.index_topk + 3 in stored
    assert (golden.logits.argmax(axis=1) == golden.argmax[golden.positions]).all()
    assert golden.tokens.max() < config.vocab_size


@pytest.mark.slow
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_float64_reference_agrees_with_transformers(name: str) -> None:
    golden = load_golden(name)
    weights = golden.weights()
    logits = Reference64(golden.config, weights).run(golden.tokens.tolist())
    assert np.abs(logits[golden.positions] - golden.logits).max() <= golden.tolerance
    assert (logits.argmax(axis=1) == golden.argmax).all()
    if len(golden.positions64):
        assert np.abs(logits[golden.positions64] - golden.logits64).max() <= 1e-9
    for tokens, expected in golden.shorts:
        short = Reference64(golden.config, weights).run(tokens.tolist())
        assert np.abs(short - expected).max() <= golden.tolerance


def test_short_prompts_have_one_to_five_tokens() -> None:
    for name in GOLDEN_NAMES:
        assert [len(tokens) for tokens, _ in load_golden(name).shorts] == [1, 2, 3, 4, 5]


def test_yarn_frequencies_of_the_shipped_models() -> None:
    config = PRESETS["flash"]
    frequencies = rope_frequencies(64, config.layer_rope_theta(2), config.layer_yarn(2))
    expected = {0: 1.0, 15: 3.635539e-3, 16: 2.265625e-3, 20: 2.969778e-4, 25: 5.372313e-6, 31: 5.680529e-7}
    for pair, value in expected.items():
        assert frequencies[pair] == pytest.approx(value, rel=1e-6)
    plain = rope_frequencies(64, config.layer_rope_theta(0), config.layer_yarn(0))
    assert plain == pytest.approx(10000.0 ** (-np.arange(32) / 32))


def test_reference_keeps_the_rows_of_every_position() -> None:
    reference = Reference64(PRESETS["tiny-8"], generate_weights(PRESETS["tiny-8"], 1))
    reference.run(list(range(2, 21)))
    assert [len(rows.raw) for rows in reference.layers] == [19] * 6
    assert [len(rows.main.compressed) for rows in reference.layers] == [0, 0, 4, 2, 4, 2]
    assert [len(rows.index.compressed) for rows in reference.layers] == [0, 0, 4, 0, 4, 0]
    assert reference.layers[2].main.values[0].shape == (128,)
    assert reference.layers[3].main.scores[0].shape == (64,)


@pytest.mark.oracle
@pytest.mark.parametrize("preset", ["tiny-128", "tiny-8", more("bench-72m")])
def test_live_transformers_agrees_with_the_reference(tmp_path: Path, preset: str) -> None:
    import oracle_hf

    # A ratio-128 window closes at 128; other seeds and lengths than the golden files.
    config, num_tokens = PRESETS[preset], {"tiny-128": 300, "tiny-8": 75, "bench-72m": 40}[preset]
    write_checkpoint(config, tmp_path / "model", 7)
    tokens = np.random.default_rng(7).integers(0, config.vocab_size, num_tokens).tolist()
    logits = oracle_hf.hf_logits(tmp_path / "model", tokens)
    expected = Reference64(config, generate_weights(config, 7)).run(tokens)
    assert np.sqrt(np.mean(expected**2)) == pytest.approx(1.0, abs=0.1)
    assert np.abs(logits - expected).max() <= TOLERANCE


@pytest.mark.oracle
def test_live_transformers_on_other_configurations(tmp_path: Path) -> None:
    import oracle_hf

    config = replace(
        PRESETS["tiny-8"],
        compress_ratios=(8, 4, 0, 8, 4, 0),
        hash_layers=(False, True, False, True, True, False),
        rope_scaling=None,
    )
    write_checkpoint(config, tmp_path / "model", 3)
    tokens = np.random.default_rng(3).integers(0, config.vocab_size, 60).tolist()
    logits = oracle_hf.hf_logits(tmp_path / "model", tokens)
    expected = Reference64(config, generate_weights(config, 3)).run(tokens)
    assert np.abs(logits - expected).max() <= TOLERANCE


@pytest.mark.oracle
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_vectors_are_what_transformers_gives_today(tmp_path: Path, name: str) -> None:
    import oracle_hf

    golden, folder = load_golden(name), DEMO_FOLDER
    if name != "demo":
        folder = tmp_path / "model"
        write_checkpoint(golden.config, folder, golden.seed)
    logits = oracle_hf.hf_logits(folder, golden.tokens)
    assert np.abs(logits[golden.positions] - golden.logits).max() <= golden.tolerance
    for tokens, expected in golden.shorts:
        assert np.abs(oracle_hf.hf_logits(folder, tokens) - expected).max() <= golden.tolerance


@pytest.mark.oracle
@pytest.mark.parametrize("source", ["tiny-128", "demo"])
def test_transformers_own_loader_gives_the_same_model(tmp_path: Path, source: str) -> None:
    import oracle_hf
    import torch
    from transformers.models.deepseek_v4 import DeepseekV4ForCausalLM

    folder = DEMO_FOLDER
    if source != "demo":
        folder = tmp_path / "model"
        write_checkpoint(PRESETS[source], folder, 5)
    loaded = DeepseekV4ForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokens = load_golden(source).tokens[:150].tolist()
    with torch.no_grad():
        logits = loaded(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    assert np.array_equal(logits, oracle_hf.hf_logits(folder, tokens))
