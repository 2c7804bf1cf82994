import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from datasets_server import Running, import_request, running
from pictures import write_pictures
from refusals import refusal_of
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2
from sfumato_chassis.errors import Reason
from sfumato_chassis.failpoints import Failpoints, parse
from sfumato_client.errors import Refusal, ResourceExhausted, classify

SERVICE = "/sfumato.datasets.v1.DatasetsService"
BLOBS = "/sfumato.blobs.v1.BlobService"
FIELD_127 = b"\xf8\x07\x01"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    write_pictures(tmp_path / "root" / "cats", 1)
    overrides = {"datasets.import_roots": (tmp_path / "root",)}
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


def raw(server: Running, method: str, body: bytes, **settings: Any) -> Any:
    """A call of bytes, without stubs."""
    return server.stubs.channel.unary_unary(method)(body, **settings)


def methods_of(module: Any, service: str) -> list[tuple[str, bool]]:
    descriptor = module.DESCRIPTOR.services_by_name[service]
    return [
        (f"/{descriptor.full_name}/{method.name}", method.server_streaming)
        for method in descriptor.methods
    ]


METHODS = [*methods_of(pb, "DatasetsService"), *methods_of(blobs_pb2, "BlobService")]


@pytest.mark.parametrize(("method", "streaming"), METHODS)
@pytest.mark.parametrize("body", [b"\xff", b"\x0a\x05ab"])
async def test_malformed_bytes_are_told_as_such(
    server: Running, method: str, streaming: bool, body: bytes
) -> None:
    channel = server.stubs.channel
    call = (channel.unary_stream if streaming else channel.unary_unary)(method)(body)
    refusal = await refusal_of(call)
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert refusal.reason == "MESSAGE_MALFORMED"


async def test_text_that_is_not_utf_8_is_malformed(server: Running) -> None:
    refusal = await refusal_of(raw(server, f"{SERVICE}/GetImport", b"\x0a\x02\xc3\x28"))
    assert refusal.reason == "MESSAGE_MALFORMED"


async def test_grpc_refuses_a_message_over_its_limit_and_the_client_says_so(
    server: Running,
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await raw(server, f"{BLOBS}/WriteChunk", bytes(5_000_000))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    outcome = classify(refused.value)
    assert isinstance(outcome, Refusal)
    assert isinstance(outcome.error, ResourceExhausted)
    assert "the request takes 5000000 bytes" in outcome.error.message


@pytest.mark.parametrize("method", [f"{SERVICE}/Nope", "/sfumato.none.v1.None/Get", "/x"])
async def test_an_unknown_method_is_told_as_such(server: Running, method: str) -> None:
    refusal = await refusal_of(raw(server, method, b""))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "METHOD_UNKNOWN",
    )


async def test_an_unknown_field_is_refused_in_a_create_only(server: Running) -> None:
    create = import_request("cats").SerializeToString() + FIELD_127
    refusal = await refusal_of(raw(server, f"{SERVICE}/CreateImport", create))
    assert refusal.fields == {"#127": "unknown field"}
    listed = imports_pb2.ListImportsRequest().SerializeToString() + FIELD_127
    await raw(server, f"{SERVICE}/ListImports", listed)


async def test_all_wrong_fields_are_told_at_once(server: Running) -> None:
    request = imports_pb2.CreateImportRequest(
        request_id="x", dataset="a" * 129, mode=77, caption_column="\0"
    )
    refusal = await refusal_of(server.stubs.datasets.CreateImport(request))
    assert refusal.fields.keys() == {
        "request_id",
        "dataset",
        "source",
        "mode",
        "caption_column",
    }


async def test_a_repeated_request_under_another_principal_is_anothers(server: Running) -> None:
    request = import_request("cats")
    mine = await server.stubs.datasets.CreateImport(request)
    theirs = await server.stubs.datasets.CreateImport(
        request, metadata=[("x-sfumato-principal", "another")]
    )
    assert not theirs.deduplicated
    assert theirs.import_job.owner == "another"
    get = imports_pb2.GetImportRequest(name=mine.import_job.name)
    refusal = await refusal_of(
        server.stubs.datasets.GetImport(get, metadata=[("x-sfumato-principal", "another")])
    )
    assert refusal.reason == "RESOURCE_NOT_FOUND"


