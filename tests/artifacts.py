"""Artifacts of small models: built once, kept in the shared cache, copied to where tests open them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import shared_cache

from ds4c.models.architecture import Config, load_config
from ds4c.models.config import ModelConfig
from ds4c.models.generate import write_checkpoint
from ds4c.models.presets import preset

DEMO = Path(__file__).parent.parent / "demo" / "model"
SEEDS = {"tiny-128": 0, "tiny-8": 1, "tiny-delta": 3, "tiny-peers": 0, "four-layers": 4}
"""Seeds of the weights; those of the golden vectors where a model has them."""

SHAPE: dict[str, object] = {"horizon": 12, "context": 512, "rows": 64, "logit_rows": 64, "segments": 2}
"""The shape of an artifact of which a test asks nothing else: most of them share one of each model."""


@dataclass(frozen=True)
class Built:
    """An artifact and the checkpoint it was made from."""

    artifact: Path
    checkpoint: Path

    @property
    def config(self) -> Config:
        return load_config(self.checkpoint / "config.json")


Build = Callable[..., Built]


def checkpoint_of(name: str, root: Path) -> Path:
    """Checkpoint folder of a preset (written once) or of the bundled model."""
    if name == "demo":
        return DEMO
    folder = root / f"{name}.checkpoint"
    with shared_cache.locked(root / f".{name}.lock"):
        if not folder.exists():
            config = four_layers() if name == "four-layers" else preset(name)
            work = root / f".{name}.checkpoint"
            write_checkpoint(config, work, SEEDS[name], "float32")
            work.rename(folder)
    return folder


def four_layers() -> Config:
    """The smallest model with every kind of state, for tables that run thousands of transactions."""
    tiny = preset("tiny-128")
    assert isinstance(tiny, ModelConfig)
    hashed = (True, False, False, False)
    return replace(tiny, num_hidden_layers=4, compress_ratios=(0, 4, 128, 4), hash_layers=hashed)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`built(name, **options)`: the artifact of a preset in `SEEDS` or of `demo` with those build options."""
    root = tmp_path_factory.getbasetemp()
    if root.name.startswith("popen-"):  # a worker of pytest-xdist: share with the others
        root = root.parent
    root = root / "artifacts"
    root.mkdir(exist_ok=True)

    def make(name: str, **options: object) -> Built:
        if str(options.get("target", "")).startswith(("cuda", "rocm")):
            need_tools(str(options["target"]), root)
        chosen = {"target": "cpu", **SHAPE, **options}
        label = "-".join([name, *(f"{k}{v}" for k, v in sorted(chosen.items()))]).replace(":", "_")
        checkpoint = checkpoint_of(name, root)
        with shared_cache.locked(root / f".{label}.lock"):  # of this artifact: others are built meanwhile
            if not (root / label).exists():
                # A copy, so that nothing which a test does to it lasts.
                shutil.copytree(kept_artifact(checkpoint, chosen), root / f".{label}")
                (root / f".{label}").rename(root / label)
        return Built(root / label, checkpoint)

    return make


def kept_artifact(checkpoint: Path, options: dict[str, object], changed: str = "") -> Path:
    """The artifact of a checkpoint in the shared cache, built if it is not there.

    Args:
        checkpoint: folder.
        options: of the build, `target` among them.
        changed: what the caller has changed of the compiler; such artifacts are apart from the others.
    """
    from ds4c.build import BuildOptions, build  # needs xdsl, which most tests do without
    from ds4c.passes.target import get_target

    target, _, variant = str(options["target"]).partition(":")
    resolved = get_target(target).resolve_variant(variant)  # without a name, that of this machine
    content = shared_cache.folder_digest(checkpoint)
    name = shared_cache.digest(checkpoint.name, content, resolved, sorted(options.items()), changed)
    chosen = BuildOptions(**options)  # pyright: ignore[reportArgumentType]
    objects = str(shared_cache.root() / "kernels")  # two artifacts of five kernels share three
    return shared_cache.entry("artifacts", name, lambda path: build(checkpoint, path, chosen, cache=objects))


def need_tools(target: str, folder: Path) -> None:
    """Skip a test whose artifact needs a compiler or linker that this machine lacks; says what to install."""
    from ds4c.errors import Ds4cError
    from ds4c_targets.cuda.compile import find_compiler
    from ds4c_targets.rocm.binaries import find_linker

    try:
        find_compiler(folder) if target.startswith("cuda") else find_linker()
    except Ds4cError as error:
        pytest.skip(str(error))


def tokens_for(config: Config, count: int, seed: int) -> list[int]:
    """Random token ids."""
    return np.random.default_rng(seed).integers(0, config.vocab_size, count).tolist()
