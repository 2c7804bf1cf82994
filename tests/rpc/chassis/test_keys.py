"""Keys at a real server: who may call what, whose things are whose, and what never shows a key."""

import asyncio
import importlib
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from datasets_server import Running, Stubs, import_request, imported, running, server_process
from deployment import ServeProcess
from pictures import write_pictures
from refusals import Refusal, read_refusal, refusal_of
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2
from sfumato_chassis.api_keys import REMEMBERED_SECONDS, ApiKeyStore
from sfumato_chassis.blobs import digest_of
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.principals import Scope, scope_of
from sfumato_client import Addresses, Client, Connection, Unauthenticated
from sfumato_trainer.dataset_reader import DatasetReader

SFUMATO = Path(sys.executable).with_name("sfumato")
PUBLIC = {
    "sfumato.datasets.v1.datasets_pb2": "DatasetsService",
    "sfumato.trainer.v1.trainer_pb2": "TrainerService",
    "sfumato.generator.v1.generator_pb2": "GeneratorService",
    "sfumato.blobs.v1.blobs_pb2": "BlobService",
}
METHODS: list[MethodDescriptor] = [
    method
    for module, name in PUBLIC.items()
    for method in importlib.import_module(module).DESCRIPTOR.services_by_name[name].methods
]
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def bearing(key: str, **others: str) -> Any:
    return [("authorization", f"Bearer {key}"), *others.items()]


