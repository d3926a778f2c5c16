"""Counts of the calls that clients made, whatever became of them."""

import time

from ds4c_runtime.counters import SECONDS, Counter, Histogram, Now
from ds4c_runtime.errors import RuntimeFailure


class CallCounters:
    """One record for each call that named a method of ours, refused ones included. Thread-safe."""

    def __init__(self, now: Now = time.monotonic) -> None:
        """`now` is what the times of calls are taken by."""
        self.now = now
        self.requests = Counter(
            "requests", "Calls by method, status code and reason.", ["api", "code", "reason"]
        )
        self.seconds = Histogram("request_seconds", "Time of calls, streams as a whole.", SECONDS, ["api"])

    def refused(self, path: str, error: RuntimeFailure) -> None:
        """Record a call that was refused before its handler saw it, by its path `/package.Service/Method`."""
        self.record(path.rpartition("/")[2], error.code, error.reason, 0.0)

    def record(self, api: str, code: str, reason: str, seconds: float) -> None:
        """Record a call that has ended: its method, the name of its code, the reason if it failed."""
        self.requests.add(api, code, reason)
        self.seconds.observe(seconds, api)
