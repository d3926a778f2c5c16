"""Reads the YAML of a target's description; what it must hold is for the target."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml

from ds4c.errors import TargetError


def wrong_description(path: Path, expected: str, got: object) -> TargetError:
    """The error of a description, to be raised."""
    return TargetError(f"{path}: expected {expected}, got {got}; install ds4c again")


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping that a file holds.

    Raises:
        TargetError: it cannot be read, is no YAML, or no mapping.
    """
    try:
        found: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise wrong_description(path, "a readable file in UTF-8", error) from error
    except yaml.YAMLError as error:
        raise wrong_description(path, "YAML", " ".join(str(error).split())) from error
    if not isinstance(found, dict):
        raise wrong_description(path, "a mapping", type(found).__name__)
    return cast(dict[str, Any], found)
