"""The process that `test_kill.py` kills: an engine on a folder that does random turns and says each.

It imports once and forks for each folder and seed it reads from stdin. Before a turn it writes what it is
about to do, after the answer what is durable now: the history of the session, `null` if it is closed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

from fake_executable import fake_engine
from port import engine_history

from ds4c_runtime.engine import Engine
from ds4c_runtime.requests import GenerationRequest, StopParams
from ds4c_runtime.store.session_store import Storage

NAMES = ("a", "b", "c", "d")
LIMITS = {"max_sessions": 6, "max_resident": 2}


def say(**line: object) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


def opened(folder: Path, said: list[tuple[str, str]] | None = None) -> Engine:
    """An engine on the folder; two of its sessions fit into memory, half of the states on the disk."""
    storage = Storage(folder, 60_000, lambda *each: said.append(each) if said is not None else None)
    return fake_engine(storage=storage, **LIMITS)


def generate(engine: Engine, name: str, tokens: list[int], count: int) -> None:
    stop = StopParams(max_output_tokens=count, ignore_eos=True)
    engine.run(GenerationRequest(tuple(tokens), name, stop=stop, return_text=False))


def turn(engine: Engine, rng: random.Random) -> None:
    """One turn of one session, said before and after."""
    name = rng.choice(NAMES)
    positions = {info.session_id: info.position for info in engine.list_sessions()}
    if name not in positions:
        kind = "fork" if name == "d" and "a" in positions else "open"
    else:
        kinds = ["generate"] * 5 + ["rewind"] * 4 + ["save", "close", "pin" if name == "a" else "save"]
        kind = "rewind" if positions[name] > 180 else rng.choice(kinds)
    if kind == "generate":
        tokens, count = rng.choices(range(2, 1024), k=rng.randrange(1, 30)), rng.randrange(6)
        say(begin=kind, name=name, tokens=tokens, count=count)
        generate(engine, name, tokens, count)
    elif kind in ("rewind", "fork"):
        to = rng.randrange(positions["a" if kind == "fork" else name] + 1)
        say(begin=kind, name=name, to=to)
        if kind == "fork":
            engine.fork("a", at=to, new_id=name)
        else:
            engine.rewind(name, to=to, defer=rng.random() < 0.3)
    else:
        say(begin=kind, name=name)
        call: dict[str, Callable[[], object]] = {
            "open": lambda: engine.open_session(name),
            "close": lambda: engine.close_session(name),
            "save": lambda: engine.save_session(name),
            "pin": lambda: pin(engine),
        }
        call[kind]()
    say(end=kind, name=name, history=None if kind == "close" else engine_history(engine, name))


def pin(engine: Engine) -> None:
    """Pin another snapshot of the one session that has pinned ones."""
    for snapshot in engine.list_snapshots("a"):
        if snapshot.is_pinned:
            engine.unpin_snapshot("a", snapshot.snapshot_id)
    position = engine.get_session("a").position
    if position:
        engine.pin_snapshot("a", position=(position + 1) // 2)


def run(folder: Path, seed: int) -> None:
    engine, rng = opened(folder), random.Random(seed)
    while True:
        turn(engine, rng)


def main() -> None:
    for line in sys.stdin:
        folder, seed = line.split()
        pid = os.fork()
        if not pid:
            try:
                run(Path(folder), int(seed))
            except BaseException as error:
                say(error=f"{type(error).__name__}: {error}")
            finally:
                os._exit(1)
        say(pid=pid)
        os.waitpid(pid, 0)
        say(dead=pid)


if __name__ == "__main__":
    main()
