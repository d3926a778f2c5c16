"""Numbers of the engine and of the calls in the text format of Prometheus; names and units are in the help.

Everything is read when somebody asks: counters as they are, levels from the engine. Nothing here waits for
the engine's thread, so that a scrape costs a generation nothing but the interpreter for a moment.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.utils import floatToGoString

from ds4c_runtime.counters import Counter, Histogram
from ds4c_runtime.engine import Engine
from ds4c_serve.calls import CallCounters

PREFIX = "ds4c_"
COMMON_LABELS = ("model", "artifact")
ARTIFACT_CHARACTERS = 12
"""Of the artifact's id, as in the server's ready line."""
Levels = Mapping[Any, float]
"""Numbers by label values."""
Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class EngineCollector(Collector):
    """All families of one engine; each sample carries its model and artifact."""

    def __init__(self, engine: Engine, calls: CallCounters):
        self._engine = engine
        self._calls = calls
        manifest = engine.manifest
        self._common = (manifest.model.name, manifest.artifact_id[:ARTIFACT_CHARACTERS])

    def collect(self) -> Iterator[Family]:
        """Read every number once."""
        counts = self._engine.counters
        for counter in (self._calls.requests, *counts.counters()):
            yield self._counter(counter)
        for histogram in (self._calls.seconds, *counts.histograms()):
            yield self._histogram(histogram)
        yield from self._levels()

    def _counter(self, counter: Counter) -> CounterMetricFamily:
        family = CounterMetricFamily(PREFIX + counter.name, counter.help, labels=self._names(counter.labels))
        for labels, number in counter.values().items():
            family.add_metric([*self._common, *labels], number)
        return family

    def _histogram(self, histogram: Histogram) -> HistogramMetricFamily:
        names = self._names(histogram.labels)
        family = HistogramMetricFamily(PREFIX + histogram.name, histogram.help, labels=names)
        bounds = [floatToGoString(bound) for bound in (*histogram.bounds, float("inf"))]
        for labels, held in histogram.values().items():
            buckets = list(zip(bounds, held.counts, strict=True))
            family.add_metric([*self._common, *labels], buckets, held.sum)
        return family

    def _levels(self) -> Iterator[GaugeMetricFamily]:
        """What is so at this moment."""
        load = self._engine.load_info()
        valid, stale = self._engine.session_states()
        yield self._gauge("queue_requests", "Generations that wait.", {(): load.waiting_generations})
        yield self._gauge("running_requests", "Generations in work.", {(): load.running_generations})
        yield self._gauge("draining", "1 from the first signal to end on.", {(): int(load.is_draining)})
        states = {("valid",): valid, ("stale",): stale}
        yield self._gauge("sessions", "Sessions; the next use of a stale one rebuilds it.", states, ["state"])
        yield self._gauge("sessions_limit", "Sessions that can exist at once.", {(): load.max_sessions})
        resident = {("memory",): load.resident_sessions, ("parked",): load.parked_sessions}
        yield self._gauge("sessions_resident", "Sessions by where their state may be.", resident, ["tier"])
        used = {("device",): load.state_bytes_used, ("disk",): load.stored_bytes_used}
        yield self._gauge("state_bytes", "State in use, in memory and in the session folder.", used, ["tier"])
        snapshots = self._engine.snapshot_levels()
        counts = {("live",): snapshots.live, ("pinned",): snapshots.pinned}
        yield self._gauge("snapshots", "Snapshots; live ones may be given up.", counts, ["state"])
        tiers = {("device",): snapshots.device_bytes, ("host",): snapshots.host_bytes}
        yield self._gauge("snapshot_bytes", "Memory of snapshots without shared pages.", tiers, ["tier"])
        granted = {(): load.snapshot_bytes_budget}
        yield self._gauge("snapshot_bytes_budget", "Memory granted to snapshots.", granted)
        yield self._gauge("state_bytes_budget", "State memory granted.", {(): load.state_bytes_budget})

    def _gauge(self, name: str, help: str, levels: Levels, labels: Sequence[str] = ()) -> GaugeMetricFamily:
        family = GaugeMetricFamily(PREFIX + name, help, labels=self._names(labels))
        for values, level in levels.items():
            family.add_metric([*self._common, *values], level)
        return family

    def _names(self, labels: Iterable[str]) -> list[str]:
        return [*COMMON_LABELS, *labels]


def registry_of(engine: Engine, calls: CallCounters) -> CollectorRegistry:
    """What a scrape of this engine reads; nothing of the process or of another engine."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(EngineCollector(engine, calls))
    return registry
