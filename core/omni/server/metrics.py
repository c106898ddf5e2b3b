"""Prometheus metrics: what the server counts itself, and what pipelines report when they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omni.service import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

_STAGE_GAUGES = {
    "streams": "Requests that are open in a stage.",
    "queued": "Items that wait for a stage.",
    "running": "Items that a stage works on now.",
    "cache_bytes": "Bytes of a stage's result cache.",
}
_STAGE_COUNTERS = {
    "items": "Items that a stage has finished.",
    "steps": "Batches or calls that a stage has made.",
    "cache_hits": "Results that came out of a stage's cache.",
}
_OUTCOMES = ("completed", "failed", "cancelled", "refused")


class Metrics:
    """One registry an app, so that several apps in a process do not mix."""

    def __init__(self, service: Callable[[], Service | None]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        self._requests = Counter(
            "omni_http_requests", "Answered requests.", ["endpoint", "status", "model"], registry=registry
        )
        self.in_flight = Gauge("omni_http_in_flight", "Requests that are being answered.", registry=registry)
        self._duration = Histogram(
            "omni_http_request_seconds",
            "From the request's header to the answer's last byte.",
            ["endpoint", "model"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._first_audio = Histogram(
            "omni_first_audio_seconds",
            "From the request's header to the first byte of sound.",
            ["model"],
            registry=registry,
            buckets=_SECONDS,
        )
        self._audio = Counter(
            "omni_audio_seconds", "Seconds of sound spoken or heard.", ["model", "task"], registry=registry
        )
        ProcessCollector(registry=registry)
        registry.register(_Pipelines(service))
        # A label lookup costs more than the count itself; there are few of them.
        self._finished: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}
        self._first: dict[str, Histogram] = {}
        self._heard: dict[tuple[str, str], Counter] = {}

    def finished(self, endpoint: str, status: str, model: str, seconds: float) -> None:
        key = (endpoint, status, model)
        found = self._finished.get(key)
        if found is None:
            found = self._requests.labels(*key), self._duration.labels(endpoint, model)
            self._finished[key] = found
        found[0].inc()
        found[1].observe(seconds)

    def first_audio(self, model: str, seconds: float) -> None:
        found = self._first.get(model)
        if found is None:
            found = self._first[model] = self._first_audio.labels(model)
        found.observe(seconds)

    def audio(self, model: str, task: str, seconds: float) -> None:
        found = self._heard.get((model, task))
        if found is None:
            found = self._heard[model, task] = self._audio.labels(model, task)
        found.inc(max(0.0, seconds))

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _Pipelines(Collector):
    """Reads the pipelines' own numbers at the time of a scrape."""

    def __init__(self, service: Callable[[], Service | None]) -> None:
        self._service = service

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        service = self._service()
        ready = GaugeMetricFamily("omni_ready", "Whether requests are taken.")
        ready.add_metric([], float(service is not None and service.ready))
        active = GaugeMetricFamily("omni_active", "Requests inside a pipeline.", labels=["model"])
        totals = CounterMetricFamily("omni_pipeline_requests", "Ended requests.", labels=["model", "outcome"])
        by_stage: dict[str, Metric] = {}
        for field, about in _STAGE_GAUGES.items():
            by_stage[field] = GaugeMetricFamily(f"omni_stage_{field}", about, labels=["model", "stage"])
        for field, about in _STAGE_COUNTERS.items():
            by_stage[field] = CounterMetricFamily(f"omni_stage_{field}", about, labels=["model", "stage"])
        for model, pipeline in service.pipelines.items() if service is not None else ():
            stats = pipeline.stats()
            active.add_metric([model], stats.active)
            for outcome in _OUTCOMES:
                totals.add_metric([model, outcome], getattr(stats, f"{outcome}_total"))
            for stage, numbers in stats.stages.items():
                for field, family in by_stage.items():
                    value = getattr(numbers, field if field in _STAGE_GAUGES else f"{field}_total")
                    family.add_metric([model, stage], value)  # type: ignore[attr-defined]
        return [ready, active, totals, *by_stage.values()]
