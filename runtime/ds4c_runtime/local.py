"""An artifact opened for direct use by one thread: no engine, no queue, no tokenizer.

For tools that run steps themselves (`ds4c logits`, tests, benchmarks). Everything else uses `Engine`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds4c_runtime.device.base import Device
from ds4c_runtime.devices import device_for
from ds4c_runtime.manifest import Manifest
from ds4c_runtime.manifest_checks import check_horizon, verifying
from ds4c_runtime.session import Session
from ds4c_runtime.state import StateStore
from ds4c_runtime.step import Stepper
from ds4c_runtime.transport import CopyMode


@dataclass(frozen=True)
class LocalModel:
    """A loaded artifact with room for some sessions."""

    manifest: Manifest
    device: Device
    store: StateStore
    stepper: Stepper

    def session(self, session_id: str = "local", capacity: int | None = None) -> Session:
        """A new session.

        Raises:
            SessionLimitError: all slots are taken.
            InvalidRequestError: `capacity` is out of range.
        """
        return Session(self.stepper, self.store, session_id, capacity)


def open_local(
    folder: Path,
    *,
    sessions: int = 1,
    threads: int = 1,
    device: str | None = None,
    pages: int | None = None,
    check_rings: bool = True,
    snapshot_bytes: int | None = None,
    copy_mode: CopyMode = CopyMode.DEVICE,
) -> LocalModel:
    """Verify and load an artifact.

    Args:
        folder: artifact folder.
        sessions: number of slots.
        threads: threads of the kernels.
        device: name of the device; by default that of the artifact's target.
        pages: pages of append rows; by default enough for all sessions at full context.
        snapshot_bytes: for the snapshots of all sessions, by default what the rule of spacing keeps.
        copy_mode: where snapshots are kept.
        check_rings: refuse rings too small for the horizon; a mutation test turns it off.

    Raises:
        ArtifactError: a file is missing, damaged or not what the manifest says.
        DeviceError: this machine cannot run it.
    """
    manifest = Manifest.read(folder)
    if check_rings:
        check_horizon(manifest)
    loaded = device_for(manifest, device)
    with verifying(folder, manifest):
        loaded.load(folder, manifest, threads)
    count = sessions * manifest.limits.pages_per_session if pages is None else pages
    store = StateStore(manifest, loaded, sessions, count, snapshot_bytes=snapshot_bytes, copy_mode=copy_mode)
    return LocalModel(manifest, loaded, store, Stepper(manifest, loaded, store))