def keys_command(data_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [SFUMATO, "keys", words[0], "--data-dir", data_dir, *words[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=data_dir.parent)


def made(data_dir: Path, principal: str, *scopes: str, days: float | None = None) -> str:
    """A key made by the command."""
    words = [word for scope in scopes for word in ("--scope", scope)]
    words += [] if days is None else ["--expires-in-days", str(days)]
    ended = keys_command(data_dir, "create", "--principal", principal, *words)
    assert ended.returncode == 0, ended.stderr
    (key,) = ended.stdout.splitlines()
    return key


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of all services with keys, and a key of each scope and none else."""
    data = tmp_path_factory.mktemp("keys") / "data"
    data.mkdir()
    keys = {scope.value: made(data, "anna", scope.value) for scope in Scope}
    server = ServeProcess(data, environment={"SFUMATO_SERVER_REQUIRE_KEYS": "true"})
    address = server.start()
    try:
        yield address, keys
    finally:
        server.stop()


async def answer(address: str, method: MethodDescriptor, metadata: Any) -> Refusal | None:
    """What an empty request of a method is refused with, if it is."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    async with grpc.aio.insecure_channel(address) as channel:
        if method.server_streaming:
            stream = channel.unary_stream(path)(b"", metadata=metadata)
            call = stream.read()
        else:
            call = channel.unary_unary(path)(b"", metadata=metadata)
        try:
            await call
        except grpc.aio.AioRpcError as error:
            return read_refusal(error)
        return None


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_each_method_takes_its_scope_and_no_other(
    deployment: tuple[str, dict[str, str]], method: MethodDescriptor
) -> None:
    address, keys = deployment
    needed = scope_of(f"/{method.containing_service.full_name}/{method.name}")
    for scope, key in keys.items():
        refusal = await answer(address, method, bearing(key))
        if scope in {needed, Scope.ADMIN}:
            assert refusal is None or refusal.code not in REFUSED, scope
        else:
            assert refusal is not None, scope
            assert refusal.code is grpc.StatusCode.PERMISSION_DENIED, scope
            assert (refusal.reason, refusal.details) == ("SCOPE_MISSING", {"scope": needed})


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_no_method_answers_without_a_key(
    deployment: tuple[str, dict[str, str]], method: MethodDescriptor
) -> None:
    address, keys = deployment
    for metadata in ([], bearing("sfm_0_x"), [("authorization", keys["admin"])]):
        refusal = await answer(address, method, metadata)
        assert refusal is not None
        assert refusal.code is grpc.StatusCode.UNAUTHENTICATED
        assert refusal.reason == "UNAUTHENTICATED"


async def test_health_is_told_without_a_key(deployment: tuple[str, dict[str, str]]) -> None:
    async with grpc.aio.insecure_channel(deployment[0]) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        told = await health.Check(health_pb2.HealthCheckRequest())
        assert told.status == health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    write_pictures(tmp_path / "root" / "cats", 1)
    overrides = {"datasets.import_roots": (tmp_path / "root",), "server.require_keys": True}
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


def store_of(server: Running) -> ApiKeyStore:
    return ApiKeyStore(server.platform.database, clock=server.platform.clock)


async def key_for(server: Running, principal: str, *scopes: Scope) -> str:
    return (await store_of(server).create(principal, scopes or [Scope.READ, Scope.DATASETS]))[1]


class Bearing(grpc.aio.UnaryUnaryClientInterceptor):
    """Sends a key with each call."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(
            details._replace(metadata=grpc.aio.Metadata(*bearing(self._key))), request
        )


async def test_things_of_one_key_are_not_there_for_another(server: Running) -> None:
    anna, boris = await key_for(server, "anna"), await key_for(server, "boris")
    intercepted = [Bearing(anna)]
    async with grpc.aio.insecure_channel(server.address, interceptors=intercepted) as channel:
        stubs = Stubs(channel)
        job = await imported(stubs, "cats")
        data = b"bytes of anna"
        upload = await stubs.blobs.CreateUpload(
            blobs_pb2.CreateUploadRequest(
                request_id=str(uuid.uuid4()), digest=digest_of(data), size_bytes=len(data)
            )
        )
        assert (await stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats"))).dataset
    assert job.owner == "anna"
    name = upload.upload.name
    datasets, blobs = server.stubs.datasets, server.stubs.blobs
    metadata = bearing(boris)
    calls = [
        datasets.GetImport(imports_pb2.GetImportRequest(name=job.name), metadata=metadata),
        datasets.WaitImport(imports_pb2.WaitImportRequest(name=job.name), metadata=metadata),
        datasets.CancelImport(imports_pb2.CancelImportRequest(name=job.name), metadata=metadata),
        datasets.DeleteImport(imports_pb2.DeleteImportRequest(name=job.name), metadata=metadata),
        datasets.WatchImport(
            imports_pb2.WatchImportRequest(name=job.name), metadata=metadata
        ).read(),
        datasets.GetDataset(pb.GetDatasetRequest(name="cats"), metadata=metadata),
        blobs.GetUpload(blobs_pb2.GetUploadRequest(name=name), metadata=metadata),
        blobs.CompleteUpload(blobs_pb2.CompleteUploadRequest(name=name), metadata=metadata),
    ]
    for call in calls:
        assert (await refusal_of(call)).code is grpc.StatusCode.NOT_FOUND
    listed = await datasets.ListImports(imports_pb2.ListImportsRequest(), metadata=metadata)
    assert not listed.imports
    found = await datasets.ListDatasets(pb.ListDatasetsRequest(), metadata=metadata)
    assert not found.datasets
    mine = await datasets.GetImport(
        imports_pb2.GetImportRequest(name=job.name), metadata=bearing(anna)
    )
    assert mine.import_job == job


async def test_a_key_of_another_name_speaks_for_a_user_only_with_the_scope(
    server: Running,
) -> None:
    request = pb.ListDatasetsRequest()
    plain = await key_for(server, "anna", Scope.ADMIN)
    metadata = bearing(plain, **{"x-sfumato-principal": "boris"})
    refusal = await refusal_of(server.stubs.datasets.ListDatasets(request, metadata=metadata))
    assert (refusal.reason, refusal.details) == ("SCOPE_MISSING", {"scope": "impersonate"})
    service = await key_for(server, "trainer", Scope.READ, Scope.IMPERSONATE)
    metadata = bearing(service, **{"x-sfumato-principal": "boris"})
    await server.stubs.datasets.ListDatasets(request, metadata=metadata)


async def test_a_process_calls_itself_although_keys_are_required(server: Running) -> None:
    anna = await key_for(server, "anna")
    async with grpc.aio.insecure_channel(server.address, interceptors=[Bearing(anna)]) as channel:
        await imported(Stubs(channel), "cats")
    reader = DatasetReader(lambda: server.platform.peer("datasets"))
    assert (await reader.resolve("anna", "cats", None)).num_samples == 1


async def test_an_expired_key_is_told_as_such(server: Running) -> None:
    key, text = await store_of(server).create(
        "anna", [Scope.READ], lifetime=timedelta(microseconds=1)
    )
    call = server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest(), metadata=bearing(text))
    refusal = await refusal_of(call)
    assert refusal.reason == "UNAUTHENTICATED"
    assert refusal.message == f"the API key {key.key_id} is expired"


async def call_until_refused(client: Client) -> None:
    """Calls with a key that was revoked just now; a call that begins after the memory's end fails."""
    clock = SystemClock()
    revoked = began = clock.monotonic()
    while began - revoked <= REMEMBERED_SECONDS:
        began = clock.monotonic()
        [each async for each in client.datasets.list_datasets()]
    raise AssertionError("the key is still heeded")


async def test_a_running_server_heeds_new_and_revoked_keys(
    deployment: tuple[str, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = tmp_path_factory.getbasetemp() / "keys0" / "data"
    connection = Connection(
        addresses=Addresses.all_at(deployment[0]),
        api_key=await asyncio.to_thread(made, data, "boris", "read"),
    )
    async with Client(connection) as client:
        assert [each async for each in client.datasets.list_datasets()] == []
        listed = await asyncio.to_thread(keys_command, data, "list", "--json")
        rows = [json.loads(line) for line in listed.stdout.splitlines()]
        (key_id,) = [row["id"] for row in rows if row["principal"] == "boris"]
        ended = await asyncio.to_thread(keys_command, data, "revoke", key_id)
        assert ended.returncode == 0
        with pytest.raises(Unauthenticated, match="revoked"):
            await call_until_refused(client)


async def test_a_key_is_shown_once_and_nowhere_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_pictures(tmp_path / "root" / "cats", 1)
    keys = [
        await asyncio.to_thread(made, data, "anna", "read", "datasets"),
        await asyncio.to_thread(made, data, "anna", "read", days=1e-9),
    ]
    told = []
    environment = {"SFUMATO_SERVER_REQUIRE_KEYS": "true", "SFUMATO_LOG_LEVEL": "debug"}
    with (tmp_path / "log").open("wb") as log:
        async with server_process(
            data, roots=(tmp_path / "root",), environment=environment, stderr=log.fileno()
        ) as (server, stubs):
            for key in [*keys, keys[0][:-1]]:
                for method, body in (
                    ("CreateImport", import_request("cats").SerializeToString()),
                    ("CreateImport", b"\xff"),
                    ("GetImport", b""),
                    ("None", b""),
                ):
                    path = f"/sfumato.datasets.v1.DatasetsService/{method}"
                    call = stubs.channel.unary_unary(path)(body, metadata=bearing(key))
                    try:
                        told.append(str(await call))
                    except grpc.aio.AioRpcError as error:
                        told.append(f"{error!r} {error.trailing_metadata()}")
            server.process.terminate()
            assert await server.ended() == 0
    logged = (tmp_path / "log").read_text()
    assert "GetImport" in logged
    files = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    assert b"anna" in files
    for key in keys:
        # Without its end, so that the one that was cut short is found too.
        secret = key.split("_", 2)[2][:-1]
        assert secret.encode() not in files
        assert secret not in "".join([logged, *told])


def test_config_show_has_the_file_of_a_key_and_not_the_key(tmp_path: Path) -> None:
    (tmp_path / "service.key").write_text("sfm_canary_4711")
    ended = subprocess.run(
        [SFUMATO, "config", "show"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "SFUMATO_ADDRESSES_API_KEY_FILE": "service.key",
            "SFUMATO_API_KEY_FILE": str(tmp_path / "service.key"),
            "COLUMNS": "200",
        },
    )
    assert ended.returncode == 0, ended.stderr
    assert '"service.key"' in ended.stdout
    assert "4711" not in ended.stdout + ended.stderr
