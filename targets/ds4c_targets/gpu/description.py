"""The description of a GPU target, `target.yaml`: variants with limits, passes, sizes of tiles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from ds4c.errors import TargetError
from ds4c_runtime.launches import Limits
from ds4c_targets.gpu.tuning import Tuning


@dataclass(frozen=True)
class GpuVariant:
    """One architecture.

    Attributes:
        name: as compilers call it, `sm_90`, `gfx1100`, `apple-m4`.
        limits: what a block may use.
    """

    name: str
    limits: Limits

    @property
    def wave(self) -> int:
        """Threads that execute in lockstep."""
        return self.limits.wave


@dataclass(frozen=True)
class Description:
    """Contents of `target.yaml`.

    Attributes:
        name: of the target.
        memory: `discrete` or `unified`.
        passes: fusion passes, in order.
        default_variants: what is built where no variant is named.
        variants: the architectures, the best first.
        tuning: sizes of blocks and tiles.
    """

    name: str
    memory: str
    passes: tuple[str, ...]
    default_variants: tuple[str, ...]
    variants: tuple[GpuVariant, ...]
    tuning: Tuning

    def select(self, text: str) -> tuple[GpuVariant, ...]:
        """Variants by name, joined by `+`; empty: the default ones, `all`: every one.

        Raises:
            TargetError: an unknown name, or one twice.
        """
        known = {v.name: v for v in self.variants}
        names = {"": list(self.default_variants), "all": list(known)}.get(text, text.split("+"))
        for name in names:
            if name not in known or names.count(name) > 1:
                raise TargetError(
                    f"{self.name} variant: expected some of {', '.join(known)}, each once and joined by +, "
                    f"got {text}"
                )
        return tuple(known[name] for name in names)


def read_description(path: Path) -> Description:
    """Read the description of a target and check it.

    Raises:
        TargetError: the file cannot be read, is no YAML, or lacks something.
    """

    def wrong(expected: str, got: object) -> TargetError:
        return TargetError(f"{path}: expected {expected}, got {got}; install ds4c again")

    try:
        found: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise wrong("a readable file in UTF-8", error) from error
    except yaml.YAMLError as error:
        raise wrong("YAML", " ".join(str(error).split())) from error
    if not isinstance(found, dict):
        raise wrong("a mapping", type(found).__name__)
    given = cast(dict[str, Any], found)
    try:
        variants = tuple(
            GpuVariant(name, Limits(variant=name, **limits)) for name, limits in given["variants"].items()
        )
        return Description(
            given["name"],
            given["memory"],
            tuple(given["passes"]),
            tuple(given["default_variants"]),
            variants,
            Tuning(**given["tuning"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise wrong("name, memory, passes, default_variants, variants with limits, tuning", error) from error
