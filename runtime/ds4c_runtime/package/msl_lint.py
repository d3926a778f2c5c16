"""Lints of Metal text for what only Apple's compiler, on the device, would refuse.

The text is ours, so the lint knows every name that it may contain, and refuses all others: a misspelt
barrier, a type that Metal lacks. It sees declarations, scopes, address spaces and calls, but no types of
expressions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ds4c_runtime.launches import Function
from ds4c_runtime.package.msl_body import check_body
from ds4c_runtime.package.msl_names import (
    BUFFER_SPACES,
    BUILTINS,
    DTYPES,
    MAX_BUFFERS,
    POSITIONS,
    TYPE_BYTES,
)
from ds4c_runtime.package.msl_tokens import Found, Tokens, tokens_of

_SECTION = re.compile(r"^// Function: (.*)$", re.MULTILINE)
_PROLOGUES = (
    ["using", "namespace", "metal", ";"],
    ["union", "__TVMArgUnion", "{", "int", "v_int", "[", "2", "]", ";", "}", ";"],
)
"""What may stand before a kernel."""


@dataclass(frozen=True)
class Fault:
    """A fault of a function's text: what was expected and what is there, with its line in the section."""

    function: str
    expected: str
    got: str


@dataclass(frozen=True)
class Param:
    """A parameter of a kernel: its tokens without the attribute, the attribute, and its last name."""

    words: Sequence[str]
    attribute: str
    name: str


def lint(text: str, functions: Sequence[Function], threadgroup_bytes: int) -> tuple[Fault, ...]:
    """Faults of a Metal text, at most one for each function, in its order; empty if it is clean.

    Args:
        text: sections that begin with `// Function: NAME`.
        functions: those that the text must have, and no others.
        threadgroup_bytes: most threadgroup memory of a device.
    """
    heads = list(_SECTION.finditer(text))
    before = text[: heads[0].start()] if heads else text
    faults: list[Fault] = []
    if before.strip():
        faults.append(Fault("text", "a line `// Function: NAME` first", before.split()[0][:40]))
    known = {f.name: f for f in functions}
    seen: set[str] = set()
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=False):  # no sections: one end
        name, section = head.group(1).strip(), text[head.end() : end]
        if name not in known or name in seen:
            faults.append(Fault(name[:80], "a function of the plan, once", "another"))
            continue
        seen.add(name)
        try:
            _check_section(section, known[name], threadgroup_bytes)
        except Found as fault:
            faults.append(Fault(name, fault.expected, fault.got))
    faults += [Fault(name, "its section in the text", "none") for name in known if name not in seen]
    return tuple(faults)


def _check_section(section: str, function: Function, threadgroup_bytes: int) -> None:
    tokens = tokens_of(section)
    _check_balance(tokens)
    _skip_prologue(tokens)
    for word in ("kernel", "void", function.name, "("):
        tokens.expect(word)
    params = [_param(words) for words in tokens.list_until(")")]
    spaces = _check_params(params, function)
    used = check_body(tokens, spaces, function)
    if tokens.word:
        raise tokens.found("nothing after the kernel")
    if used != function.shared_bytes:
        raise Found(f"{function.shared_bytes} bytes of threadgroup memory", str(used))
    if used > threadgroup_bytes:
        raise Found(f"at most {threadgroup_bytes} bytes of threadgroup memory", str(used))


def _check_balance(tokens: Tokens) -> None:
    """See that brackets close in order."""
    opened: list[str] = []
    for word, line in tokens.all:
        if word in _CLOSING.values():
            opened.append(word)
        elif word in _CLOSING and (not opened or opened.pop() != _CLOSING[word]):
            raise Found("brackets that close in order", f"{word} in line {line}")
    if opened:
        raise Found("brackets that close", f"an open {opened[-1]}")


_CLOSING = {")": "(", "]": "[", "}": "{"}


def _skip_prologue(tokens: Tokens) -> None:
    for words in _PROLOGUES:
        if tokens.word == words[0]:
            for word in words:
                tokens.expect(word)


def _param(words: Sequence[str]) -> Param:
    """Take a parameter apart: `device float* x [[ buffer(0) ]]`."""
    text = " ".join(words)
    starts = [i for i, word in enumerate(words) if word == "["]
    if len(starts) != 2 or starts[1] != starts[0] + 1 or list(words[-2:]) != ["]", "]"]:
        raise Found("a parameter with one attribute", text)
    at = starts[0]
    if at < 2:
        raise Found("a parameter with a type and a name", text)
    return Param(words[:at], "".join(words[at + 2 : -2]), words[at - 1])


def _check_params(params: Sequence[Param], function: Function) -> dict[str, str]:
    """Check buffers and builtins; gives the address space of each name."""
    spaces: dict[str, str] = {}
    widths: set[str] = set()
    attributes: list[str] = []
    dtypes: list[str] = []
    for param in params:
        text = " ".join(param.words)
        if param.name in spaces:
            raise Found("each parameter once", param.name)
        if param.attribute in attributes:
            raise Found("each attribute once", f"[[{param.attribute}]] again")
        attributes.append(param.attribute)
        if param.attribute.startswith("buffer"):
            spaces[param.name], dtype = _check_buffer(param, len(dtypes), text)
            dtypes.append(dtype)
            continue
        if param.attribute not in BUILTINS:
            raise Found("a known attribute", f"[[{param.attribute}]]")
        if len(param.words) != 2 or param.words[0] not in BUILTINS[param.attribute]:
            raise Found(f"{' or '.join(BUILTINS[param.attribute])} [[{param.attribute}]]", text)
        if param.attribute in POSITIONS:
            widths.add(param.words[0])
        spaces[param.name] = "value"
    if len(widths) > 1:
        raise Found("positions of one type", " and ".join(sorted(widths)))
    wanted = [p.dtype for p in function.params]
    if dtypes != wanted:
        raise Found(f"pointers to {', '.join(wanted) or 'nothing'}", ", ".join(dtypes) or "none")
    return spaces


def _check_buffer(param: Param, index: int, text: str) -> tuple[str, str]:
    """Address space and our name of the element type of a buffer parameter."""
    if param.attribute != f"buffer({index})" or index >= MAX_BUFFERS:
        raise Found(f"[[buffer({index})]] of at most {MAX_BUFFERS}, in order", f"[[{param.attribute}]]")
    words = [word for word in param.words[:-1] if word not in ("const", "restrict")]
    if not words or words[0] not in BUFFER_SPACES:
        raise Found(f"{' or '.join(BUFFER_SPACES)} before a pointer", text)
    if len(words) != 3 or words[1] not in TYPE_BYTES or words[2] != "*":
        raise Found("a pointer to a known type", text)
    return words[0], DTYPES.get(words[1], words[1])
