"""The part of llama.cpp's C interface that benchmarks call, for the binaries of one version (v0.5.0).

A structure passed by value must have the layout of the binary, so `check` compares some defaults
that the library fills in with what they are known to be.
"""

from __future__ import annotations

import ctypes as c
from pathlib import Path
from typing import Any

VERSION = "v0.5.0"
LOG_CALLBACK = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
INFO, WARN, ERROR = 2, 3, 4
TYPES = {"f32": 0, "f16": 1}
"""Of cached rows, as `ggml_type`."""
PARTIAL_ONLY = 1
"""Flag of `llama_state_seq_*_ext`: only what removing tokens cannot bring back."""


class ModelParams(c.Structure):
    """`llama_model_params`."""

    _fields_ = [
        ("devices", c.c_void_p),
        ("tensor_buft_overrides", c.c_void_p),
        ("n_gpu_layers", c.c_int32),
        ("split_mode", c.c_int32),
        ("load_mode", c.c_int32),
        ("lazy_mode", c.c_int32),
        ("main_gpu", c.c_int32),
        ("tensor_split", c.c_void_p),
        ("progress_callback", c.c_void_p),
        ("progress_callback_user_data", c.c_void_p),
        ("kv_overrides", c.c_void_p),
        ("vocab_only", c.c_bool),
        ("check_tensors", c.c_bool),
        ("use_extra_bufts", c.c_bool),
        ("no_host", c.c_bool),
        ("no_alloc", c.c_bool),
        ("load_mtp", c.c_bool),
    ]


class ContextParams(c.Structure):
    """`llama_context_params`."""

    _fields_ = [
        ("n_ctx", c.c_uint32),
        ("n_batch", c.c_uint32),
        ("n_ubatch", c.c_uint32),
        ("n_seq_max", c.c_uint32),
        ("n_rs_seq", c.c_uint32),
        ("n_outputs_max", c.c_uint32),
        ("n_outputs_max_per_seq", c.c_uint32),
        ("n_threads", c.c_int32),
        ("n_threads_batch", c.c_int32),
        ("ctx_type", c.c_int32),
        ("rope_scaling_type", c.c_int32),
        ("pooling_type", c.c_int32),
        ("attention_type", c.c_int32),
        ("flash_attn_type", c.c_int32),
        ("rope_freq_base", c.c_float),
        ("rope_freq_scale", c.c_float),
        ("yarn_ext_factor", c.c_float),
        ("yarn_attn_factor", c.c_float),
        ("yarn_beta_fast", c.c_float),
        ("yarn_beta_slow", c.c_float),
        ("yarn_orig_ctx", c.c_uint32),
        ("defrag_thold", c.c_float),
        ("cb_eval", c.c_void_p),
        ("cb_eval_user_data", c.c_void_p),
        ("type_k", c.c_int32),
        ("type_v", c.c_int32),
        ("abort_callback", c.c_void_p),
        ("abort_callback_data", c.c_void_p),
        ("embeddings", c.c_bool),
        ("offload_kqv", c.c_bool),
        ("no_perf", c.c_bool),
        ("op_offload", c.c_bool),
        ("swa_full", c.c_bool),
        ("kv_unified", c.c_bool),
        ("samplers", c.c_void_p),
        ("n_samplers", c.c_size_t),
        ("ctx_other", c.c_void_p),
    ]


class Batch(c.Structure):
    """`llama_batch`."""

    _fields_ = [
        ("n_tokens", c.c_int32),
        ("token", c.POINTER(c.c_int32)),
        ("embd", c.c_void_p),
        ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)),
        ("seq_id", c.POINTER(c.POINTER(c.c_int32))),
        ("logits", c.POINTER(c.c_int8)),
    ]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "llama_backend_init": (None, []),
    "llama_log_set": (None, [LOG_CALLBACK, c.c_void_p]),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (c.c_void_p, [c.c_char_p, ModelParams]),
    "llama_model_free": (None, [c.c_void_p]),
    "llama_init_from_model": (c.c_void_p, [c.c_void_p, ContextParams]),
    "llama_free": (None, [c.c_void_p]),
    "llama_get_memory": (c.c_void_p, [c.c_void_p]),
    "llama_memory_clear": (None, [c.c_void_p, c.c_bool]),
    "llama_memory_seq_rm": (c.c_bool, [c.c_void_p, c.c_int32, c.c_int32, c.c_int32]),
    "llama_state_seq_get_size": (c.c_size_t, [c.c_void_p, c.c_int32]),
    "llama_state_seq_get_data": (c.c_size_t, [c.c_void_p, c.c_char_p, c.c_size_t, c.c_int32]),
    "llama_state_seq_set_data": (c.c_size_t, [c.c_void_p, c.c_char_p, c.c_size_t, c.c_int32]),
    "llama_state_seq_get_size_ext": (c.c_size_t, [c.c_void_p, c.c_int32, c.c_uint32]),
    "llama_batch_init": (Batch, [c.c_int32, c.c_int32, c.c_int32]),
    "llama_batch_free": (None, [Batch]),
    "llama_decode": (c.c_int32, [c.c_void_p, Batch]),
    "llama_get_logits_ith": (c.POINTER(c.c_float), [c.c_void_p, c.c_int32]),
    "llama_print_system_info": (c.c_char_p, []),
}


def load(folder: Path) -> Any:
    """Load llama.cpp with the CPU variant that its own loader prefers for this machine.

    Args:
        folder: `bins/linux-x64` of the npm package.

    Raises:
        OSError: a library is missing or cannot be loaded.
        RuntimeError: the library is not the version whose structures are described here.
    """
    c.CDLL(str(folder / "libggml-base.so"), mode=c.RTLD_GLOBAL)
    ggml = c.CDLL(str(folder / f"libggml.{VERSION}.so"), mode=c.RTLD_GLOBAL)
    library: Any = c.CDLL(str(folder / f"libllama.{VERSION}.so"), mode=c.RTLD_GLOBAL)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    ggml.ggml_backend_load_all_from_path.argtypes = [c.c_char_p]
    ggml.ggml_backend_load_all_from_path.restype = None
    check(library)
    library.load_backends = lambda: ggml.ggml_backend_load_all_from_path(str(folder).encode())
    return library


def check(library: Any) -> None:
    """Refuse a binary whose structures differ from those above.

    Raises:
        RuntimeError: a default has another value than in v0.5.0.
    """
    context, model = library.llama_context_default_params(), library.llama_model_default_params()
    found = (context.n_ctx, context.n_batch, context.n_ubatch, context.type_k, context.type_v)
    found += (context.n_samplers, context.offload_kqv, model.use_extra_bufts, model.vocab_only)
    known = (512, 2048, 512, 1, 1, 0, True, True, False)
    if found != known:
        raise RuntimeError(
            f"llama.cpp: expected the defaults {known} of {VERSION}, got {found}; use that version"
        )
