"""Counts of calls and their time, for Prometheus on a loopback port of its own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Metrics:
    """Calls by method and outcome, with the seconds they took."""

    def __init__(self) -> None:
        self._calls: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, method: str, outcome: str, seconds: float) -> None:
        """Adds one call."""
        self._calls[method, outcome] += 1
        self._seconds[method] += seconds

    @property
    def calls(self) -> Mapping[tuple[str, str], int]:
        """Number of calls by full method name and outcome (``OK`` or a reason)."""
        return self._calls

    @property
    def seconds(self) -> Mapping[str, float]:
        """Total seconds by full method name."""
        return self._seconds


class _Collector:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        calls = CounterMetricFamily("sfumato_calls", "Calls served.", labels=["method", "outcome"])
        for (method, outcome), count in list(self._metrics.calls.items()):
            calls.add_metric([method, outcome], count)
        yield calls
        seconds = CounterMetricFamily(
            "sfumato_call_seconds", "Seconds spent in calls.", labels=["method"]
        )
        for method, total in list(self._metrics.seconds.items()):
            seconds.add_metric([method], total)
        yield seconds


def open_endpoint(metrics: Metrics, port: int) -> Callable[[], None]:
    """Serves ``metrics`` on a loopback port; answers what closes it."""
    # Loaded only where it was asked for: a start without it is faster.
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_Collector(metrics))
    server, thread = start_http_server(port, addr="127.0.0.1", registry=registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
