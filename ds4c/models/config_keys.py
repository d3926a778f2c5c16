"""Typed access to the keys of a JSON object, with every missing key named at once.

Knows nothing of DeepSeek-V4; `config.py` says which keys there are and what they mean.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from ds4c.errors import MalformedInputError


class KeyReader:
    """Reads typed values from one JSON object and names the object in every error.

    Args:
        source: Name of the object in messages, such as `config.json` or `config.json: rope_scaling`.
        data: The parsed object.
    """

    def __init__(self, source: str, data: Mapping[str, object]) -> None:
        self.source = source
        self.data = data

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
        return KeyReader(f"{self.source}: {key}", cast(dict[str, object], value))

    def expect(self, key: str, expected: object) -> None:
        """Check that `key`, where present, holds exactly `expected`, of the same type."""
        if not self.has(key):
            return
        value = self.data[key]
        if value != expected or isinstance(value, bool) != isinstance(expected, bool):
            raise self.fail(f"{key}: expected {expected!r}, got {value!r}; DeepSeek-V4 has no other form")

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
