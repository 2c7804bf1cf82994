"""What the chassis gives a service, and what a service gives the chassis."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import grpc

from sfumato_chassis.blobs import BlobFolder, BlobStore
from sfumato_chassis.clock import Clock
from sfumato_chassis.config import (
    AddressesConfig,
    Config,
    ConfigError,
    ServerConfig,
    StorageConfig,
    WorkersConfig,
)
from sfumato_chassis.database import Database
from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.executor import Executor, LocalExecutor
from sfumato_chassis.failpoints import Failpoint
from sfumato_chassis.identifiers import NewName
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import JobKind
from sfumato_chassis.leases import LeaseStore, lease_for_worker
from sfumato_chassis.peers import Peer, check_peers, configured_peer
from sfumato_chassis.remote_access import keys_required
from sfumato_chassis.uploads import UploadStore
from sfumato_chassis.wakeups import Wakeups
from sfumato_chassis.watching import WatchLimits
from sfumato_chassis.worker_channel import OnReport, WorkerChannel

DATABASE_FILE = "sfumato.sqlite3"


@dataclass(frozen=True, kw_only=True, slots=True)
class DrainLimits:
    """Each step of a stop has its own time, so that one that hangs does not keep the later ones away.

    Attributes:
        rest_seconds: How long a service waits for its workers to come to rest before it ends them.
        service_seconds: How long a service may take for that and for noting what became of its jobs.
        stream_seconds: How long streams may take to end after that.
    """

    rest_seconds: float
    service_seconds: float
    stream_seconds: float

    @classmethod
    def of(cls, seconds: float) -> "DrainLimits":
        """The parts of ``seconds``; some are left for the end."""
        return cls(
            rest_seconds=0.5 * seconds, service_seconds=0.7 * seconds, stream_seconds=0.2 * seconds
        )


@dataclass(frozen=True, kw_only=True)
class Platform:
    """The chassis's parts, shared by the services of one process.

    Attributes:
        draining: Set when the process has begun to stop.
        own_address: Where this process listens for its own calls; known once it does.
        own_key: What its own calls bring along where keys are required; it lives as long as the process.
    """

    config: Config
    clock: Clock
    new_name: NewName
    failpoint: Failpoint
    database: Database
    blobs: BlobStore
    uploads: UploadStore
    leases: LeaseStore
    executor: Executor
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    own_address: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    own_key: str = field(default_factory=secrets.token_urlsafe, repr=False)

    @property
    def data_dir(self) -> Path:
        """The folder that holds everything."""
        return self.config.section(StorageConfig).data_dir

    @property
    def watch_limits(self) -> WatchLimits:
        """How watches behave in time."""
        server = self.config.section(ServerConfig)
        return WatchLimits(
            heartbeat_seconds=server.heartbeat_seconds,
            max_age_seconds=server.watch_max_age_seconds,
        )

    @property
    def device_lease(self) -> timedelta:
        """How long a device's lease lasts that is held for a worker."""
        workers = self.config.section(WorkersConfig)
        return lease_for_worker(workers.lease_seconds, workers.rest_seconds)

    @property
    def drain_limits(self) -> DrainLimits:
        """How the time between SIGTERM and exit is divided."""
        return DrainLimits.of(self.config.section(ServerConfig).drain_seconds)

    def job_store(self, kind: JobKind, *, on_queue: Callable[[], None]) -> JobStore:
        """A store of one kind of job; ``on_queue`` is called when its queue has moved."""
        return JobStore(
            self.database,
            kind,
            clock=self.clock,
            new_name=self.new_name,
            wakeups=Wakeups(),
            on_queue=on_queue,
        )

    def worker_channel(self, service: str, on_report: OnReport) -> WorkerChannel:
        """A channel to the workers of ``service``."""
        return WorkerChannel(
            service,
            self.database,
            self.executor,
            clock=self.clock,
            new_name=self.new_name,
            run_folder=self.data_dir / "run",
            lease_seconds=self.config.section(WorkersConfig).lease_seconds,
            rest_seconds=self.config.section(WorkersConfig).rest_seconds,
            on_report=on_report,
        )

    async def address_of(self, service: str) -> str:
        """Where ``service`` is: as configured, else this process."""
        configured: str = getattr(self.config.section(AddressesConfig), service)
        return configured or await asyncio.shield(self.own_address)

    async def peer(self, service: str) -> Peer:
        """How ``service`` is called: as configured, else in this process.

        Raises:
            ConfigError: The key of ``[addresses]`` cannot be read any more.
        """
        addresses = self.config.section(AddressesConfig)
        configured: str = getattr(addresses, service)
        if configured:
            return await asyncio.to_thread(configured_peer, addresses, configured)
        own = keys_required(self.config.section(ServerConfig))
        return Peer(address=await self.address_of(service), api_key=self.own_key if own else None)

    def check_addresses(self, running: Sequence[str], needed: Sequence[str]) -> None:
        """Raises ConfigError for a needed service that cannot be called, or runs nowhere."""
        addresses = self.config.section(AddressesConfig)
        for service in needed:
            if service not in running and not getattr(addresses, service):
                raise ConfigError(f"addresses.{service}: must be set, since it does not run here")
        check_peers(
            addresses,
            {service: address for service in needed if (address := getattr(addresses, service))},
            insecure_remote=self.config.section(ServerConfig).insecure_remote,
        )


