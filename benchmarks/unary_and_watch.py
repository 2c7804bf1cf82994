"""A unary call and a long watch, against a bare grpc.aio server that sends the same messages."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import grpc
from benchmarks.rows import Row
from benchmarks.servers import GROWING

from sfumato.datasets.v1 import datasets_pb2_grpc, imports_pb2

NUM_CALLS = 2_000
NUM_WATCHES = 15
Responses = list[imports_pb2.WatchImportResponse]


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server process: the words that it printed, its standard input and a stub of it."""

    names: list[str]
    orders: IO[str]
    stub: datasets_pb2_grpc.DatasetsServiceStub


@contextmanager
def started(kind: str, path: Path) -> Iterator[Server]:
    """A server process, which ends with its standard input."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.servers", kind, str(path)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        address, *names = process.stdout.readline().split()
        stub = datasets_pb2_grpc.DatasetsServiceStub(grpc.insecure_channel(address))
        yield Server(names=names, orders=process.stdin, stub=stub)
        process.stdin.close()


def watch(server: Server, name: str) -> tuple[Responses, float]:
    """Every message of a watch of an ended log, and how many a second came."""
    began = time.perf_counter()
    request = imports_pb2.WatchImportRequest(name=name, replay=True)
    messages = list(server.stub.WatchImport(request))
    return messages, len(messages) / (time.perf_counter() - began)


def live_rate(server: Server, name: str) -> float:
    """Messages a second of a watch whose log grows, from the order to grow to the last message."""
    stream = server.stub.WatchImport(imports_pb2.WatchImportRequest(name=name, replay=True))
    assert next(stream).HasField("attached")
    began = time.perf_counter()
    server.orders.write(f"{name}\n")
    server.orders.flush()
    return sum(1 for _ in stream) / (time.perf_counter() - began)


def unary_seconds(server: Server, name: str) -> float:
    """One call."""
    began = time.perf_counter()
    server.stub.GetImport(imports_pb2.GetImportRequest(name=name))
    return time.perf_counter() - began


def record(messages: Responses, path: Path) -> None:
    """Writes messages for the bare server, each after its length."""
    with path.open("wb") as file:
        for message in messages:
            data = message.SerializeToString()
            file.write(len(data).to_bytes(4, "big") + data)


def measure() -> list[Row]:
    """Alternating, so that whatever else the machine does meets both."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir, recording = Path(folder) / "data", Path(folder) / "recording"
        with started("ours", data_dir) as ours:
            messages, _ = watch(ours, ours.names[0])
            record(messages, recording)
            with started("bare", recording) as bare:
                return compare(ours, bare)


def compare(ours: Server, bare: Server) -> list[Row]:
    """Unary calls, watches of an ended log, watches of logs that grow."""
    ended, *growing = ours.names
    pairs = (("ours", ours), ("bare", bare))
    calls: dict[str, list[float]] = {"ours": [], "bare": []}
    replays: dict[str, list[float]] = {"ours": [], "bare": []}
    live: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(NUM_CALLS):
        for who, server in pairs:
            calls[who].append(unary_seconds(server, ended))
    for _ in range(NUM_WATCHES):
        for who, server in pairs:
            replays[who].append(watch(server, ended)[1])
    for name in growing:
        live["ours"].append(live_rate(ours, name))
        live["bare"].append(live_rate(bare, GROWING))
    return [
        Row(
            what="GetImport, p50",
            unit="ms",
            ours=statistics.median(calls["ours"]) * 1e3,
            floor=statistics.median(calls["bare"]) * 1e3,
            target=2.0,
        ),
        *(
            Row(
                what=what,
                unit="messages/s",
                ours=statistics.median(rates["ours"]),
                floor=statistics.median(rates["bare"]),
                target=target,
                more_is_better=True,
            )
            for what, rates, target in (
                ("watch of an ended log, replayed", replays, 0.7),
                # The floor writes each message as it is; ours also keeps the job's state by it.
                ("watch of a log that grows, durably", live, 0.4),
            )
        ),
    ]
