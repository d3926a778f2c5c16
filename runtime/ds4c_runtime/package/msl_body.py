"""The lint of a kernel's body: every name is declared or known, every pointer has its address space."""

from __future__ import annotations

import re

from ds4c_runtime.launches import Function
from ds4c_runtime.package.msl_names import (
    CONSTANTS,
    FLAGS,
    FUNCTIONS,
    KEYWORDS,
    SPACES,
    TYPE_BYTES,
)
from ds4c_runtime.package.msl_tokens import Found, Tokens

_NAME = re.compile(r"[A-Za-z_]\w*$")
_SWIZZLE = re.compile(r"[xyzw]{1,4}$")
_ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--")


def check_body(tokens: Tokens, spaces: dict[str, str], function: Function) -> int:
    """Check the body at the place of the tokens and move behind it; gives the bytes of threadgroup arrays.

    Args:
        tokens: at the opening brace.
        spaces: address space of each parameter, `value` for one that is no pointer.
        function: for messages and the size of its block.

    Raises:
        Found: the first fault.
    """
    body = _Body(tokens, spaces)
    body.run()
    if function.threads > 32 and body.threadgroup_bytes and not body.barriers:
        raise Found("a barrier, since threads share memory", "none")
    return body.threadgroup_bytes


class _Body:
    def __init__(self, tokens: Tokens, spaces: dict[str, str]) -> None:
        self.tokens = tokens
        self.scopes: list[tuple[str, dict[str, str]]] = [("parameters", dict(spaces))]
        self.threadgroup_bytes = 0
        self.barriers = 0

    def run(self) -> None:
        t = self.tokens
        if t.word != "{":
            raise t.found("`{`")
        while True:
            self.step()
            if len(self.scopes) == 1:
                return

    def step(self) -> None:
        """Check what stands at the place and move behind it."""
        t = self.tokens
        word = t.word
        if not word:
            raise t.found("the end of the kernel")
        if word in "{}" or word == "for":
            self.move_scope()
        elif word == "(" and self.is_pointer_type(1):
            self.cast()
        elif (
            word in SPACES or word in TYPE_BYTES or (word == "const" and t.peek(1) in (*SPACES, *TYPE_BYTES))
        ):
            self.type()
        elif word == ".":
            self.member()
        elif _NAME.match(word):
            self.name()
        elif word in ("->", "::") or (word == "[" and t.peek(1) == "["):
            raise t.found("none of `->`, `::` and attributes")
        else:
            t.take()

    def move_scope(self) -> None:
        word = self.tokens.take()
        if word == "for":
            self.scopes.append(("for", {}))  # ends with the block that follows
        elif word == "{":
            self.scopes.append(("block", {}))
        else:
            self.scopes.pop()
            if self.scopes[-1][0] == "for":
                self.scopes.pop()

    def space_of(self, name: str) -> str | None:
        for _, names in reversed(self.scopes):
            if name in names:
                return names[name]
        return None

    def declare(self, name: str, space: str) -> None:
        if not _NAME.match(name) or name in KEYWORDS or name in FUNCTIONS or name in TYPE_BYTES:
            raise self.tokens.found("a name for a variable")
        if name in self.scopes[-1][1]:
            raise Found("each name once in a block", name)
        self.scopes[-1][1][name] = space

    # ---------------------------------------------------------------------------- types and declarations

    def is_pointer_type(self, ahead: int) -> bool:
        """Whether a pointer type, with or without an address space, begins near the place."""
        t = self.tokens
        while t.peek(ahead) in SPACES or t.peek(ahead) == "const":
            ahead += 1
        return t.peek(ahead) in TYPE_BYTES and t.peek(ahead + 1) == "*"

    def pointer_type(self) -> str:
        """Move over a pointer type; gives its address space."""
        t = self.tokens
        found: list[str] = []
        while t.word in SPACES or t.word == "const":
            word = t.take()
            found += [word] if word in SPACES else []
        if len(found) != 1:
            raise t.found("one address space before a pointer to")
        t.take()
        t.expect("*")
        if t.word == "*":
            raise t.found("no pointer to a pointer")
        return found[0]

    def cast(self) -> None:
        """`(device float4*)(x + 4)`: the address space stays."""
        t = self.tokens
        t.expect("(")
        space = self.pointer_type()
        t.expect(")")
        self.same_space(space)

    def same_space(self, space: str) -> None:
        """The pointer expression at the place is in an address space; the place stays."""
        t, ahead = self.tokens, 0
        while t.peek(ahead) in ("(", "&"):
            ahead += 1
        word = t.peek(ahead)
        found = word if word in SPACES else self.space_of(word)
        if found != space:
            raise Found(f"a pointer in {space}", f"`{word}` in {found or 'no known space'}")

    def type(self) -> None:
        """A declaration, a cast or a constructor, by what follows the type."""
        t = self.tokens
        if self.is_pointer_type(0):
            space = self.pointer_type()
            self.declare(t.take(), space)
            t.expect("=")
            self.same_space(space)
            return
        space = ""
        while t.word in SPACES or t.word == "const":
            space = t.take().replace("const", "") or space
        if t.word not in TYPE_BYTES:
            raise t.found("a known type")
        size = TYPE_BYTES[t.take()]
        if t.word in (")", "(", ">"):  # a cast, a constructor, an argument of as_type
            if space:
                raise t.found("a declaration")
            return
        if space not in ("", "thread", "threadgroup"):
            raise t.found(f"a pointer in {space}")
        self.variables(size, space)

    def variables(self, size: int, space: str) -> None:
        """Move over the name of a variable or an array, with its size."""
        t = self.tokens
        name = t.take()
        count = 1
        while t.word == "[":
            t.take()
            if not t.word.isdigit():
                raise t.found("a number of elements")
            count *= int(t.take())
            t.expect("]")
        self.declare(name, space or "thread")
        if space == "threadgroup":
            if len(self.scopes) != 2:
                raise Found("threadgroup arrays outside of blocks", name)
            self.threadgroup_bytes = -(-self.threadgroup_bytes // size) * size + size * count
            if t.word != ";":
                raise t.found("no first value of a threadgroup array")
        elif t.word not in ("=", ";"):
            raise t.found("`=` or `;` after a variable")

    # ---------------------------------------------------------------------------------- names and calls

    def member(self) -> None:
        t = self.tokens
        t.take()
        if not _SWIZZLE.match(t.word):
            raise t.found("a component x, y, z or w")
        t.take()

    def name(self) -> None:
        t = self.tokens
        word = t.word
        if word in KEYWORDS or word in CONSTANTS:
            t.take()
        elif word == "as_type":
            self.as_type()
        elif word in FUNCTIONS:
            self.call()
        elif self.space_of(word) is None:
            raise t.found("a declared variable or a known name")
        else:
            self.variable()

    def variable(self) -> None:
        t = self.tokens
        word = t.take()
        if self.space_of(word) == "constant" and self.is_written():
            raise Found("no write through a constant pointer", f"`{word}`")

    def is_written(self) -> bool:
        """Whether an assignment follows the indices at the place."""
        t, ahead, depth = self.tokens, 0, 0
        while t.peek(ahead) == "[" or depth:
            depth += (t.peek(ahead) == "[") - (t.peek(ahead) == "]")
            ahead += 1
        return t.peek(ahead) in _ASSIGNMENTS

    def as_type(self) -> None:
        t = self.tokens
        for word in ("as_type", "<"):
            t.expect(word)
        if t.take() not in TYPE_BYTES:
            raise t.found("a known type before")
        t.expect(">")
        if t.word != "(":
            raise t.found("`(`")

    def call(self) -> None:
        """A call of a library function: as many arguments as it takes; the arguments are checked next."""
        t = self.tokens
        name = t.take()
        start = t.at
        t.expect("(")
        arguments = t.list_until(")")
        if len(arguments) != FUNCTIONS[name] or [] in arguments:
            raise Found(f"{FUNCTIONS[name]} arguments of {name}", str(len(arguments)))
        if name.endswith("_barrier"):
            flags = arguments[0]
            if flags[:2] != ["mem_flags", "::"] or len(flags) != 3 or flags[2] not in FLAGS:
                raise Found("a flag of mem_flags", " ".join(flags))
            self.barriers += name == "threadgroup_barrier"
            return
        t.at = start
