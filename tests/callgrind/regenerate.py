"""Rewrites `instructions.json`: run it after a change of a kernel that is meant, and commit the difference.

python tests/callgrind/regenerate.py
"""

import json
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "tests/callgrind", "", "runtime", "serve", "targets")]


def main() -> int:
    """Count, compare with what was stored, write."""
    from counted import STORED, VARIANT, count_instructions, stored

    old = stored() if STORED.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        new = count_instructions(Path(folder))
    for name, count in new.items():
        before = old.get(name)
        change = "new" if before is None else f"{count / before - 1:+.2%}"
        print(f"{name:28} {count:>10} {change}")
    data = {"variant": f"cpu:{VARIANT}", "tvm": version("apache-tvm"), "instructions": new}
    staging = STORED.with_suffix(f".{os.getpid()}.tmp")
    with staging.open("w", encoding="utf-8") as file:
        file.write(json.dumps(data, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    staging.rename(STORED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
