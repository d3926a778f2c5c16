"""The grid on which rewinds go wrong, on one checkpoint: ours is exact everywhere; what peers do is printed.

P tokens, n wrong ones one by one, then back to P: at once, in two steps, or after the state was saved and
loaded; the right tokens' logits are compared with a run that went straight on. Each engine runs in a process
of its own. `docs/peers.md` holds the whole table; what is asserted of a peer here is what shows that it was
asked the right way, never that it is worse. With `-s` the cells of each peer are printed. All of it
runs in `make test-more`; `test_cases` and the tables hold the same of ours on other artifacts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from artifacts import Build

from benchmarks.peers_rewind import table
from benchmarks.peers_rewind.children import Measured, control, measure
from benchmarks.peers_rewind.files import PRESET, add_llama
from benchmarks.peers_rewind.grid import Cell, Outcome, cells
from benchmarks.peers_rewind.installed import missing
from benchmarks.peers_rewind.ways import WAYS, Variant, Way

EDGE = tuple(range(124, 128))
"""All phases mod 4; n up to 8 crosses the end of the window and of the first group of 128."""

OWN_POSITIONS = (*range(48, 52), *EDGE, *range(252, 256), *range(300, 304))
OURS = [way for way in WAYS if way.engine == "ds4c"]

MEDIAN = {"transformers": 1e-4, "llama": 5e-3, "mlx": 1e-4}
"""Most of the median row's difference from ours on one prompt; llama.cpp's cache is float16."""


def is_plain(cell: Cell) -> bool:
    return cell.variant is Variant.PLAIN


EXACT: dict[tuple[str, str], Callable[[Cell], bool]] = {
    ("transformers", "copy"): lambda cell: True,
    # Its planes hold the states before each of the last tokens, its ring two groups of 4.
    ("llama", "planes-8"): lambda cell: (
        cell.variant is Variant.PLAIN and cell.drafted < 6 - cell.position % 4
    ),
    ("llama", "one-batch"): lambda cell: True,
    ("llama", "copy"): lambda cell: True,
    ("mlx", "transaction"): lambda cell: is_plain(cell),
    ("mlx", "one-batch"): lambda cell: True,
    ("mlx", "copy"): lambda cell: True,
}
"""Cells in which a peer, used as it is meant to be, comes back to P; elsewhere nothing is asserted."""


def peer(engine: str) -> Any:
    """The parameter of an engine, skipped before anything is built where it is not installed."""
    reason = missing(engine)
    return pytest.param(engine, marks=pytest.mark.skipif(reason is not None, reason=reason or ""))


@pytest.fixture(scope="module")
def files(built: Build) -> dict[str, str]:
    eight, two = built(PRESET, horizon=8), built(PRESET, horizon=2)
    return {
        "checkpoint": str(eight.checkpoint),
        "horizon-8": str(eight.artifact),
        "horizon-2": str(two.artifact),
    }


@pytest.fixture(scope="module")
def our_prompt(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our logits of the prompt that every engine evaluates."""
    path = tmp_path_factory.mktemp("prompt") / "ds4c.npy"
    measure(OURS[0], cells(OURS[0], EDGE[:1])[:1], files, path)
    return path


@pytest.mark.more
@pytest.mark.parametrize("way", OURS, ids=[way.name for way in OURS])
def test_ours_is_exact_in_every_cell(files: dict[str, str], way: Way) -> None:
    wanted = cells(way, OWN_POSITIONS)
    found = measure(way, wanted, files)
    assert [result.cell for result in found.results] == wanted
    assert [result for result in found.results if result.outcome is not Outcome.EXACT] == []


@pytest.mark.more
@pytest.mark.peers
@pytest.mark.parametrize("engine", [peer(name) for name in MEDIAN])
def test_a_peer_on_the_same_grid(
    files: dict[str, str], our_prompt: Path, engine: str, tmp_path: Path
) -> None:
    if engine == "llama":
        files = add_llama(tmp_path, files)
    prompt = tmp_path / "prompt.npy"
    measured: list[Measured] = []
    for way in (way for way in WAYS if way.engine == engine):
        measured.append(measure(way, cells(way, EDGE), files, None if measured else prompt))
    print(f"\n{table.summary(measured)}\n{table.details(measured)}")
    rows = np.abs(np.load(our_prompt) - np.load(prompt)).max(axis=1)
    assert np.median(rows) <= MEDIAN[engine], "not the same model"
    for one in measured:
        assert one.version
        assert {r.outcome for r in control(one.results)} == {Outcome.EXACT}, f"control of {one.way.name}"
        held = EXACT.get((engine, one.way.name), lambda cell: False)
        lost = [r for r in one.results if held(r.cell) and r.outcome not in (Outcome.EXACT, Outcome.CLOSE)]
        assert lost == [], f"{engine} {one.way.name}"