class Service(Protocol):
    """One service in a process.

    Its module ``app`` has ``SCHEMA`` (its tables), ``NEEDS`` (services that it calls),
    ``WORKER_PACKAGES`` (what its workers import) and ``build(platform) -> Service``; its module
    ``config`` has ``SECTION``, the dataclass of its section of the configuration.
    """

    proto_name: str
    """Full name of its proto service, for health and reflection."""

    device: str
    """Where its workers compute; ``cpu`` too for one without workers."""

    def mount(self, server: grpc.aio.Server) -> None:
        """Adds its servicers."""
        ...

    async def start(self) -> None:
        """Takes up what an earlier life left. Called before the first request."""
        ...

    async def maintain(self) -> None:
        """Removes what its retention no longer keeps; called now and then."""
        ...

    async def drain(self) -> None:
        """Brings running work to rest; called when no new work is accepted any more."""
        ...

    async def stop(self) -> None:
        """Closes what it opened; called when the last stream has ended."""
        ...


def open_platform(
    config: Config, *, clock: Clock, new_name: NewName, failpoint: Failpoint
) -> Platform:
    """Opens the store of a deployment. Call within a running event loop.

    Raises:
        ConfigError: The folder or the URL cannot be used.
        OSError: There is no space, or a file in the folder cannot be used.
    """
    storage = config.section(StorageConfig)
    data_dir = storage.data_dir
    database = open_database(storage)
    folder = BlobFolder(data_dir / "blobs", new_name=new_name, failpoint=failpoint)
    blobs = BlobStore(database, folder, clock=clock)
    return Platform(
        config=config,
        clock=clock,
        new_name=new_name,
        failpoint=failpoint,
        database=database,
        blobs=blobs,
        uploads=UploadStore(database, blobs, data_dir / "uploads", clock=clock, new_name=new_name),
        leases=LeaseStore(database, clock=clock),
        executor=LocalExecutor(threads=config.section(WorkersConfig).threads),
    )


def open_database(storage: StorageConfig) -> Database:
    """Opens the database of a deployment, in a folder that it makes if it must.

    Raises:
        ConfigError: The folder or the URL cannot be used.
        OSError: There is no space.
    """
    data_dir = storage.data_dir
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        return Database(storage.database_url or f"sqlite:///{data_dir.absolute() / DATABASE_FILE}")
    except OSError as error:
        if is_disk_full(error):
            raise
        raise ConfigError(f"storage.data_dir {data_dir}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"storage.database_url: {error}") from error
