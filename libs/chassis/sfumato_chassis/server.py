"""The gRPC server of a process: services, health, reflection, drain."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sfumato.blobs.v1 import blobs_pb2, blobs_pb2_grpc
from sfumato_chassis.api_keys import ApiKeyStore, KnownKeys
from sfumato_chassis.background import BackgroundTasks, keep_running
from sfumato_chassis.blob_servicer import BlobServicer
from sfumato_chassis.config import ConfigError, ServerConfig
from sfumato_chassis.logging import get_logger
from sfumato_chassis.metrics import Metrics, open_endpoint
from sfumato_chassis.pipeline import Pipeline
from sfumato_chassis.platform import Platform, Service
from sfumato_chassis.principals import Authenticator
from sfumato_chassis.remote_access import (
    check_remote_access,
    is_loopback,
    keys_required,
    reflection_offered,
)
from sfumato_chassis.requests import purge_tombstones
from sfumato_chassis.tls import server_credentials

BLOB_SERVICE = blobs_pb2.DESCRIPTOR.services_by_name["BlobService"].full_name
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAINTENANCE_SECONDS = 3600.0
OWN_HOST = "127.0.0.1"

SERVER_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 30_000),
    # grpcio 1.85 heeds only the second of these; the first is what its documentation names.
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.max_connection_age_ms", 30 * 60 * 1000),
    ("grpc.max_connection_age_grace_ms", 60_000),
    ("grpc.so_reuseport", 0),
)

log = get_logger(__name__)


class Server:
    """One process's server."""

    def __init__(
        self, platform: Platform, services: Sequence[Service], *, metrics: Metrics
    ) -> None:
        self._platform = platform
        self._services = services
        self._config = platform.config.section(ServerConfig)
        self._health = health.aio.HealthServicer()
        self._metrics = metrics
        self._background = BackgroundTasks()
        self._close_metrics: Callable[[], None] = lambda: None
        self._keys = ApiKeyStore(platform.database, clock=platform.clock)
        known_keys = KnownKeys(self._keys, own_key=platform.own_key, clock=platform.clock)
        self._server = grpc.aio.server(
            interceptors=[
                Pipeline(
                    metrics=metrics,
                    authenticator=Authenticator(known_keys, required=keys_required(self._config)),
                    draining=platform.draining,
                    unary_deadline_seconds=self._config.unary_deadline_seconds,
                )
            ],
            options=SERVER_OPTIONS,
        )

    async def start(self) -> str:
        """Starts everything; answers the address.

        Raises:
            ConfigError: The address is beyond loopback without what that takes, a file of TLS cannot
                be used, or the address or the metrics' port is taken.
        """
        try:
            check_remote_access(self._config, has_key=await self._keys.has_valid())
            self._open_metrics()
            return await self._start()
        except BaseException:
            await self._close()
            raise

    async def _start(self) -> str:
        for service in self._services:
            service.mount(self._server)
        blobs_pb2_grpc.add_BlobServiceServicer_to_server(
            BlobServicer(self._platform.blobs, self._platform.uploads), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [*(service.proto_name for service in self._services), BLOB_SERVICE]
        if reflection_offered(self._config):
            reflection.enable_server_reflection(
                [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
            )
        address = self._bind()
        for service in self._services:
            await service.start()
        await self._server.start()
        for name in ["", *names]:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._background.spawn(keep_running("maintenance", self._maintain, self._platform.clock))
        return address

    async def stop(self) -> None:
        """Drains and stops: no new work, running work to rest, watchers sent away, then the end."""
        log.info("draining")
        await self._health.enter_graceful_shutdown()
        self._platform.draining.set()
        await self._background.cancel()
        limits = self._platform.drain_limits
        await each(within(limits.service_seconds, service.drain()) for service in self._services)
        await self._server.stop(limits.stream_seconds)
        await self._close()
        log.info("stopped")

    async def _close(self) -> None:
        await each(service.stop() for service in self._services)
        self._close_metrics()

    def _open_metrics(self) -> None:
        port = self._config.metrics_port
        if port:
            try:
                self._close_metrics = open_endpoint(self._metrics, port)
            except OSError as error:
                raise ConfigError(f"server.metrics_port {port}: {error.strerror}") from error

    def _bind(self) -> str:
        host = self._config.host
        credentials = server_credentials(self._config)
        wanted = f"{host}:{self._config.port}"
        try:
            if credentials is None:
                port = self._server.add_insecure_port(wanted)
            else:
                port = self._server.add_secure_port(wanted, credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen on {wanted}: it is taken, or not of this host"
            ) from error
        own_address = f"{host}:{port}"
        if credentials is not None or not is_loopback(host):
            # The process's own calls need not know under which name its certificate is valid.
            own_address = f"{OWN_HOST}:{self._server.add_insecure_port(f'{OWN_HOST}:0')}"
        self._platform.own_address.set_result(own_address)
        return f"{host}:{port}"

    async def _maintain(self) -> None:
        while True:
            await self._remove_expired()
            await self._platform.clock.sleep(MAINTENANCE_SECONDS)

    async def _remove_expired(self) -> None:
        await each(service.maintain() for service in self._services)
        now = self._platform.clock.now()
        removed = {
            "uploads": await self._platform.uploads.purge(),
            "blobs": await self._platform.blobs.collect_unreferenced(),
            "request_ids": await self._platform.database.write(
                lambda connection: purge_tombstones(connection, now)
            ),
        }
        log.debug("maintenance", **removed)


async def each(work: Iterable[Awaitable[None]]) -> None:
    """Does all of ``work``; what fails is logged and stops nothing else."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, Exception):
            log.error("a service failed", exc_info=outcome)


async def within(seconds: float, work: Awaitable[None]) -> None:
    """Does ``work``, or raises TimeoutError."""
    async with asyncio.timeout(seconds):
        await work
