"""What benchmarks feed to other engines: the same arrays; and what they say where one is missing."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import llama_abi
from benchmarks.active import active_bytes
from benchmarks.agreement import judge
from benchmarks.gguf_writer import write_gguf
from benchmarks.llama_peer import PeerUnavailableError, fetch
from ds4c.importers.safetensors import open_checkpoint
from ds4c.models.generate import WeightDtype, write_checkpoint
from ds4c.models.presets import PRESETS
from ds4c.models.weights import num_parameters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gguf_holds_the_same_arrays(tmp_path: Path, dtype: WeightDtype) -> None:
    gguf: Any = pytest.importorskip("gguf", reason="needs the package gguf (extra `peers`)")
    config = replace(PRESETS["tiny-128"], rope_scaling=None)
    write_checkpoint(config, tmp_path / "c", 0, dtype)
    checkpoint = open_checkpoint(tmp_path / "c")
    write_gguf(checkpoint, tmp_path / "m.gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c", "m.gguf"]
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    tensors = {t.name: t for t in reader.tensors}
    assert sum(int(t.n_elements) for t in tensors.values()) == num_parameters(config)

    def values(name: str) -> np.ndarray:
        tensor = tensors[name]
        if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
            bits = np.ascontiguousarray(tensor.data).view(np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(-1)
        return np.asarray(tensor.data).reshape(-1)

    for native, name in (
        ("layers.2.attn.wq_b.weight", "blk.2.attn_q_b.weight"),
        ("layers.2.attn.indexer.weights_proj.weight", "blk.2.indexer.proj.weight"),
        ("layers.3.ffn.gate.bias", "blk.3.exp_probs_b.bias"),
        ("layers.0.ffn.gate.tid2eid", "blk.0.ffn_gate_tid2eid.weight"),
        ("hc_head_fn", "output_hc_fn.weight"),
    ):
        stored = checkpoint.load(native)
        kind = np.int32 if stored.dtype.kind == "i" else np.float32
        assert np.array_equal(values(name), stored.astype(kind).reshape(-1))
    down = np.stack([checkpoint.load(f"layers.1.ffn.experts.{e}.w2.weight") for e in range(8)])
    assert np.array_equal(values("blk.1.ffn_down_exps.weight"), down.astype(np.float32).reshape(-1))


def test_scaled_rope_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="needs the package gguf (extra `peers`)")
    write_checkpoint(PRESETS["tiny-128"], tmp_path / "c", 0)
    with pytest.raises(ValueError, match="rope_scaling"):
        write_gguf(open_checkpoint(tmp_path / "c"), tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_active_bytes_of_the_speed_preset() -> None:
    """29.5 M of 72.5 M parameters in a step: the number behind every goal on the read stream."""
    config = PRESETS["bench-72m"]
    assert active_bytes(config, "f32") == pytest.approx(121.7e6, rel=0.01)
    assert active_bytes(config, "bf16") == pytest.approx(62.6e6, rel=0.01)


def test_no_npm_and_a_failing_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(PeerUnavailableError, match="expected npm on the PATH"):
        fetch(tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: name)
    failed = subprocess.CompletedProcess([], 1, "", "npm error code E404\nnpm error 404 Not Found\n")
    monkeypatch.setattr("subprocess.run", lambda *a, **k: failed)
    with pytest.raises(PeerUnavailableError, match="404 Not Found"):
        fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_llama_is_refused() -> None:
    class Other:
        def llama_context_default_params(self) -> llama_abi.ContextParams:
            return llama_abi.ContextParams(n_ctx=4096)

        def llama_model_default_params(self) -> llama_abi.ModelParams:
            return llama_abi.ModelParams()

    with pytest.raises(RuntimeError, match=llama_abi.VERSION):
        llama_abi.check(Other())


def test_agreement_tolerates_single_rows_and_no_more() -> None:
    ours = np.random.default_rng(0).standard_normal((100, 50)).astype(np.float32)
    near = ours + np.float32(1e-4)
    near[7] += 1.0  # another expert was taken
    assert judge("llama.cpp", "f32", ours, near).agrees
    assert not judge("llama.cpp", "f32", ours, ours + np.float32(0.01)).agrees
    many = ours.copy()
    many[:10] += 1.0
    assert not judge("llama.cpp", "f32", ours, many).agrees
    broken = ours.copy()
    broken[3, 3] = np.nan
    assert not judge("llama.cpp", "f32", ours, broken).agrees
