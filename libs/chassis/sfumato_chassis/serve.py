"""``sfumato serve``: one light process with all three services, or one of them.

Services are found by the name of their module, so that none is loaded that was not asked for. torch,
typer, rich and Alembic are never loaded here.
"""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sfumato_chassis.clock import SystemClock
from sfumato_chassis.config import (
    CHASSIS_SECTIONS,
    Config,
    ConfigError,
    LogConfig,
    ServerConfig,
    load_config,
)
from sfumato_chassis.failpoints import from_environment
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.logging import configure_logging, get_logger
from sfumato_chassis.metrics import Metrics
from sfumato_chassis.platform import open_platform
from sfumato_chassis.schema import CHASSIS_SCHEMA, SchemaError, prepare_database
from sfumato_chassis.server import Server

SERVICES = ("datasets", "trainer", "generator")
EXIT_MISCONFIGURED = 78
"""EX_CONFIG of sysexits(3)."""

log = get_logger(__name__)


def all_sections() -> dict[str, type]:
    """Sections of the chassis and of every service: one file may serve several processes."""
    services = {name: import_module(f"sfumato_{name}.config").SECTION for name in SERVICES}
    return {**CHASSIS_SECTIONS, **services}


def read_config(arguments: argparse.Namespace) -> Config:
    """The configuration in force."""
    overrides: dict[str, Any] = {
        f"{section}.{field}": value
        for section, field, value in (
            ("server", "host", arguments.host),
            ("server", "port", arguments.port),
            ("storage", "data_dir", arguments.data_dir),
        )
        if value is not None
    }
    return load_config(
        all_sections(), file=arguments.config, environment=os.environ, overrides=overrides
    )


async def run(config: Config, names: Sequence[str]) -> None:
    """Serves until SIGTERM or SIGINT. Says the address on standard output once it is ready."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    platform = open_platform(
        config,
        clock=SystemClock(),
        new_name=random_name,
        failpoint=from_environment(os.environ),
    )
    try:
        apps = [import_module(f"sfumato_{name}.app") for name in names]
        await prepare_database(platform.database, [CHASSIS_SCHEMA, *(app.SCHEMA for app in apps)])
        services = [app.build(platform) for app in apps]
        server = Server(platform, services, metrics=Metrics())
        address = await server.start()
        sys.stdout.write(f"sfumato: {', '.join(names)} on {address}\n")
        sys.stdout.flush()
        await stopping.wait()
        async with asyncio.timeout(config.section(ServerConfig).drain_seconds):
            await server.stop()
    finally:
        platform.database.close()


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line of ``sfumato serve``."""
    parser = argparse.ArgumentParser(prog="sfumato serve", description="Run the services.")
    parser.add_argument("--config", type=Path, help="TOML file (default: sfumato.toml if there)")
    parser.add_argument(
        "--only",
        action="append",
        choices=SERVICES,
        help="run this service alone; repeat for more than one",
    )
    parser.add_argument("--host", help="loopback address to listen on")
    parser.add_argument("--port", type=int, help="TCP port; 0 takes a free one")
    parser.add_argument("--data-dir", type=Path, help="folder that holds everything")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs ``sfumato serve``; answers the exit code: 0, or 78 for a configuration that cannot be used."""
    parsed = parse_arguments(arguments)
    names = [name for name in SERVICES if not parsed.only or name in parsed.only]
    try:
        config = read_config(parsed)
        logging = config.section(LogConfig)
        configure_logging(level=logging.level, json_lines=logging.json)
        asyncio.run(run(config, names))
    except (ConfigError, SchemaError) as error:
        sys.stderr.write(f"sfumato serve: {error}\n")
        return EXIT_MISCONFIGURED
    return 0
