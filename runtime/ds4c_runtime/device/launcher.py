"""The launches of an entry point with numbers in place of formulas: what every device that launches shares.

Grids are made for a bucket of extents, so there are few different lists, and each can be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ds4c_runtime.errors import ArtifactError
from ds4c_runtime.launches import LAUNCHES_NAME, Extent, Function, Launch, LaunchPlan, bucket
from ds4c_runtime.manifest import Manifest


@dataclass(frozen=True)
class Ready:
    """One launch with numbers.

    Attributes:
        function: what is launched.
        args: for each parameter, the index of an arena of the entry point and a byte offset in it.
        grid: blocks in x, y, z.
    """

    function: Function
    args: tuple[tuple[int, int], ...]
    grid: tuple[int, int, int]


class Launcher:
    """Launches of one artifact."""

    def __init__(self, plan: LaunchPlan, manifest: Manifest) -> None:
        """Check that the plan has what the manifest promises.

        Raises:
            ArtifactError: the plan is of another target, or an entry point is missing or uses an arena that
                it is not called with.
        """
        if plan.kind != manifest.target.name:
            raise ArtifactError(
                f"{LAUNCHES_NAME} rejected: expected launches for target {manifest.target.name}, got those "
                f"for {plan.kind}; build again"
            )
        self.functions = plan.functions
        limits = manifest.limits
        self._max_rows = limits.max_rows
        self._max_tokens = limits.pages_per_session * limits.page_tokens
        self._by_name = plan.by_name
        self._arenas: dict[str, tuple[str, ...]] = {e.name: e.arenas for e in manifest.entry_points}
        self._launches = {entry.name: entry.launches for entry in plan.entries}
        self._ready: dict[tuple[str, Extent], tuple[Ready, ...]] = {}
        for name, arenas in self._arenas.items():
            if name not in self._launches:
                raise ArtifactError(
                    f"{LAUNCHES_NAME} rejected: expected launches of entry point {name!r}, got none; "
                    "build again"
                )
            for launch in self._launches[name]:
                for address in launch.args:
                    if address.arena not in arenas:
                        raise ArtifactError(
                            f"{LAUNCHES_NAME} rejected: {name}, {launch.function}: expected an arena of "
                            f"{', '.join(arenas)}, got {address.arena}; build again"
                        )

    def bucket(self, extent: Extent) -> Extent:
        """The extent that grids for a call are made for."""
        return bucket(extent, self._max_rows, self._max_tokens)

    def ready(self, entry: str, extent: Extent) -> tuple[Ready, ...]:
        """Launches of an entry point for an extent that `bucket` gave; made once."""
        key = (entry, extent)
        found = self._ready.get(key)
        if found is None:
            arenas = self._arenas[entry]
            found = tuple(self._with_numbers(each, arenas, extent) for each in self._launches[entry])
            self._ready[key] = found
        return found

    def _with_numbers(self, launch: Launch, arenas: tuple[str, ...], extent: Extent) -> Ready:
        x, y, z = (dim.blocks(extent) for dim in launch.grid)
        args = tuple((arenas.index(a.arena), a.offset) for a in launch.args)
        return Ready(self._by_name[launch.function], args, (x, y, z))


def check_listed(manifest: Manifest, names: Iterable[str]) -> None:
    """Refuse if a file that would be loaded is not vouched for: only listed files are hashed.

    Raises:
        ArtifactError: naming the first that is not listed.
    """
    for name in names:
        if manifest.file(name) is None:
            raise ArtifactError(
                f"artifact rejected: expected {name} in the file list of its manifest, got none; build again"
            )
