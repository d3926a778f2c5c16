"""`python -m benchmarks.peers_rewind.install`: transformers, llama.cpp and mlx-vlm. Runs inside `.venv`.

transformers and torch (a CPU build) go into the environment of the project, llama.cpp's binaries and an
environment of its own for mlx-vlm under `out/bench`. What is there already is left alone; what cannot be had
is named, and the rest is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.llama_peer import PeerUnavailableError, fetch, is_fetched
from benchmarks.own import ROOT
from benchmarks.peers_rewind import installed

PIP = ("-m", "pip", "--disable-pip-version-check", "install", "-q")


def install_oracle() -> str | None:
    """Install torch and transformers as `make oracle` does, which says itself why not."""
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "install_oracle.py")], check=False)
    return "transformers: see the line of the oracle" if done.returncode else None


def install_llama(cache: Path) -> str | None:
    """Fetch the binaries; returns why not, in one line."""
    try:
        fetch(cache)
    except PeerUnavailableError as error:
        return str(error)
    return None


def install_mlx(cache: Path) -> str | None:
    """Make the environment of mlx-vlm; returns why not, in one line."""
    python, stamp = installed.mlx_python(cache), installed.mlx_stamp(cache)
    stamp.unlink(missing_ok=True)
    venv.create(python.parent.parent, clear=True, with_pip=True)
    for packages in (installed.MLX_PACKAGES, ("--no-deps", installed.MLX_VLM)):
        done = subprocess.run(
            [str(python), *PIP, "--only-binary", ":all:", *packages],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            shutil.rmtree(python.parent.parent)
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return f"mlx-vlm: expected pip to install it, got: {(errors or ['no message'])[-1]}"
    stamp.write_text(installed.mlx_contents())
    return None


def main() -> int:
    """Install each; returns 1 if one is missing at the end."""
    cache = installed.CACHE
    cache.mkdir(parents=True, exist_ok=True)
    reasons: list[str | None] = []
    if installed.missing("transformers"):
        reasons.append(install_oracle())
    if not is_fetched(cache):
        print("peers: fetching llama.cpp")
        reasons.append(install_llama(cache))
    if installed.missing("mlx"):
        print("peers: installing mlx-vlm into its own environment")
        reasons.append(install_mlx(cache))
    failed = [reason for reason in reasons if reason]
    for reason in failed:
        print(f"peers: not installed: {reason}", file=sys.stderr)
    print(f"peers: {'the others are' if failed else 'transformers, llama.cpp and mlx-vlm are'} installed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
