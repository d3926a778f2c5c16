"""What a device does: `python -m benchmarks.on_device --device cuda --out FOLDER [--small]`.

Products per format and attention beside a measured copy, the library's product where torch is there, idle
blocks, a decode step of a stack of layers of DeepSeek-V4-Flash's shapes with and without graphs, and rewinds.
Writes `device.json` and `device.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.device_kernels import Bench, Case, copy_ceiling, make_spec, median_of
from ds4c.build import BuildOptions, build
from ds4c.ir.kernel import BlockLayout, Operand
from ds4c.models.config import ModelConfig
from ds4c.models.generate import write_checkpoint
from ds4c.models.presets import PRESETS
from ds4c.passes.target import Target, get_target
from ds4c_runtime.devices import make_device, probe_devices
from ds4c_runtime.launches import Extent
from ds4c_runtime.local import LocalModel, open_local
from ds4c_runtime.session import Session

FORMATS = ("float32", "float16", "bfloat16")
_ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes:
        outputs, inputs: of the products. rows: of the tiled ones.
        calls: in one graph. repeats: of a measurement.
        copy: bytes. heads, width, window, context, selected: of attention.
        preset, layers, experts, vocabulary: of the model; 0 takes the preset's.
        prompt, chunk: tokens of the sessions.
    """

    outputs: int
    inputs: int
    rows: int
    calls: int
    repeats: int
    copy: int
    heads: int
    width: int
    window: int
    context: int
    selected: int
    preset: str
    layers: int
    experts: int
    vocabulary: int
    prompt: int
    chunk: int


FULL = Size(16384, 7168, 256, 3, 20, 1 << 30, 64, 512, 128, 65536, 512, "flash", 4, 8, 4096, 900, 256)
SMALL = Size(256, 96, 64, 1, 1, 1 << 20, 4, 32, 16, 512, 8, "tiny-8", 0, 0, 0, 150, 32)


@dataclass(frozen=True)
class Row:
    """One line of the table: microseconds, and a rate in a unit of its own where there is one."""

    what: str
    microseconds: float
    rate: str = ""
    note: str = ""


def products(target: Target, size: Size) -> list[Case]:
    """One case for each format: a single row, and the rows of a chunk."""
    n, k, rows = size.outputs, size.inputs, size.rows
    found: list[Case] = []
    for dtype in FORMATS:
        operands = [
            Operand("x", "in", "float32", (rows, k)),
            Operand("w", "weight", dtype, (n, k)),
            Operand("y", "out", "float32", (rows, n)),
            Operand("count", "count", "int32", (1,)),
        ]
        spec = make_spec(target, "linear", operands)
        extents = (Extent(1, 1), Extent(rows, rows))
        found.append(Case(f"linear_{dtype}", spec, size.calls, extents))
    return found


