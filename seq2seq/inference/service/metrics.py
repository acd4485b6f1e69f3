"""Measurements of a service, as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics

# Seconds, from a batch of short sentences on a GPU to a long wait on a CPU.
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters and histograms of one service, in a registry of their own."""

    def __init__(self) -> None:
        # Times at which each counter began
        disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        rest = {"namespace": "seq2seq", "registry": self.registry}
        self.requests = Counter("http_requests", "Requests answered.", ["path", "status"], **rest)
        self.seconds = Histogram(
            "http_request_seconds", "Seconds until a request's answer ended.", ["path"], buckets=_SECONDS, **rest
        )
        self.texts = Counter("texts", "Texts translated or failed.", ["outcome"], **rest)
        self.characters = Counter("source_characters", "Characters of the texts that were accepted.", **rest)
        self.queue_texts = Gauge("queue_texts", "Texts that wait.", **rest)
        self.queue_characters = Gauge("queue_characters", "Characters that wait.", **rest)
        self.waiting = Histogram("queue_seconds", "Seconds that a text waited.", buckets=_SECONDS, **rest)
        self.batch_texts = Histogram("batch_texts", "Texts translated together.", buckets=_TEXTS, **rest)
        self.batch_seconds = Histogram("batch_seconds", "Seconds that a batch took.", buckets=_SECONDS, **rest)
        self.open = Gauge("open_translations", "Requests for a translation that are being served.", **rest)
        self.model_texts = Counter("model_texts", "Texts accepted for a model.", ["model"], **rest)
        self.model_bytes = Gauge("model_bytes", "Bytes of a model's weights in memory.", ["model"], **rest)
        self.model_loaded = Gauge("model_loaded_seconds", "When a model was loaded, in Unix time.", ["model"], **rest)
        self.reloads = Counter("reloads", "Times that models and keys were loaded again.", ["outcome"], **rest)
        # All outcomes are shown from the start, with a count of 0
        for counter, outcomes in ((self.texts, ("translated", "failed")), (self.reloads, ("loaded", "failed"))):
            for outcome in outcomes:
                counter.labels(outcome)
