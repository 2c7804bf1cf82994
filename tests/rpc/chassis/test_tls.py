"""TLS between real processes: clients, grpcurl and services that call each other."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from certificates import PAST, Authority, Certificate
from datasets_server import Running, running
from pictures import write_pictures
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2
from sfumato_chassis import errors
from sfumato_chassis.api_keys import ApiKeyStore
from sfumato_chassis.config import CHASSIS_SECTIONS, ConfigError, load_config
from sfumato_chassis.peers import Peer
from sfumato_chassis.principals import Scope
from sfumato_client import (
    Addresses,
    Client,
    Connection,
    NotFound,
    RetryPolicy,
    Tls,
    TransportLost,
    Unauthenticated,
)
from sfumato_client.upstream import client_for, relayed
from sfumato_trainer.dataset_reader import DatasetReader

SFUMATO = Path(sys.executable).with_name("sfumato")
GRPCURL = Path(sys.executable).with_name("grpcurl")
DATASETS = "sfumato.datasets.v1.DatasetsService"
ONCE = RetryPolicy(budget_seconds=0.5, attempt_timeout_seconds=5.0)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    (tmp_path / "tls").mkdir()
    return Authority(tmp_path / "tls")


@pytest.fixture
async def server(tmp_path: Path, authority: Authority) -> AsyncIterator[Running]:
    write_pictures(tmp_path / "root" / "cats", 2)
    overrides = {
        "datasets.import_roots": (tmp_path / "root",),
        "server.require_keys": True,
        **authority.issue().server,
    }
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


async def key_for(server: Running, principal: str, *scopes: Scope) -> str:
    store = ApiKeyStore(server.platform.database, clock=server.platform.clock)
    return (await store.create(principal, scopes))[1]


def client_at(address: str, **connection: Any) -> Client:
    return Client(Connection(addresses=Addresses.all_at(address), **connection), policy=ONCE)


async def import_cats(client: Client) -> Any:
    request = imports_pb2.CreateImportRequest(
        dataset="cats", folder=imports_pb2.FolderSource(path="cats")
    )
    created = await client.datasets.create_import(request)
    return await client.datasets.wait_import(created.import_job.name)


async def test_the_client_imports_over_tls_with_a_key(
    server: Running, authority: Authority
) -> None:
    key = await key_for(server, "anna", Scope.READ, Scope.DATASETS)
    tls = Tls(ca_file=authority.file)
    async with client_at(server.address, api_key=key, tls=tls) as client:
        ended = await import_cats(client)
        assert ended.status.state == job_pb2.JOB_STATE_SUCCEEDED
        assert ended.owner == "anna"
        (dataset,) = [each async for each in client.datasets.list_datasets()]
        assert dataset.latest_version.num_samples == 2
        version, samples = await client.datasets.read_manifest("cats")
        assert version.number == 1
        assert len(samples) == 2


async def test_encryption_is_no_identity(server: Running, authority: Authority) -> None:
    async with client_at(server.address, tls=Tls(ca_file=authority.file)) as client:
        with pytest.raises(Unauthenticated):
            await client.datasets.get_dataset("cats")


async def test_a_server_of_another_authority_is_not_talked_to(
    server: Running, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "tls", "other")
    async with client_at(server.address, tls=Tls(ca_file=other.file)) as client:
        with pytest.raises(TransportLost, match=r"(?i)certificate|handshake"):
            await client.datasets.get_dataset("cats")
    async with client_at(server.address) as client:
        with pytest.raises(TransportLost):
            await client.datasets.get_dataset("cats")


async def test_a_certificate_of_another_name_is_not_accepted(
    tmp_path: Path, authority: Authority
) -> None:
    overrides = authority.issue("studio.example").server
    async with (
        running(tmp_path / "data", overrides=overrides) as server,
        client_at(server.address, tls=Tls(ca_file=authority.file)) as client,
    ):
        with pytest.raises(TransportLost):
            await client.datasets.get_dataset("cats")


async def test_clients_must_have_a_certificate_where_that_is_set(
    tmp_path: Path, authority: Authority
) -> None:
    overrides = {**authority.issue().server, "server.tls_client_ca": str(authority.file)}
    mine, stranger = authority.issue("client"), Authority(tmp_path / "tls", "other").issue("client")
    async with running(tmp_path / "data", overrides=overrides) as server:
        key = await key_for(server, "anna", Scope.READ)

        def client_with(certificate: Certificate | None, api_key: str | None = key) -> Client:
            files: dict[str, Any] = {}
            if certificate is not None:
                files = {
                    "certificate_file": certificate.certificate,
                    "key_file": certificate.key,
                }
            tls = Tls(ca_file=authority.file, **files)
            return client_at(server.address, api_key=api_key, tls=tls)

        for refused in (None, stranger):
            async with client_with(refused) as client:
                with pytest.raises(TransportLost):
                    await client.datasets.get_dataset("cats")
        async with client_with(mine) as client:
            with pytest.raises(NotFound):
                await client.datasets.get_dataset("cats")
        async with client_with(mine, api_key=None) as client:
            with pytest.raises(Unauthenticated):
                await client.datasets.get_dataset("cats")


async def test_own_calls_need_neither_certificate_nor_key_of_the_operator(
    server: Running, authority: Authority
) -> None:
    key = await key_for(server, "anna", Scope.READ, Scope.DATASETS)
    async with client_at(server.address, api_key=key, tls=Tls(ca_file=authority.file)) as client:
        await import_cats(client)
    reader = DatasetReader(lambda: server.platform.peer("datasets"))
    assert (await reader.resolve("anna", "cats", None)).num_samples == 2
    own = await server.platform.address_of("datasets")
    assert own.startswith("127.0.0.1:")
    assert own != server.address
    async with client_at(own) as client:
        with pytest.raises(Unauthenticated):
            await client.datasets.get_dataset("cats")


def grpcurl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([GRPCURL, *words], capture_output=True, text=True, timeout=30)


async def test_grpcurl_needs_the_authority_and_a_key(server: Running, authority: Authority) -> None:
    key = await key_for(server, "anna", Scope.READ)
    method = f"{DATASETS}/ListDatasets"
    trusting = ["-cacert", str(authority.file)]
    header = ["-H", f"authorization: Bearer {key}"]
    answered = await asyncio.to_thread(grpcurl, *trusting, *header, server.address, method)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout) == {}
    listed = await asyncio.to_thread(grpcurl, *trusting, server.address, "list")
    assert DATASETS in listed.stdout.split()
    refused = await asyncio.to_thread(grpcurl, *trusting, server.address, method)
    assert "Unauthenticated" in refused.stderr
    unknown = await asyncio.to_thread(grpcurl, *header, server.address, method)
    assert unknown.returncode != 0
    assert "certificate" in unknown.stderr


@pytest.fixture
def remote(authority: Authority) -> dict[str, str]:
    return environment_of(authority.issue())


def environment_of(certificate: Certificate) -> dict[str, str]:
    return {
        "SFUMATO_SERVER_TLS_CERTIFICATE": str(certificate.certificate),
        "SFUMATO_SERVER_TLS_KEY": str(certificate.key),
    }


def serve(data_dir: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [SFUMATO, "serve", "--only", "datasets", "--port", "0", "--data-dir", data_dir]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=data_dir.parent,
        env={**os.environ, **settings},
    )


def create_key(data_dir: Path, *words: str) -> None:
    command = [SFUMATO, "keys", "create", "--data-dir", data_dir, "--principal", "anna"]
    subprocess.run([*command, "--scope", "read", *words], check=True, capture_output=True)


NO_TLS, NO_KEY = "TLS (server.tls_certificate", "an API key (`sfumato keys create"


@pytest.mark.parametrize(
    ("tls", "key", "missing"),
    [
        (False, None, [NO_TLS, NO_KEY]),
        (False, "valid", [NO_TLS]),
        (True, None, [NO_KEY]),
        (True, "expired", [NO_KEY]),
    ],
)
def test_no_port_is_opened_beyond_loopback_before_all_is_there(
    tmp_path: Path, remote: dict[str, str], tls: bool, key: str | None, missing: list[str]
) -> None:
    if key is not None:
        lifetime = [] if key == "valid" else ["--expires-in-days", "1e-9"]
        create_key(tmp_path / "data", *lifetime)
    ended = serve(tmp_path / "data", SFUMATO_SERVER_HOST="0.0.0.0", **(remote if tls else {}))
    assert ended.returncode == 78
    (line,) = ended.stderr.splitlines()
    assert line.startswith("sfumato serve: server.host 0.0.0.0: beyond loopback it takes ")
    assert [each for each in (NO_TLS, NO_KEY) if each in line] == missing


def test_files_that_cannot_serve_are_told_in_one_line(
    tmp_path: Path, authority: Authority, remote: dict[str, str]
) -> None:
    other = {**remote, "SFUMATO_SERVER_TLS_KEY": str(authority.issue().key)}
    old = environment_of(authority.issue(not_after=PAST))
    for settings, told in ((other, "server.tls_key"), (old, "certificate has expired")):
        ended = serve(tmp_path / "data", **settings)
        assert ended.returncode == 78
        (line,) = ended.stderr.splitlines()
        assert told in line


async def test_a_service_calls_another_with_its_key_on_a_users_behalf(
    tmp_path: Path, authority: Authority, server: Running
) -> None:
    anna = await key_for(server, "anna", Scope.READ, Scope.DATASETS)
    async with client_at(server.address, api_key=anna, tls=Tls(ca_file=authority.file)) as client:
        await import_cats(client)
    scopes = (Scope.READ, Scope.DATASETS, Scope.IMPERSONATE)
    file = tmp_path / "trainer.key"
    file.write_text(await key_for(server, "trainer", *scopes) + "\n")

    async def peer() -> Peer:
        return Peer(
            address=server.address,
            api_key=file.read_text().strip(),
            tls=True,
            ca_file=str(authority.file),
        )

    reader = DatasetReader(peer)
    assert (await reader.resolve("anna", "cats", None)).num_samples == 2
    await reader.pin("anna", "cats", 1, holder="run-1", seconds=60)
    await reader.unpin("anna", "cats", 1, holder="run-1")
    file.write_text(anna)
    async with client_for(await peer(), "boris", budget_seconds=5) as client:
        asked = client.datasets.get_dataset("cats")
        with pytest.raises(errors.PermissionDenied, match="impersonate"):
            await relayed(asked, service="datasets", resource_type="dataset", resource_name="cats")


async def test_a_trainer_process_calls_as_it_is_configured(
    tmp_path: Path, authority: Authority, server: Running
) -> None:
    scopes = (Scope.READ, Scope.DATASETS, Scope.IMPERSONATE)
    file = tmp_path / "trainer.key"
    file.write_text(await key_for(server, "trainer", *scopes) + "\n")
    config = load_config(
        CHASSIS_SECTIONS,
        file=None,
        environment={
            "SFUMATO_ADDRESSES_DATASETS": server.address,
            "SFUMATO_ADDRESSES_CA_FILE": str(authority.file),
            "SFUMATO_ADDRESSES_API_KEY_FILE": str(file),
        },
        overrides={"storage.data_dir": tmp_path / "data"},
    )
    elsewhere = replace(server.platform, config=config)
    elsewhere.check_addresses(["trainer"], ["datasets"])
    reader = DatasetReader(lambda: elsewhere.peer("datasets"))
    with pytest.raises(errors.NotFound):
        await reader.resolve("anna", "cats", None)
    file.unlink()
    with pytest.raises(ConfigError, match="api_key_file"):
        elsewhere.check_addresses(["trainer"], ["datasets"])
