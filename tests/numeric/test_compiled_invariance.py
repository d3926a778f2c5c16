"""Results do not depend on chunks, batch, threads or the CPU variant: `==` on logits and live rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from artifacts import Build, Built, tokens_for
from port import step_together
from rewind_reference import state_bytes
from sizes import more

from ds4c_runtime.local import open_local

NAMES = ["tiny-8", "tiny-128", "demo", "tiny-delta"]
LENGTH = 300


def run_chunks(made: Built, sizes: list[int], threads: int = 1) -> tuple[bytes, dict[str, bytes]]:
    """Logits of every position and live rows at the end, with steps of those sizes."""
    model = open_local(made.artifact, threads=threads)
    session = model.session()
    tokens = tokens_for(made.config, LENGTH, seed=3)
    rows, done = [], 0
    for size in sizes:
        rows.append(session.step(tokens[done : done + size], all_logits=True))
        done += size
    assert done == LENGTH
    return np.concatenate(rows).tobytes(), state_bytes(model, made.config, session)


def random_sizes(seed: int) -> list[int]:
    rng, sizes = np.random.default_rng(seed), []
    while sum(sizes) < LENGTH:
        sizes.append(min(int(rng.integers(1, 65)), LENGTH - sum(sizes)))
    return sizes


@pytest.mark.parametrize("name", NAMES)
def test_chunks_do_not_change_a_bit(built: Build, name: str) -> None:
    made = built(name)
    whole = run_chunks(made, [64, 64, 64, 64, 44])
    assert run_chunks(made, [1] * LENGTH) == whole
    for seed in (0, 1, 2):
        assert run_chunks(made, random_sizes(seed)) == whole


@pytest.mark.parametrize("name", NAMES)
def test_a_session_beside_another(built: Build, name: str) -> None:
    made = built(name)
    alone = run_chunks(made, [1] * LENGTH)
    model = open_local(made.artifact, sessions=2)
    one, other = model.session("one"), model.session("other")
    tokens, noise = tokens_for(made.config, LENGTH, 3), tokens_for(made.config, 3 * LENGTH, 4)
    rng, rows = np.random.default_rng(9), []
    while one.position < LENGTH:
        size = min(int(rng.integers(1, 9)), LENGTH - one.position)
        work = [(one, tokens[one.position : one.position + size], size)]
        beside = int(rng.integers(0, 9))
        if beside and other.position + beside < 500:
            work.insert(int(rng.integers(2)), (other, noise[:beside], beside))
        results = step_together(model, work)
        rows.append(results[[s for s, _, _ in work].index(one)])
    assert np.concatenate(rows).tobytes() == alone[0]
    assert state_bytes(model, made.config, one) == alone[1]


_CHILD = """
import sys, hashlib
from pathlib import Path
import test_compiled_invariance as t
from artifacts import Built
made = Built(Path(sys.argv[1]), Path(sys.argv[2]))
logits, rows = t.run_chunks(made, [1] * 40 + [64] * 4 + [4], int(sys.argv[3]))
print(hashlib.sha256(logits + b"".join(rows.values())).hexdigest())
"""


def digest_in_child(made: Built, threads: int) -> str:
    """The thread pool has the size of its first use, so each count needs a process of its own."""
    path = [*sys.path, str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(made.artifact), str(made.checkpoint), str(threads)],
        env={"PYTHONPATH": ":".join(path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["tiny-128", more("demo"), "tiny-delta"])
def test_threads_do_not_change_a_bit(built: Build, name: str) -> None:
    made = built(name)
    assert digest_in_child(made, 1) == digest_in_child(made, 2)


@pytest.mark.parametrize("name", ["tiny-8", more("demo"), more("tiny-delta")])
def test_cpu_variants_do_not_change_a_bit(built: Build, name: str) -> None:
    sizes = random_sizes(7)
    assert run_chunks(built(name), sizes) == run_chunks(built(name, target="cpu:generic"), sizes)


@pytest.mark.parametrize("name", [more("tiny-8"), "tiny-delta"])
def test_build_gives_the_same_bytes_twice(built: Build, tmp_path: Path, name: str) -> None:
    from ds4c.build import BuildOptions, build

    made = built(name)
    options = BuildOptions(horizon=12, context=512, rows=64, logit_rows=64, segments=2)
    build(made.checkpoint, tmp_path / "again", options)
    names = sorted(f.name for f in made.artifact.iterdir())
    assert names == sorted(f.name for f in (tmp_path / "again").iterdir())
    for file in names:
        assert (made.artifact / file).read_bytes() == (tmp_path / "again" / file).read_bytes(), file
