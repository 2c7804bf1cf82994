"""``sfumato serve``: one light process with all three services, or one of them.

Services are found by the name of their module, so that none is loaded that was not asked for. torch,
typer, rich and Alembic are never loaded here.
"""

import argparse
import asyncio
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from sfumato_chassis import exit_codes
from sfumato_chassis.config import CHASSIS_SECTIONS, Config, ConfigError, StartError, load_config

SERVICES = ("datasets", "trainer", "generator")


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
            ("server", "insecure_remote", arguments.insecure_remote),
        )
        if value is not None
    }
    return load_config(
        all_sections(), file=arguments.config, environment=os.environ, overrides=overrides
    )


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
    parser.add_argument(
        "--host", help="address to listen on; beyond loopback it takes TLS and keys"
    )
    parser.add_argument("--port", type=int, help="TCP port; 0 takes a free one")
    parser.add_argument("--data-dir", type=Path, help="folder that holds everything")
    parser.add_argument(
        "--insecure-remote",
        action="store_true",
        default=None,
        help="serve beyond loopback without TLS and keys, to whoever reaches the port",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs ``sfumato serve``; answers the exit code.

    That is 0 after a signal to stop, 130 after SIGINT before it was ready, 78 for a configuration that
    cannot be used, and 74 for files or a database that cannot be read or written.
    """
    parsed = parse_arguments(arguments)
    names = [name for name in SERVICES if not parsed.only or name in parsed.only]
    # Hundreds of modules load now and stay; to walk through them again and again while they do takes a
    # tenth of the start. `run` has the collector on again once the server is ready.
    gc.disable()
    # gRPC's own lines would stand beside ours; whoever wants them sets this.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        config = read_config(parsed)
        from sfumato_chassis.serving import run

        asyncio.run(run(config, names))
    except StartError as error:
        sys.stderr.write(f"sfumato serve: {error}\n")
        return exit_codes.MISCONFIGURED if isinstance(error, ConfigError) else exit_codes.STORAGE
    except KeyboardInterrupt:
        # Before the services have answers of their own to signals.
        sys.stderr.write("interrupted\n")
        return exit_codes.INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("sfumato"):
            raise
        sys.stderr.write(
            f"sfumato serve: {package} is not installed; `pip install '.[all]'` installs what the "
            "services need, '.[datasets]', '.[trainer]' or '.[generator]' what one needs\n"
        )
        return exit_codes.MISCONFIGURED
    finally:
        gc.enable()
    return 0
