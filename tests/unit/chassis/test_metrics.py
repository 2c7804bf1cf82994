"""The metrics, as Prometheus reads them."""

from __future__ import annotations

import socket
import urllib.request

from sfumato_chassis.metrics import Metrics, open_endpoint


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_calls_and_their_time_by_method() -> None:
    metrics = Metrics()
    metrics.count("/a/B", "OK", 0.25)
    metrics.count("/a/B", "OK", 0.5)
    metrics.count("/a/B", "DATASET_BUSY", 0.25)
    port = free_port()
    close = open_endpoint(metrics, port)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        close()
    assert 'sfumato_calls_total{method="/a/B",outcome="OK"} 2.0' in text
    assert 'sfumato_calls_total{method="/a/B",outcome="DATASET_BUSY"} 1.0' in text
    assert 'sfumato_call_seconds_total{method="/a/B"} 1.0' in text
