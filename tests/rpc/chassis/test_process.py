"""The server as a process: readiness, reflection, health, signals, exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from datasets_server import ServerProcess, import_request, server_process
from pictures import write_pictures
from refusals import refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2
from sfumato_chassis.failpoints import VARIABLE

GRPCURL = Path(sys.executable).with_name("grpcurl")
DATASETS = "sfumato.datasets.v1.DatasetsService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def grpcurl(*arguments: str) -> str:
    ended = subprocess.run(
        [GRPCURL, "-plaintext", *arguments], capture_output=True, text=True, timeout=20
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def serve(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sfumato_datasets", "--data-dir", str(cwd / "data"), *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_grpcurl_finds_its_way_without_protos(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    try:
        address = server.wait_ready()
        listed = grpcurl(address, "list").split()
        assert {DATASETS, "sfumato.blobs.v1.BlobService", "grpc.health.v1.Health"} <= set(listed)
        described = grpcurl(address, "describe", DATASETS)
        assert "returns ( stream .sfumato.datasets.v1.WatchImportResponse )" in described
        answer = grpcurl("-d", '{"page_size": 3}', address, f"{DATASETS}/ListDatasets")
        assert json.loads(answer) == {}
    finally:
        server.kill()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_ends_with_0(tmp_path: Path, signal_number: int) -> None:
    write_pictures(tmp_path / "root" / "cats", 1)
    gate, roots = tmp_path / "gate", (tmp_path / "root",)
    holding = {VARIABLE: f"import.before_publish=hold:{gate}"}
    async with server_process(tmp_path / "data", roots=roots, environment=holding) as (
        server,
        stubs,
    ):
        health = health_pb2_grpc.HealthStub(stubs.channel)
        statuses = health.Watch(health_pb2.HealthCheckRequest(service=DATASETS))
        assert (await statuses.read()).status == SERVING
        created = await stubs.datasets.CreateImport(import_request("cats"))
        watch = stubs.datasets.WatchImport(
            imports_pb2.WatchImportRequest(name=created.import_job.name, replay=True)
        )
        assert (await watch.read()).HasField("attached")
        assert (await watch.read()).event.HasField("queued")
        server.process.send_signal(signal_number)
        assert (await statuses.read()).status == NOT_SERVING
        gate.touch()
        message = await watch.read()
        while message.HasField("event"):
            message = await watch.read()
        assert message.going_away.retry_after.ToTimedelta().total_seconds() > 0
        assert await watch.read() == grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.OK
        statuses.cancel()
        assert await server.ended() == 0


async def test_health_is_told_for_each_service(tmp_path: Path) -> None:
    async with server_process(tmp_path / "data") as (_, stubs):
        health = health_pb2_grpc.HealthStub(stubs.channel)
        for service in ("", DATASETS, "sfumato.blobs.v1.BlobService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="sfumato.none"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_message_over_the_limit_is_refused(tmp_path: Path) -> None:
    async with server_process(tmp_path / "data") as (_, stubs):
        request = pb.GetDatasetRequest(name="x" * (5 << 20))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stubs.datasets.GetDataset(request)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        refusal = await refusal_of(stubs.datasets.GetDataset(pb.GetDatasetRequest(name="x")))
        assert refusal.reason == "RESOURCE_NOT_FOUND"


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (["--host", "0.0.0.0"], {}, "beyond loopback it takes TLS"),
        (["--host", "example.org"], {}, "beyond loopback it takes TLS"),
        (["--config", "absent.toml"], {}, "absent.toml"),
        ([], {"SFUMATO_SERVER_PRT": "1"}, "SFUMATO_SERVER_PRT"),
        ([], {"SFUMATO_LOG_LEVEL": "loud"}, "log.level"),
        ([], {"SFUMATO_STORAGE_DATABASE_URL": "postgresql://x/y"}, "database_url"),
        ([], {"SFUMATO_STORAGE_DATABASE_URL": "nonsense"}, "database_url"),
        (["--data-dir", "/proc/sfumato"], {}, "data_dir"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], told: str
) -> None:
    ended = serve("--port", "0", *arguments, cwd=tmp_path, **environment)
    assert ended.returncode == 78
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


async def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    async with server_process(tmp_path / "data") as (server, _):
        other = tmp_path / "other"
        other.mkdir()
        ended = serve("--port", server.address.rpartition(":")[2], cwd=other)
    assert ended.returncode == 78
    assert "cannot listen" in ended.stderr
