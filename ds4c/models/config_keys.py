"""Typed access to the keys of a JSON object, with every missing key named at once.

Knows no model; `config_parse.py` and its like say which keys there are and what they mean.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from ds4c.errors import MalformedInputError, UsageError


def read_json_object(path: Path) -> dict[str, object]:
    """Read a `config.json`: an object in which no key stands twice.

    Raises:
        UsageError: `path` does not exist.
        MalformedInputError: It cannot be read or is no JSON object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(
            f"{path} not read: expected a config.json, got no such file; give the folder of a Hugging Face "
            "checkpoint"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedInputError(
            f"{path} not read: expected readable UTF-8 text, got {error}; copy it again"
        ) from error
    try:
        data: object = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise MalformedInputError(f"{path} not read: expected JSON, got {error}; copy it again") from error
    if not isinstance(data, dict):
        raise MalformedInputError(
            f"{path} not read: expected a JSON object, got {type(data).__name__}; copy it again"
        )
    return cast(dict[str, object], data)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Object of JSON; `json` itself would drop all but the last of equal keys in silence."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} twice")
    return result


class KeyReader:
    """Reads typed values from one JSON object and names the object in every error.

    Args:
        source: Name of the object in messages, such as `config.json` or `config.json: rope_scaling`.
        data: The parsed object.
        family: The models that the object describes, for messages.
    """

    def __init__(self, source: str, data: Mapping[str, object], family: str) -> None:
        self.source = source
        self.data = data
        self.family = family

    def has(self, key: str) -> bool:
        """Say whether `key` is present; a key with the value null counts as present."""
        return key in self.data

    def fail(self, text: str) -> MalformedInputError:
        """Make an error about this object; the caller raises it."""
        return MalformedInputError(f"{self.source}: {text}")

    def contradiction(self, first: str, second: str) -> MalformedInputError:
        """Make an error about two keys that disagree; each side is `key gives value`."""
        return self.fail(
            f"contradictory keys: {first}, {second}: expected the same, got both; correct or remove one"
        )

    def require(self, alternatives: Sequence[Sequence[str]]) -> None:
        """Check that of every group of alternative keys at least one is present.

        Raises:
            MalformedInputError: One or more groups are absent; all of them are named.
        """
        missing = [" or ".join(group) for group in alternatives if not any(map(self.has, group))]
        if missing:
            raise self.fail(
                f"missing keys: {', '.join(missing)}: expected all of them, got none; take them from the "
                "model's published config.json"
            )

    def integer(self, key: str, minimum: int = 1) -> int:
        """Read a whole number of at least `minimum`."""
        return self._whole(key, self.data[key], minimum)

    def real(self, key: str) -> float:
        """Read a number greater than zero; whole numbers are accepted."""
        value = self.data[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(f"{key}: expected a number, got {value!r}")
        if not 0 < value < float("inf"):
            raise self.fail(f"{key}: expected a finite number above 0, got {value!r}")
        return float(value)

    def integers(self, key: str, minimum: int = 0) -> tuple[int, ...]:
        """Read a list of whole numbers of at least `minimum` each."""
        return tuple(
            self._whole(f"{key}[{index}]", value, minimum) for index, value in enumerate(self._list(key))
        )

    def choices(self, key: str, allowed: Sequence[str]) -> tuple[str, ...]:
        """Read a list of strings, each of which is one of `allowed`."""
        values: list[str] = []
        for index, value in enumerate(self._list(key)):
            if not isinstance(value, str) or value not in allowed:
                raise self.fail(f"{key}[{index}]: expected one of {', '.join(allowed)}, got {value!r}")
            values.append(value)
        return tuple(values)

    def section(self, key: str) -> "KeyReader":
        """Read a nested object."""
        value = self.data[key]
        if not isinstance(value, dict):
            raise self.fail(f"{key}: expected an object, got {value!r}")
        return KeyReader(f"{self.source}: {key}", cast(dict[str, object], value), self.family)

    def expect(self, key: str, expected: object) -> None:
        """Check that `key`, where present, holds exactly `expected`, of the same type."""
        if not self.has(key):
            return
        value = self.data[key]
        if value != expected or isinstance(value, bool) != isinstance(expected, bool):
            raise self.fail(f"{key}: expected {expected!r}, got {value!r}; {self.family} has no other form")

    def _list(self, key: str) -> list[object]:
        value = self.data[key]
        if not isinstance(value, list):
            raise self.fail(f"{key}: expected a list, got {value!r}")
        return cast(list[object], value)

    def _whole(self, name: str, value: object, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(f"{name}: expected a whole number, got {value!r}")
        if value < minimum:
            raise self.fail(f"{name}: expected at least {minimum}, got {value}")
        return value
