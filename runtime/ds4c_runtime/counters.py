"""Numbers of an engine for whoever watches it: counters and histograms with labels, plain and thread-safe.

How they are exported is not known here. What is a level rather than a count (sessions, bytes in use) is not
held but read from the engine when asked for. Every fact is recorded in one place, where it is published.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, product
from typing import NamedTuple

from ds4c_runtime.reports import RebuildReason, RewindCause, RewindKind, RewindReport

Now = Callable[[], float]
"""A clock: seconds from any beginning, which only grow."""
Labels = tuple[str, ...]
"""Values of a family's labels, in the order of their names."""
SECONDS = (1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Upper bounds for times: from a rewind in place to the prefill of a full context, in seconds."""
TOKENS = tuple(float(4**power) for power in range(11))
"""Upper bounds for distances: 1 to 4^10 tokens."""

_KINDS = [(kind.value,) for kind in RewindKind]
_CAUSES = [(cause.value,) for cause in RewindCause]
_MOVES = [kind + cause for kind, cause in product(_KINDS, _CAUSES)]
_REASONS = [(reason.value,) for reason in RebuildReason if reason is not RebuildReason.NOT_REBUILT]


class Counter:
    """Numbers that only grow, one for each combination of label values.

    Combinations that are known before they happen start at 0, so that a first event is seen as a change.
    `numbers` may be changed directly by who holds `lock`, which families that change together share.
    """

    def __init__(
        self, name: str, help: str, labels: Sequence[str] = (), known: Iterable[Labels] = ()
    ) -> None:
        """`name` without prefix and `_total`, `help` in one sentence, names of `labels` in order."""
        self.name, self.help, self.labels = name, help, tuple(labels)
        self.lock = threading.Lock()
        self.numbers: dict[Labels, float] = dict.fromkeys(known if labels else [()], 0)

    def add(self, *values: str, by: float = 1) -> None:
        """Add `by`, at least 0, for these label values."""
        assert len(values) == len(self.labels), "one value for each label"
        assert by >= 0, "a counter only grows"
        with self.lock:
            self.numbers[values] = self.numbers.get(values, 0) + by

    def values(self) -> dict[Labels, float]:
        """All numbers by label values, as of now."""
        with self.lock:
            return dict(self.numbers)


class Distribution(NamedTuple):
    """What a histogram holds for one combination of label values.

    `counts[i]` observations were at most `bounds[i]`; the last count is that of all.
    """

    counts: tuple[int, ...]
    sum: float


class Histogram:
    """Observations in buckets of fixed upper bounds, for each combination of label values.

    `buckets` and `sums` may be changed directly by who holds `lock`.
    """

    def __init__(
        self,
        name: str,
        help: str,
        bounds: Sequence[float],
        labels: Sequence[str] = (),
        known: Iterable[Labels] = (),
    ) -> None:
        """`name` without prefix, `help` in one sentence, ascending `bounds`, names of `labels` in order."""
        self.name, self.help, self.bounds, self.labels = name, help, tuple(bounds), tuple(labels)
        self.lock = threading.Lock()
        self.buckets: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}
        for values in known if labels else [()]:
            self._start(values)

    def observe(self, value: float, *values: str) -> None:
        """Take one observation for these label values."""
        assert len(values) == len(self.labels), "one value for each label"
        with self.lock:
            if values not in self.sums:
                self._start(values)
            self.buckets[values][bisect_left(self.bounds, value)] += 1
            self.sums[values] += value

    def values(self) -> dict[Labels, Distribution]:
        """All distributions by label values, as of now."""
        with self.lock:
            return {
                labels: Distribution(tuple(accumulate(buckets)), self.sums[labels])
                for labels, buckets in self.buckets.items()
            }

    def _start(self, values: Labels) -> None:
        self.buckets[values] = [0] * (len(self.bounds) + 1)
        self.sums[values] = 0.0


class RewindCounters:
    """What rewinds and forks did. One lock, as a rewind in place takes little longer than a lock."""

    def __init__(self) -> None:
        self.rewinds = Counter(
            "rewinds", "Rewinds and forks, a deferred one as what it became.", ["kind", "cause"], _MOVES
        )
        self.seconds = Histogram(
            "rewind_seconds", "Time of rewinds and forks, replay included.", SECONDS, ["kind"], _KINDS
        )
        self.replayed_tokens = Counter(
            "rewind_replayed_tokens", "Tokens run again by rewinds and forks.", ["kind", "cause"], _MOVES
        )
        self.distance_tokens = Histogram(
            "rewind_distance_tokens", "Tokens between the positions before and after.", TOKENS
        )
        self.rebuilds = Counter("rebuilds", "Rewinds that nothing cheaper could do.", ["reason"], _REASONS)
        self.rebuild_tokens = Counter("rebuild_tokens", "Tokens run by rebuilds.")
        self.discarded_tokens = Counter(
            "discarded_tokens", "Tokens that rewinds took out of histories.", ["cause"], _CAUSES
        )
        self._lock = threading.Lock()
        for family in (*counters_of(self), *histograms_of(self)):
            family.lock = self._lock

    def record(self, report: RewindReport) -> None:
        """Record a rewind or fork that has come to its end; to be called once for each.

        One to a snapshot of another branch may go forwards; then nothing counts as discarded.
        """
        kind, cause = report.kind.value, report.cause.value
        dropped = report.from_position - report.to_position
        distance = abs(dropped)
        seconds = report.restore_seconds + report.replay_seconds
        replayed = report.replayed_tokens
        with self._lock:
            self.rewinds.numbers[kind, cause] += 1
            self.seconds.buckets[(kind,)][bisect_left(SECONDS, seconds)] += 1
            self.seconds.sums[(kind,)] += seconds
            self.distance_tokens.buckets[()][bisect_left(TOKENS, distance)] += 1
            self.distance_tokens.sums[()] += distance
            if report.cause is not RewindCause.BRANCH and dropped > 0:
                self.discarded_tokens.numbers[(cause,)] += dropped
            if replayed:
                self.replayed_tokens.numbers[kind, cause] += replayed
            if report.kind is RewindKind.REBUILD:
                self.rebuilds.numbers[(report.rebuild_reason.value,)] += 1
                self.rebuild_tokens.numbers[()] += replayed


class Counters:
    """All counts of one engine. Each attribute may be recorded to from any thread, by what it counts."""

    def __init__(self) -> None:
        self.rewinds = RewindCounters()
        self.prefill_tokens = Counter(
            "prefill_tokens",
            "Tokens before the first one handed out: run as prompt (compute) or held by the session.",
            ["source"],
            [("compute",), ("session",)],
        )
        self.generated_tokens = Counter("generated_tokens", "Tokens handed out.")
        self.ttft_seconds = Histogram("ttft_seconds", "From a request to its first token.", SECONDS)
        self.tail_seconds = Histogram("tail_seconds", "From the last token to the end.", SECONDS)
        self.no_progress = Counter(
            "no_progress", "Generations ended as they restored one snapshot twice without a new token."
        )
        self.snapshot_invalidations = Counter(
            "snapshot_invalidations",
            "Snapshots dropped as no use: of branches that were left for others (left).",
            ["cause"],
            [("left",)],
        )
        self.snapshot_evictions = Counter("snapshot_evictions", "Snapshots dropped to make room.")
        self.session_evictions = Counter(
            "session_evictions",
            "Sessions taken out of memory: their state went to disk, or only their history is left.",
            ["reason"],
            [("disk",), ("history",)],
        )
        self.store_errors = Counter(
            "store_errors",
            "Files of the session folder that could not be written or read, or were set aside or left alone.",
            ["kind"],
            [("write",), ("read",), ("integrity",), ("foreign",)],
        )

    def generation(self, first_token: float, tail: float) -> None:
        """Record the end of a generation: seconds to its first token, 0 without any, and after its last."""
        if first_token:
            self.ttft_seconds.observe(first_token)
            self.tail_seconds.observe(tail)

    def counters(self) -> list[Counter]:
        """Every counter."""
        return [*counters_of(self), *counters_of(self.rewinds)]

    def histograms(self) -> list[Histogram]:
        """Every histogram."""
        return [*histograms_of(self), *histograms_of(self.rewinds)]


def counters_of(owner: object) -> list[Counter]:
    """The counters among the attributes of an object."""
    return [one for one in vars(owner).values() if isinstance(one, Counter)]


def histograms_of(owner: object) -> list[Histogram]:
    """The histograms among the attributes of an object."""
    return [one for one in vars(owner).values() if isinstance(one, Histogram)]
