"""`ds4c logits`: the logits of every position of a token file, for parity checks."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ds4c.cli.common import (
    ArtifactArgument,
    CommandFailure,
    DeviceOption,
    ExitCode,
    ThreadsOption,
    print_note,
    usage_error,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def run(
    artifact: ArtifactArgument,
    tokens: Annotated[Path, typer.Option("--tokens", help="Token ids, a one-dimensional .npy of integers.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File for float32 [T, V], one row a position.")
    ],
    chunks: Annotated[str, typer.Option(help="Tokens per step, `1,6,64`; the sizes repeat.")] = "",
    threads: ThreadsOption = 1,
    device: DeviceOption = None,
) -> None:
    """Write the logits of every position; the result does not depend on the chunks, bit for bit.

    Example: ds4c logits out/m --tokens ids.npy -o logits.npy --chunks 1,6,64
    """
    import numpy as np

    from ds4c_runtime.local import open_local

    ids = read_tokens(tokens)
    model = open_local(artifact, threads=threads, device=device)
    sizes = parse_chunks(chunks, model.manifest.limits.max_logit_rows)
    _check_range(ids, model.manifest.model.vocab_size, model.manifest.model.context)
    session = model.session()
    rows: list[NDArray[np.float32]] = []
    done = 0
    for size in itertools.cycle(sizes):
        if done >= len(ids):
            break
        rows.append(session.step(ids[done : done + size].tolist(), all_logits=True))
        done += size
    write_npy(output, np.concatenate(rows))
    print_note(f"{output}: float32 {list(rows[0].shape[1:])} for {len(ids)} positions")


def read_tokens(path: Path) -> NDArray[np.int64]:
    """Token ids of a file.

    Raises:
        CommandFailure: no such file (exit code 2); not a one-dimensional array of integers, or empty
            (exit code 4).
    """
    import numpy as np

    try:
        with path.open("rb") as file:
            # Unlike `np.load`, this reads arrays only: no pickles, no archives.
            ids = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        usage_error(f"{path} not read: expected a .npy file, got no such file; check the path")
    except (OSError, ValueError, EOFError, MemoryError) as error:
        got = (str(error) or type(error).__name__).partition(":")[0]
        raise CommandFailure(
            f"{path} not read: expected a .npy file of token ids, got {got}; write it with numpy.save",
            ExitCode.MALFORMED,
        ) from None
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer) or len(ids) == 0:
        raise CommandFailure(
            f"{path} refused: expected a one-dimensional array of at least one integer, got {ids.dtype} "
            f"{list(ids.shape)}; give token ids",
            ExitCode.MALFORMED,
        )
    return ids.astype(np.int64)


def parse_chunks(text: str, most: int) -> list[int]:
    """Sizes of the steps; empty text is the largest step that gives logits for every row."""
    if not text:
        return [most]
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        usage_error(f"--chunks: expected whole numbers such as 1,6,64, got {text!r}")
    if any(not 1 <= size <= most for size in sizes):
        usage_error(f"--chunks: expected sizes of 1 to {most} (logit rows of the artifact), got {text!r}")
    return sizes


def _check_range(ids: NDArray[np.int64], vocab_size: int, context: int) -> None:
    if len(ids) > context:
        usage_error(f"--tokens: expected at most {context} tokens (context), got {len(ids)}")
    if ids.min() < 0 or ids.max() >= vocab_size:
        bad = int(ids.min()) if ids.min() < 0 else int(ids.max())
        usage_error(f"--tokens: expected ids of 0 to {vocab_size - 1}, got {bad}")


def write_npy(path: Path, array: NDArray[np.float32]) -> None:
    """Write an array to a temporary name, sync, rename.

    Raises:
        CommandFailure: the folder does not exist or cannot be written, or the name is that of a folder
            (exit code 2).
        OSError: no room is left.
    """
    import numpy as np

    folder = path.absolute().parent
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "a folder", str(path))
        handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    except OSError as error:
        usage_error(
            f"output {path} not written: expected a file name in a folder that can be written, got "
            f"{error.strerror}; choose another"
        )
    try:
        with os.fdopen(handle, "wb") as out:
            np.save(out, array)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("logits")(run)
