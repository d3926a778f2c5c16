"""The machine a measurement was made on, and one processor of it to stay on."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Facts that a figure means nothing without.

    Attributes:
        load: load average of the last minute; above 0 before a run, other programs take part in it.
        stolen: share of time, since boot, in which the hypervisor ran something else.
    """

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    load: float
    stolen: float

    def __str__(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gib:.0f} GiB, Linux {self.kernel}, "
            f"load {self.load:.1f}, stolen {self.stolen:.1%}"
        )


def machine() -> Machine:
    """Describe this machine (Linux)."""
    return Machine(
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        kernel=platform.release(),
        load=os.getloadavg()[0],
        stolen=_stolen(),
    )


def _cpu_model() -> str:
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    number = "/".join(fields.get(k, "?") for k in ("cpu family", "model"))
    return f"{fields.get('model name', 'unknown CPU')} (family/model {number})"


def _ticks() -> dict[str, list[int]]:
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    return {words[0]: [int(word) for word in words[1:]] for words in lines if words[0].startswith("cpu")}


def _stolen() -> float:
    total = _ticks()["cpu"]
    return total[7] / max(1, sum(total[:8]))


def idlest_cpu(seconds: float = 0.5) -> int:
    """The allowed processor that was busy for the least of the last moment."""
    allowed = sorted(os.sched_getaffinity(0))
    before = _ticks()
    time.sleep(seconds)
    after = _ticks()

    def idle(cpu: int) -> int:
        # Fields 3 and 4 are idle and waiting for a disk.
        return sum(after[f"cpu{cpu}"][3:5]) - sum(before[f"cpu{cpu}"][3:5])

    return max(allowed, key=idle)


def pin(cpu: int) -> None:
    """Keep this thread, and every thread and process it starts, on one processor."""
    os.sched_setaffinity(0, {cpu})
