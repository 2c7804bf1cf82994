import asyncio
import json
import threading
from pathlib import Path

import grpc
import pytest

from command_line import CommandLine
from datasets_server import Running, begun, finished, import_request, imported, running, watched
from refusals import refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2

LONG_SECONDS = 30.0


async def test_cancelling_a_waiting_import_touches_no_other(held: tuple[Running, Path]) -> None:
    server, gate = held
    first = await server.stubs.datasets.CreateImport(import_request("cats"))
    await begun(server, first.import_job.name)
    second = await server.stubs.datasets.CreateImport(import_request("cats", "second"))
    third = await server.stubs.datasets.CreateImport(import_request("cats", "third"))
    name = second.import_job.name
    for _ in range(2):
        cancelled = await server.stubs.datasets.CancelImport(
            imports_pb2.CancelImportRequest(name=name)
        )
        assert cancelled.import_job.status.state == job_pb2.JOB_STATE_CANCELLED
    async for message in server.stubs.datasets.WatchImport(
        imports_pb2.WatchImportRequest(name=third.import_job.name, replay=True)
    ):
        if message.event.queued.position == 1:
            break
    gate.touch()
    for created in (first, third):
        end = await finished(server.stubs, created.import_job.name)
        assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_cancelled_import_keeps_nothing_however_late(held: tuple[Running, Path]) -> None:
    server, gate = held
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    name = created.import_job.name
    await begun(server, name)
    async for message in server.stubs.datasets.WatchImport(
        imports_pb2.WatchImportRequest(name=name, replay=True)
    ):
        if message.event.progress.num_files_done == 3:
            break
    cancelling = await server.stubs.datasets.CancelImport(
        imports_pb2.CancelImportRequest(name=name)
    )
    assert cancelling.import_job.status.state == job_pb2.JOB_STATE_CANCELLING
    gate.touch()
    end = await finished(server.stubs, name)
    assert end.status.state == job_pb2.JOB_STATE_CANCELLED
    assert not end.HasField("version")
    refusal = await refusal_of(server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats")))
    assert refusal.reason == "RESOURCE_NOT_FOUND"
    assert (await imported(server.stubs, "cats")).version.number == 1


async def test_the_command_line_cancels_by_name(
    held: tuple[Running, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    server, gate = held
    sfumato = CommandLine(server.address, capsys)
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    name = created.import_job.name
    await begun(server, name)
    answer = await sfumato("datasets", "cancel", name)
    # The server of this process logs to the same output.
    assert (answer.code, answer.out.splitlines()[-1]) == (0, f"{name} is cancelling")
    gate.touch()
    end = await finished(server.stubs, name)
    assert end.status.state == job_pb2.JOB_STATE_CANCELLED
    answer = await sfumato("--json", "datasets", "cancel", name)
    assert json.loads(answer.out.splitlines()[-1])["status"]["state"] == "JOB_STATE_CANCELLED"
    assert (await sfumato("datasets", "cancel", "import-absent")).code == 3


async def test_what_ended_otherwise_cannot_be_cancelled(server: Running) -> None:
    end = await imported(server.stubs, "cats")
    refusal = await refusal_of(
        server.stubs.datasets.CancelImport(imports_pb2.CancelImportRequest(name=end.name))
    )
    assert (refusal.reason, refusal.details) == ("JOB_STATE_UNSUITABLE", {"state": "SUCCEEDED"})


class Pause:
    """A failpoint that holds whoever comes to `name` first, until `go`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, name: str) -> None:
        if name == self._name and not self.reached.is_set():
            self.reached.set()
            self.go.wait(LONG_SECONDS)


@pytest.mark.parametrize(
    ("moment", "end"),
    [
        ("blob.staged", "cancelled"),
        ("blob.flushed", "cancelled"),
        ("blob.renamed", "cancelled"),
        ("import.before_publish", "cancelled"),
        ("import.published", "succeeded"),
    ],
)
async def test_cancels_at_any_moment_end_once(
    tmp_path: Path, root: Path, moment: str, end: str
) -> None:
    pause = Pause(moment)
    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", failpoint=pause, overrides=overrides) as server:
        created = await server.stubs.datasets.CreateImport(import_request("cats"))
        name = created.import_job.name
        assert await asyncio.to_thread(pause.reached.wait, LONG_SECONDS)
        cancels = await asyncio.gather(
            *(
                server.stubs.datasets.CancelImport(imports_pb2.CancelImportRequest(name=name))
                for _ in range(3)
            ),
            return_exceptions=True,
        )
        pause.go.set()
        messages = await watched(server, name, replay=True)
    refused = [error for error in cancels if isinstance(error, grpc.aio.AioRpcError)]
    assert len(refused) == (3 if end == "succeeded" else 0)
    assert {error.code() for error in refused} <= {grpc.StatusCode.FAILED_PRECONDITION}
    events = [message.event.WhichOneof("event") for message in messages]
    assert [event for event in events if event in {"succeeded", "cancelled", "failed"}] == [end]
