"""A unary call and a long watch, against a bare grpc.aio server that sends the same messages."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from benchmarks.rows import Row

from sfumato.datasets.v1 import datasets_pb2, datasets_pb2_grpc

NUM_CALLS = 600
NUM_WATCHES = 5
Responses = list[datasets_pb2.WatchImportResponse]


@contextmanager
def started(kind: str, path: Path) -> Iterator[list[str]]:
    """A server process, which ends with its standard input; yields the words that it printed."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.servers", kind, str(path)],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        yield server.stdout.readline().split()
        server.stdin.close()


def stub_at(address: str) -> datasets_pb2_grpc.DatasetsServiceStub:
    """A blocking stub."""
    return datasets_pb2_grpc.DatasetsServiceStub(grpc.insecure_channel(address))


def watch(stub: datasets_pb2_grpc.DatasetsServiceStub, name: str) -> tuple[Responses, float]:
    """Every message of a watch, and the seconds it took."""
    began = time.perf_counter()
    request = datasets_pb2.WatchImportRequest(name=name, replay=True)
    messages = list(stub.WatchImport(request))
    return messages, time.perf_counter() - began


def unary_seconds(stub: datasets_pb2_grpc.DatasetsServiceStub, name: str) -> float:
    """One call."""
    began = time.perf_counter()
    stub.GetImport(datasets_pb2.GetImportRequest(name=name))
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
        with started("ours", data_dir) as (address, ended):
            ours = stub_at(address)
            messages, _ = watch(ours, ended)
            record(messages, recording)
            with started("bare", recording) as (bare_address,):
                return compare(ours, stub_at(bare_address), ended)


def compare(
    ours: datasets_pb2_grpc.DatasetsServiceStub,
    bare: datasets_pb2_grpc.DatasetsServiceStub,
    name: str,
) -> list[Row]:
    """Unary calls and watches of an ended log."""
    calls: dict[str, list[float]] = {"ours": [], "bare": []}
    watches: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(NUM_CALLS):
        calls["ours"].append(unary_seconds(ours, name))
        calls["bare"].append(unary_seconds(bare, name))
    for _ in range(NUM_WATCHES):
        for who, stub in (("ours", ours), ("bare", bare)):
            messages, seconds = watch(stub, name)
            watches[who].append(len(messages) / seconds)
    return [
        Row(
            what="GetImport, p50",
            unit="ms",
            ours=statistics.median(calls["ours"]) * 1e3,
            floor=statistics.median(calls["bare"]) * 1e3,
            target=2.0,
        ),
        Row(
            what="watch of an ended log, replayed",
            unit="messages/s",
            ours=statistics.median(watches["ours"]),
            floor=statistics.median(watches["bare"]),
            target=0.7,
            more_is_better=True,
        ),
    ]
