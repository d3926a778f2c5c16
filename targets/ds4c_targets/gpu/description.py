"""The description of a GPU target, `target.yaml`: variants with limits, passes, sizes of tiles."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, cast

from ds4c.errors import TargetError
from ds4c_runtime import strict
from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import Limits
from ds4c_targets.common.description import read_mapping, wrong_description
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
        activation_dtypes: what kernels compute with.
        weight_dtypes: formats of weights, a file each in `formats/`.
        passes: fusion passes, in order.
        default_variants: what is built where no variant is named.
        variants: the architectures, the best first.
        tuning: sizes of blocks and tiles.
    """

    name: str
    memory: str
    activation_dtypes: tuple[str, ...]
    weight_dtypes: tuple[str, ...]
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


@dataclass(frozen=True)
class _Contents:
    """The part of the file whose keys are known; variants are a mapping of names."""

    name: Literal["cuda", "rocm", "metal"]
    memory: Literal["discrete", "unified"]
    activation_dtypes: tuple[str, ...]
    weight_dtypes: tuple[str, ...]
    passes: tuple[str, ...]
    default_variants: tuple[str, ...]
    tuning: Tuning


def read_description(path: Path) -> Description:
    """Read the description of a target and check it: every key is known, present and of its type.

    Raises:
        TargetError: the file cannot be read, is no YAML, lacks something, or contradicts itself.
    """
    given = read_mapping(path)
    listed = given.pop("variants", None)
    if not isinstance(listed, dict) or not listed:
        raise wrong_description(path, "variants with limits", listed)
    try:
        contents = strict.parse(_Contents, _text_keys(given), "description")
        variants = tuple(
            GpuVariant(name, strict.parse(Limits, {"variant": name, **_mapping(limits)}, f"variant {name}"))
            for name, limits in cast(dict[str, Any], listed).items()
        )
    except ArtifactError as error:
        what, _, found = str(error).partition(" rejected: expected ")
        expected, _, got = found.partition(", got ")
        raise wrong_description(path, f"{what}: {expected}", got.partition("; ")[0]) from error
    names = [v.name for v in variants]
    if not contents.default_variants or not set(contents.default_variants) <= set(names):
        raise wrong_description(path, f"default_variants of {', '.join(names)}", contents.default_variants)
    for variant in variants:
        if contents.tuning.threads > variant.limits.threads:
            raise wrong_description(
                path, f"blocks of at most {variant.limits.threads} threads", contents.tuning.threads
            )
    return Description(variants=variants, **{f.name: getattr(contents, f.name) for f in fields(contents)})


def _mapping(value: object) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _text_keys(given: dict[str, Any]) -> dict[str, object]:
    """The same with text keys only, as JSON has them."""
    return {str(key): value for key, value in given.items()}
