"""Nothing but `ds4c.models` knows a model: no pass, lowering, target or module of the runtime names one.

The only exception is `ds4c_runtime/chat.py`: it is the chat markup of one family, and says so.
"""

import re
from pathlib import Path

import pytest

from ds4c.models.architecture import ARCHITECTURES

ROOT = Path(__file__).resolve().parents[2]
PLACES = (
    "ds4c/passes",
    "ds4c/lower",
    "ds4c/importers",
    "ds4c/build.py",
    "ds4c/artifact.py",
    "runtime/ds4c_runtime",
    "serve/ds4c_serve",
    "targets/ds4c_targets",
)
CHAT = Path("runtime/ds4c_runtime/chat.py")
NAMES = re.compile(r"deep[-_ ]?seek|qwen|delta[-_ ]?net|(?<![a-z])(?:flash|tiny|bench|pro)-?\d*m?['\"]", re.I)
GENERIC = {"architecture", "ir_weights", "names", "tensors"}
"""Modules of `ds4c.models` that speak of architectures in general."""


def files_of(place: str) -> list[Path]:
    root = ROOT / place
    found = [root] if root.is_file() else sorted(f for f in root.rglob("*") if f.suffix in (".py", ".yaml"))
    return [f.relative_to(ROOT) for f in found]


def hits(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if NAMES.search(line)]


def test_the_pattern_finds_every_architecture() -> None:
    assert all(hits(name) for name in ARCHITECTURES)
    for text in ("DeepSeek-V4", "deepseek_v4", "Qwen3NextForCausalLM", "gated_delta_net", 'x == "tiny-8"'):
        assert hits(text), text
    for text in ("gated_delta", "delta_gates", "a tiny step", "profile", "flash memory"):
        assert not hits(text), text


@pytest.mark.parametrize("place", PLACES)
def test_no_module_names_a_model(place: str) -> None:
    files = files_of(place)
    assert files
    named = {str(f): hits((ROOT / f).read_text()) for f in files if f != CHAT}
    assert {f: lines for f, lines in named.items() if lines} == {}


def test_the_chat_markup_says_whose_it_is() -> None:
    first = (ROOT / CHAT).read_text().splitlines()[0]
    assert first.startswith('"""The chat markup of ')
    assert hits(first)


@pytest.mark.parametrize("place", ["ds4c/passes", "ds4c/lower", "ds4c/importers", "ds4c/build.py"])
def test_only_architectures_in_general_are_imported(place: str) -> None:
    found = {
        module
        for file in files_of(place)
        for module in re.findall(r"(?:from|import) ds4c\.models\.?(\w*)", (ROOT / file).read_text())
    }
    assert found <= (GENERIC if "passes" not in place and "lower" not in place else set())
