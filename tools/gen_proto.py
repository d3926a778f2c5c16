"""Generate the Python stubs of the gRPC contract with the pinned grpcio-tools.

The stubs are committed; `--check` compares them with what would be generated and changes nothing. Stubs of a
newer protobuf refuse an older runtime, so the generator is pinned and older than the runtimes allowed.
"""

import argparse
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO_FOLDER = ROOT / "serve" / "proto" / "ds4c" / "v1"
STUB_FOLDER = ROOT / "serve" / "ds4c_serve" / "v1"
STUB_NAMES = ("engine_pb2.py", "engine_pb2.pyi", "engine_pb2_grpc.py")
GENERATOR_VERSION = "1.81.1"


def generate(folder: Path) -> dict[str, bytes]:
    """Run protoc into `folder` and return the bytes of each stub by name.

    The virtual path `ds4c_serve/v1` makes the stubs import each other as `ds4c_serve.v1`, while the proto
    package stays `ds4c.v1`.

    Raises:
        RuntimeError: another version of grpcio-tools is installed, or protoc failed.
    """
    found = metadata.version("grpcio-tools")
    if found != GENERATOR_VERSION:
        raise RuntimeError(
            f"proto generation failed: expected grpcio-tools {GENERATOR_VERSION}, got {found}; install that"
        )
    from grpc_tools import protoc  # only the generator needs it

    includes = Path(protoc.__file__).parent / "_proto"
    code = protoc.main(
        [
            "protoc",
            f"-Ids4c_serve/v1={PROTO_FOLDER}",
            f"-I{includes}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            "ds4c_serve/v1/engine.proto",
        ]
    )
    if code != 0:
        raise RuntimeError(
            f"proto generation failed: expected exit code 0 of protoc, got {code}; see its output above"
        )
    return {name: (folder / "ds4c_serve" / "v1" / name).read_bytes() for name in STUB_NAMES}


def stale_stubs() -> list[str]:
    """Names of the committed stubs that differ from freshly generated ones."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
    committed = {name: (STUB_FOLDER / name) for name in STUB_NAMES}
    return [
        name for name, path in committed.items() if not path.is_file() or path.read_bytes() != fresh[name]
    ]


def main() -> int:
    """Write the stubs, or with `--check` name the stale ones and exit 3."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only; exit 3 if a stub is stale")
    if parser.parse_args().check:
        stale = stale_stubs()
        for name in stale:
            print(f"stale stub: {name}; run python tools/gen_proto.py", file=sys.stderr)
        return 3 if stale else 0
    STUB_FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in generate(Path(scratch)).items():
            (STUB_FOLDER / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