@pytest.mark.parametrize("principal", ["", "a b", "-a", "x" * 200])
async def test_a_principal_that_cannot_be_is_refused(server: Running, principal: str) -> None:
    refusal = await refusal_of(
        server.stubs.datasets.ListImports(
            imports_pb2.ListImportsRequest(), metadata=[("x-sfumato-principal", principal)]
        )
    )
    assert refusal.fields.keys() == {"x-sfumato-principal"}


async def test_a_drain_refuses_creates_and_sends_watchers_away(
    server: Running, tmp_path: Path
) -> None:
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    name = created.import_job.name
    await server.stubs.datasets.WaitImport(imports_pb2.WaitImportRequest(name=name))
    server.platform.draining.set()
    refusal = await refusal_of(server.stubs.datasets.CreateImport(import_request("cats", "b")))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.UNAVAILABLE,
        "SERVER_DRAINING",
    )
    assert refusal.retry_after_seconds == 1
    refusal = await refusal_of(
        server.stubs.blobs.CreateUpload(
            blobs_pb2.CreateUploadRequest(request_id=str(uuid.uuid4()), digest="sha256:" + "0" * 64)
        )
    )
    assert refusal.reason == "SERVER_DRAINING"
    found = await server.stubs.datasets.GetImport(imports_pb2.GetImportRequest(name=name))
    assert found.import_job.name == name
    await server.server.stop()


async def test_a_call_that_takes_too_long_is_ended_by_the_server(tmp_path: Path) -> None:
    write_pictures(tmp_path / "root" / "cats", 1)
    overrides = {
        "datasets.import_roots": (tmp_path / "root",),
        "server.unary_deadline_seconds": 0.2,
    }
    gate = tmp_path / "gate"
    holding = Failpoints(parse(f"import.before_publish=hold:{gate}"))
    async with running(tmp_path / "data", overrides=overrides, failpoint=holding) as server:
        created = await server.stubs.datasets.CreateImport(import_request("cats"))
        refusal = await refusal_of(
            server.stubs.datasets.WaitImport(
                imports_pb2.WaitImportRequest(name=created.import_job.name)
            )
        )
        gate.touch()
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        "DEADLINE_EXCEEDED",
    )


@pytest.mark.parametrize("seconds", [-1, 2**62])
async def test_a_wait_that_cannot_be_is_refused(server: Running, seconds: int) -> None:
    request = imports_pb2.WaitImportRequest(name="import-1")
    request.timeout.seconds = seconds
    refusal = await refusal_of(server.stubs.datasets.WaitImport(request))
    assert refusal.reason == "FIELD_INVALID"
    assert refusal.fields.keys() == {"timeout"}


async def test_a_bug_tells_an_id_and_nothing_else(
    server: Running, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(work: Any) -> None:
        raise RuntimeError("secret of /var/lib")

    monkeypatch.setattr(server.platform.database, "read", fail)
    refusal = await refusal_of(server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, Reason.INTERNAL)
    assert refusal.message == "internal error"
    logged = "".join(capfd.readouterr())
    assert refusal.details["error_id"] in logged
    assert "secret of /var/lib" in logged


async def test_a_timeout_within_a_call_is_not_the_calls_own(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def time_out(work: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(server.platform.database, "read", time_out)
    refusal = await refusal_of(server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest()))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, Reason.INTERNAL)


async def test_the_callers_request_id_is_in_the_log(
    server: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    await server.stubs.datasets.ListDatasets(
        pb.ListDatasetsRequest(), metadata=[("x-request-id", "trace-4711")]
    )
    assert "trace-4711" in "".join(capfd.readouterr())


async def test_a_caller_who_leaves_ends_nothing_but_the_call(server: Running) -> None:
    ended = asyncio.Event()
    count = server.metrics.count

    def count_and_tell(method: str, outcome: str, seconds: float) -> None:
        count(method, outcome, seconds)
        if method.endswith("/WatchImport"):
            ended.set()

    server.metrics.count = count_and_tell  # type: ignore[method-assign]
    created = await server.stubs.datasets.CreateImport(import_request("cats"))
    name = created.import_job.name
    watch = server.stubs.datasets.WatchImport(
        imports_pb2.WatchImportRequest(name=name, replay=True)
    )
    await watch.read()
    watch.cancel()
    await asyncio.wait_for(ended.wait(), 10)
    found = await server.stubs.datasets.WaitImport(imports_pb2.WaitImportRequest(name=name))
    assert found.import_job.version.number == 1
