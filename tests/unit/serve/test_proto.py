"""The contract: lint, stubs that match it, documented, and the enums that the runtime mirrors."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind
from ds4c_serve.v1 import engine_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]
PROTO = ROOT / "serve" / "proto"


def _buf() -> str:
    beside_python = Path(sys.executable).parent / "buf"
    found = str(beside_python) if beside_python.exists() else shutil.which("buf")
    if not found:
        pytest.skip("buf: not installed; pip install buf-bin")
    return found


def test_buf_lint_is_clean() -> None:
    done = subprocess.run([_buf(), "lint"], cwd=PROTO, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_buf_lint_asks_for_comments_on_everything(tmp_path: Path) -> None:
    shutil.copytree(PROTO, tmp_path / "proto")
    contract = tmp_path / "proto" / "ds4c" / "v1" / "engine.proto"
    text = contract.read_text().replace("  // Token counts.\n  Usage usage = 5;", "  Usage usage = 5;")
    assert text != contract.read_text()
    contract.write_text(text)

    done = subprocess.run(
        [_buf(), "lint"], cwd=tmp_path / "proto", capture_output=True, text=True, check=False
    )

    assert done.returncode != 0
    assert "usage" in done.stdout


def test_committed_stubs_are_what_the_generator_makes() -> None:
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpc_tools: not installed; pip install grpcio-tools==1.81.1")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_proto.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_stubs_import_under_our_package_and_keep_the_proto_package() -> None:
    assert pb.DESCRIPTOR.package == "ds4c.v1"
    assert pb.DESCRIPTOR.name == "ds4c_serve/v1/engine.proto"
    assert sorted(pb.DESCRIPTOR.services_by_name) == ["InferenceService", "ModelService", "SessionService"]


@pytest.mark.parametrize(
    ("proto_enum", "prefix", "runtime_names"),
    [
        (pb.RewindKind, "REWIND_KIND_", {kind.name for kind in RewindKind}),
        (pb.RewindCause, "REWIND_CAUSE_", {cause.name for cause in RewindCause}),
        (
            pb.RebuildReason,
            "REBUILD_REASON_",
            {reason.name for reason in RebuildReason} - {RebuildReason.NOT_REBUILT.name},
        ),
    ],
)
def test_enums_have_the_members_of_the_runtime(proto_enum, prefix, runtime_names) -> None:
    assert {name.removeprefix(prefix) for name in proto_enum.keys()} == runtime_names | {"UNSPECIFIED"}


def test_changes_that_had_to_come_before_the_first_release() -> None:
    assert pb.Snapshot.DESCRIPTOR.fields_by_name["origin"].enum_type.name == "SnapshotOrigin"
    assert "drafter" in pb.Speculation.DESCRIPTOR.fields_by_name
    assert "alternatives" in pb.TokenLogprob.DESCRIPTOR.fields_by_name
    targets = pb.PlanRewindRequest.DESCRIPTOR.oneofs_by_name["target"].fields
    assert [field.name for field in targets] == ["to_position", "drop_tokens", "to_snapshot_id"]
    assert {"high_water", "floor", "horizon", "epoch"} <= set(pb.Session.DESCRIPTOR.fields_by_name)
    assert "accepted_per_position" in pb.Usage.DESCRIPTOR.fields_by_name
    assert "parse_special" in pb.Prompt.DESCRIPTOR.fields_by_name
