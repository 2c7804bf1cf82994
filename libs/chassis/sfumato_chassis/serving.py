"""The life of a service process, from its configuration to SIGTERM."""

import asyncio
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from sqlalchemy.exc import DBAPIError

from sfumato_chassis.clock import SystemClock
from sfumato_chassis.config import (
    Config,
    ConfigError,
    LogConfig,
    ServerConfig,
    StartError,
    StorageConfig,
    StorageError,
)
from sfumato_chassis.device_claims import claim_device, claims_folder
from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.failpoints import from_environment
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.logging import configure_logging, get_logger
from sfumato_chassis.metrics import Metrics
from sfumato_chassis.platform import open_platform
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.server import Server

log = get_logger(__name__)


async def run(config: Config, names: Sequence[str]) -> None:
    """Serves until SIGTERM or SIGINT. Says the address on standard output once it is ready.

    Raises:
        ConfigError: The configuration, or the database that it names, cannot be used.
        StorageError: Files or the database cannot be read or written.
    """
    logging = config.section(LogConfig)
    configure_logging(level=logging.level, json_lines=logging.json)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    with ExitStack() as held:
        with storage_errors(config.section(StorageConfig).data_dir):
            server, address = await start(config, names, held)
        sys.stdout.write(f"sfumato: {', '.join(names)} on {address}\n")
        sys.stdout.flush()
        gc.freeze()
        gc.enable()
        await stopping.wait()
        try:
            async with asyncio.timeout(config.section(ServerConfig).drain_seconds):
                await server.stop()
        except TimeoutError:
            # Whatever still runs is taken up, or missed, by the next start.
            log.exception("draining took too long")


async def start(config: Config, names: Sequence[str], held: ExitStack) -> tuple[Server, str]:
    """Opens the store and starts the services; answers the server and its address.

    Args:
        held: Takes what is to be closed when the server has stopped.

    Raises:
        ConfigError: A setting cannot be used.
        OSError, DBAPIError: Files or the database cannot.
    """
    platform = open_platform(
        config,
        clock=SystemClock(),
        new_name=random_name,
        failpoint=from_environment(os.environ),
    )
    for name in names:
        held.enter_context(lock_service(platform.data_dir / "run", name))
    held.callback(platform.database.close)
    apps = [import_module(f"sfumato_{name}.app") for name in names]
    for name, app in zip(names, apps, strict=True):
        check_packages(name, app.WORKER_PACKAGES)
    await prepare_database(platform.database, [CHASSIS_SCHEMA, *(app.SCHEMA for app in apps)])
    for app in apps:
        platform.check_addresses(names, app.NEEDS)
    services = [app.build(platform) for app in apps]
    for service in services:
        if service.device != "cpu":
            claim = claim_device(claims_folder(), service.device, platform.database.file)
            platform.executor.hand_on(held.enter_context(claim))
    server = Server(platform, services, metrics=Metrics())
    return server, await server.start()


@contextmanager
def storage_errors(data_dir: Path) -> Iterator[None]:
    """Turns what the file system and the database raise during a start into StorageError.

    Raises:
        StorageError: In place of OSError and DBAPIError.
    """
    try:
        yield
    except (StartError, OSError, DBAPIError) as error:
        log.debug("could not start", exc_info=True)
        if isinstance(error, StartError):
            raise
        if is_disk_full(error):
            raise StorageError(f"no space is left for {data_dir}") from error
        if isinstance(error, DBAPIError):
            raise StorageError(f"the database: {error.orig}") from error
        told = error.strerror or str(error) or type(error).__name__
        raise StorageError(f"{error.filename}: {told}" if error.filename else told) from error


def check_packages(name: str, packages: Sequence[str]) -> None:
    """Refuses a service whose workers could not be started; loads none of what they need.

    Raises:
        ConfigError: A package is not installed.
    """
    absent = [package for package in packages if find_spec(package) is None]
    if absent:
        raise ConfigError(
            f"the {name} service needs {', '.join(absent)}: `pip install '.[{name}]'`, or leave it out "
            "with --only"
        )


def lock_service(folder: Path, name: str) -> IO[bytes]:
    """Holds a service of this data folder for as long as the process lives.

    Raises:
        ConfigError: Another process runs it already: two would take each other's workers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / f"{name}.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if isinstance(error, BlockingIOError):
            raise ConfigError(f"the {name} service of {folder.parent} runs already") from error
        raise
    return lock