def attention(target: Target, size: Size, *, every: int) -> Case:
    """One row over its window and, with `every`, over selected compressed rows of a full session."""
    heads, width, position = size.heads, size.width, size.context - 1
    rows_per_page, pages = 32, -(-size.context // (32 * max(every, 1)))
    operands = [
        Operand("q", "in", "float32", (1, heads * width)),
        Operand("sink", "weight", "float32", (heads,)),
        Operand("old", "ring", "float32", (size.window + 1, width), "", (size.window + 1) * width * 4),
        Operand("own", "in", "float32", (1, width)),
    ]
    values: dict[str, Any] = {"at": _block(position)}
    if every:
        stride = rows_per_page * width * 4
        operands += [
            Operand("rows", "append", "float32", (rows_per_page, width), "", stride, every),
            Operand("selection", "in", "int32", (1, size.selected)),
        ]
        values["pages"] = np.arange(pages, dtype=np.int32)
        spread = np.linspace(0, size.context // every - 2, size.selected)
        values["selection"] = np.unique(spread.astype(np.int32))
        operands[-1] = Operand("selection", "in", "int32", (1, len(values["selection"])))
    operands.append(Operand("at", "block", "int32", (1, 1)))
    if every:
        operands.append(Operand("pages", "pages", "int32", (1, pages)))
    operands.append(Operand("o", "out", "float32", (1, heads * width)))
    options = {"scale": 0.05, "window": size.window, "every": every, "context": size.context}
    spec = make_spec(target, "attention", operands, **options)
    name = f"attention_{every}"
    return Case(name, spec, size.calls, (Extent(1, position + 1),), values, {"rows": pages})


def _block(position: int) -> Any:
    layout = BlockLayout(1, 1)
    block = np.zeros(layout.size, np.int32)
    block[0] = block[1] = 1
    block[layout.positions] = position
    block[layout.segment_starts + 1] = 1
    return block


def kernel_rows(target: Target, variant: str, name: str, size: Size) -> tuple[float, list[Row]]:
    """Bytes per second of the copy, and the rows of products, attention and idle blocks."""
    cases = products(target, size)
    spans = [attention(target, size, every=every) for every in (0, 4)]
    bench = Bench(target, variant, make_device(name), [*cases, *spans], size.rows, size.context)
    ceiling = copy_ceiling(bench.device, size.copy, size.repeats)
    found = [
        Row("copy inside the device", 2e6 * size.copy / ceiling, f"{ceiling / 1e9:.0f} GB/s", "read + write")
    ]
    for case, dtype in zip(cases, FORMATS, strict=True):
        found += _product_rows(bench, case, dtype, size, ceiling)
    for case in spans:
        seconds = bench.seconds(case, case.extents[0], size.repeats)
        selection = case.values.get("selection", ())
        moved = (size.window + len(selection)) * size.width * 4
        what = f"attention, 1 token, {size.heads} heads x {size.width}, {size.window} + {len(selection)} rows"
        found.append(Row(what, seconds * 1e6, f"{moved / seconds / 1e9:.1f} GB/s"))
    return ceiling, found


def _product_rows(bench: Bench, case: Case, dtype: str, size: Size, ceiling: float) -> list[Row]:
    one, many = case.extents
    n, k, rows = size.outputs, size.inputs, size.rows
    bench.set_rows(case, "count", 1)
    single = bench.seconds(case, one, size.repeats)
    idle = bench.seconds(case, many, size.repeats)
    extra = bench.blocks(case, many) - bench.blocks(case, one)
    bench.set_rows(case, "count", rows)
    tiled = bench.seconds(case, many, size.repeats)
    rate = n * k * _ITEM[dtype] / single
    found = [
        Row(
            f"GEMV {dtype} {n} x {k}", single * 1e6, f"{rate / 1e9:.0f} GB/s", f"{rate / ceiling:.0%} of copy"
        ),
        Row(
            f"GEMM {dtype} {n} x {k}, {rows} rows",
            tiled * 1e6,
            f"{2 * n * k * rows / tiled / 1e12:.2f} TFLOPS",
        ),
    ]
    if extra > 0:
        found.append(
            Row(f"1000 idle blocks ({dtype})", (idle - single) / extra * 1e9, "", f"{extra} measured")
        )
    library = _library_seconds(dtype, size)
    if library is not None:
        note = f"ours takes {tiled / library:.1f} times as long"
        found.append(
            Row(
                f"GEMM {dtype}, torch", library * 1e6, f"{2 * n * k * rows / library / 1e12:.2f} TFLOPS", note
            )
        )
    return found


def _library_seconds(dtype: str, size: Size) -> float | None:
    """Seconds of torch's product of the same shape; `None` without torch or a GPU that it sees."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    kind = getattr(torch, dtype)
    x = torch.randn(size.rows, size.inputs, device="cuda", dtype=kind)
    w = torch.randn(size.outputs, size.inputs, device="cuda", dtype=kind)

    def run() -> None:
        for _ in range(size.calls):
            torch.matmul(x, w.T)
        torch.cuda.synchronize()

    return median_of(run, size.repeats) / size.calls


def model_config(size: Size) -> ModelConfig:
    """The preset, or fewer of its layers and experts: every kind of layer with the true shapes."""
    config = PRESETS[size.preset]
    if not size.layers:
        return config
    return dataclasses.replace(
        config,
        num_hidden_layers=size.layers,
        compress_ratios=(0, 4, 128, 4)[: size.layers],
        hash_layers=(True, *(False,) * (size.layers - 1)),
        n_routed_experts=size.experts,
        vocab_size=size.vocabulary,
        num_nextn_predict_layers=0,
        max_position_embeddings=65536,
    )


def read_bytes(model: LocalModel, config: ModelConfig) -> int:
    """Bytes of weights that a decode step reads: all but experts and rows of the embedding that it leaves."""
    item = 2 if any(w.dtype == "bfloat16" for w in model.manifest.weights) else 4
    expert = 3 * config.hidden_size * config.moe_intermediate_size * item
    unused = config.num_hidden_layers * (config.n_routed_experts - config.num_experts_per_tok) * expert
    return model.manifest.arenas.weights - unused - config.vocab_size * config.hidden_size * item


def model_rows(target_name: str, variant: str, name: str, size: Size, ceiling: float) -> list[Row]:
    """The rows of decode steps, of a chunk and of rewinds."""
    config = model_config(size)
    with tempfile.TemporaryDirectory(prefix="ds4c-bench-") as folder:
        work = Path(folder)
        write_checkpoint(config, work / "checkpoint", 1, "bfloat16")
        label = f"{target_name}:{variant}" if variant else target_name
        context = min(config.max_position_embeddings, 4096)
        options = BuildOptions(label, horizon=16, context=context, rows=size.chunk, segments=2)
        build(work / "checkpoint", work / "artifact", options)
        model = open_local(work / "artifact", sessions=3, device=name)
        return _model_rows(model, config, size, ceiling)


def _model_rows(model: LocalModel, config: ModelConfig, size: Size, ceiling: float) -> list[Row]:
    tokens = np.random.default_rng(3).integers(2, config.vocab_size, size.prompt + 400).tolist()
    session = model.session()
    session.prefill(tokens[: size.chunk])
    started = time.perf_counter()
    session.prefill(tokens[size.chunk : 2 * size.chunk])
    chunk = time.perf_counter() - started
    session.prefill(tokens[2 * size.chunk : size.prompt])
    moved, steps = read_bytes(model, config), iter(tokens[size.prompt :])
    what = f"decode step, {config.num_hidden_layers} layers of {size.preset}"
    found = [Row(f"chunk of {size.chunk} tokens", chunk * 1e6, f"{size.chunk / chunk:.0f} tokens/s")]
    device: Any = model.device
    for uses_graphs in (True, False) if hasattr(device, "uses_graphs") else (None,):
        if uses_graphs is not None:
            device.uses_graphs = uses_graphs
        seconds = median_of(lambda: session.step([next(steps)]), 2 * size.repeats)
        graph = {True: ", graph", False: ", no graph", None: ""}[uses_graphs]
        share = f"{moved / seconds / ceiling:.0%} of the roofline"
        found.append(Row(what + graph, seconds * 1e6, f"{moved / seconds / 1e9:.0f} GB/s", share))
    if hasattr(device, "uses_graphs"):
        device.uses_graphs = True
    return found + rewind_rows(model, session, tokens, size)


def rewind_rows(model: LocalModel, session: Session, tokens: list[int], size: Size) -> list[Row]:
    """A rewind of each kind, on forks of a session."""
    found: list[Row] = []

    def measure(what: str, prepare: Callable[[Session], int]) -> None:
        times: list[float] = []
        kind, replayed = "", 0
        for _ in range(size.repeats + 1):
            fork, _ = session.fork(session.position)
            to = prepare(fork)
            started = time.perf_counter()
            report = fork.rewind(to)
            times.append(time.perf_counter() - started)
            kind, replayed = report.kind.name.lower(), report.replayed_tokens
            fork.close()
        note = f"{kind}, {replayed} tokens replayed"
        found.append(Row(what, sorted(times)[len(times) // 2] * 1e6, "", note))

    def few(fork: Session) -> int:
        fork.step(tokens[:4], all_logits=True)
        return fork.position - 4

    def to_snapshot(fork: Session) -> int:
        fork.take_snapshot()
        at = fork.position
        fork.prefill(tokens[:40])
        return at

    def replay(fork: Session) -> int:
        fork.take_snapshot()
        at = fork.position
        fork.prefill(tokens[:60])
        return at + 20

    measure("rewind of 4 tokens", few)
    measure("rewind of 40 tokens", to_snapshot)
    measure("rewind of 40 tokens, between snapshots", replay)
    return found


def find_variant(target: Target, description: str) -> str:
    """The variant of the target for a device that described itself, empty for all."""
    found = re.search(r"\b(sm_\d+|gfx\w+)", description)
    return found[1] if found and found[1] in target.variants() else ""


def to_markdown(report: dict[str, Any]) -> str:
    """The table, under the name of the card."""
    lines = [
        f"# {report['device']}",
        "",
        f"Device `{report['name']}`, artifact for `{report['target']}`, {report['date']}; medians.",
        "",
        "| what | microseconds | rate | |",
        "|---|---:|---:|---|",
    ]
    lines += [
        f"| {r['what']} | {r['microseconds']:,.1f} | {r['rate']} | {r['note']} |" for r in report["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--target", default="")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    size = SMALL if given.small else FULL
    target_name = given.target or ("cuda" if given.device == "emulator" else given.device)
    target = get_target(target_name)
    (status,) = (s for s in probe_devices() if s.name == given.device)
    variant = find_variant(target, status.detail) or target.variants()[0]
    ceiling, rows = kernel_rows(target, variant, given.device, size)
    rows += model_rows(target_name, variant, given.device, size, ceiling)
    report = {
        "device": status.detail,
        "name": given.device,
        "target": f"{target_name}:{variant}",
        "date": time.strftime("%Y-%m-%d"),
        "small": given.small,
        "rows": [asdict(r) for r in rows],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "device.json").write_text(json.dumps(report, indent=1) + "\n")
    (given.out / "device.md").write_text(to_markdown(report))
    print(to_markdown(report))


if __name__ == "__main__":
    main()
