"""Reading of untrusted JSON into frozen dataclasses: every key is known, present and of its type.

The dataclass is the schema; its field names are the keys. What values mean is not decided here.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin

from ds4c_runtime.errors import ArtifactError

T = TypeVar("T")


def parse(schema: type[T], value: object, where: str) -> T:
    """Build `schema` (a dataclass) from a parsed JSON value.

    Args:
        schema: frozen dataclass of int, str, bool, tuples, literals, unions and dataclasses.
        value: result of `json.loads`.
        where: path of the value, for messages.

    Raises:
        ArtifactError: unknown, missing or wrong-typed key; the message names its path.
    """
    return cast(T, _parse(schema, value, where))


def _parse(schema: Any, value: object, where: str) -> object:
    if dataclasses.is_dataclass(schema):
        return _parse_object(cast(type[Any], schema), value, where)
    origin = get_origin(schema)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "an array", value)
        items = cast(list[object], value)
        return tuple(_parse(get_args(schema)[0], v, f"{where}[{i}]") for i, v in enumerate(items))
    if origin is Literal:
        if value not in get_args(schema) or isinstance(value, bool):
            raise _wrong(where, "one of " + ", ".join(map(repr, get_args(schema))), value)
        return value
    if origin in (Union, types.UnionType):
        return _parse_union(get_args(schema), value, where)
    if type(value) is not schema:
        raise _wrong(where, {int: "an integer", str: "a string", bool: "true or false"}[schema], value)
    return value


def _parse_object(schema: type[Any], value: object, where: str) -> object:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    given = cast(dict[str, object], value)
    hints = _hints(schema)
    unknown = sorted(set(given) - set(hints))
    missing = [f for f in hints if f not in given]
    if unknown or missing:
        faults = [f"unknown key {k!r}" for k in unknown] + [f"missing key {k!r}" for k in missing]
        raise ArtifactError(
            f"{where} rejected: expected the keys {', '.join(hints)}, got {', '.join(faults)}; "
            "build the artifact again with this version"
        )
    return schema(**{k: _parse(t, given[k], f"{where}.{k}") for k, t in hints.items()})


def _parse_union(options: tuple[Any, ...], value: object, where: str) -> object:
    if value is None and type(None) in options:
        return None
    tagged = {tag: o for o in options if dataclasses.is_dataclass(o) for tag in _tags(o)}
    if tagged:
        kind = cast(Mapping[str, object], value).get("kind") if isinstance(value, dict) else None
        if not isinstance(kind, str) or kind not in tagged:
            raise _wrong(f"{where}.kind", "one of " + ", ".join(map(repr, tagged)), kind)
        return _parse(tagged[kind], value, where)
    (only,) = [o for o in options if o is not type(None)]
    return _parse(only, value, where)


def _tags(schema: Any) -> tuple[str, ...]:
    return get_args(_hints(schema)["kind"])


@cache
def _hints(schema: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(schema)


def _wrong(where: str, expected: str, value: object) -> ArtifactError:
    got = repr(value)
    return ArtifactError(f"{where} rejected: expected {expected}, got {got[:80]}")
