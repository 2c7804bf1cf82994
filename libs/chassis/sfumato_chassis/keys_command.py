"""``sfumato keys``: API keys of a deployment, made and revoked on its machine.

It works on the database itself, beside a server that runs: the first key cannot come over the wire.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.exc import DBAPIError

from sfumato_chassis import exit_codes
from sfumato_chassis.api_keys import REMEMBERED_SECONDS, ApiKey, ApiKeyStore
from sfumato_chassis.clock import SystemClock
from sfumato_chassis.config import (
    Config,
    ConfigError,
    StartError,
    StorageConfig,
    load_config,
)
from sfumato_chassis.errors import NotFound
from sfumato_chassis.platform import open_database
from sfumato_chassis.principals import NAME, Scope
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.serve import all_sections

MAX_DAYS = 36_500


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line of ``sfumato keys``."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--config", type=Path, help="TOML file (default: sfumato.toml if there)")
    common.add_argument("--data-dir", type=Path, help="folder that holds everything")
    common.add_argument("--json", action="store_true", help="one JSON object a line")
    parser = argparse.ArgumentParser(
        prog="sfumato keys", description="API keys of the deployment on this machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    create = commands.add_parser(
        "create", parents=[common], help="make a key and print it, this once"
    )
    create.add_argument("--principal", required=True, type=principal_name, help="who it stands for")
    create.add_argument(
        "--scope",
        required=True,
        action="append",
        choices=[scope.value for scope in Scope],
        help="what it may do; repeat for more than one",
    )
    create.add_argument("--expires-in-days", type=days, help="for ever if not given")
    commands.add_parser("list", parents=[common], help="tell of every key, never the key itself")
    revoke = commands.add_parser("revoke", parents=[common], help="end a key for good")
    revoke.add_argument("id", help="as `list` has it")
    return parser.parse_args(arguments)


def principal_name(text: str) -> str:
    """``text`` if a principal can have this name."""
    if NAME.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            "a name begins with a letter or digit and has up to 128 of A-Z a-z 0-9 . _ @ -"
        )
    return text


def days(text: str) -> timedelta:
    """A number of days above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= MAX_DAYS:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {MAX_DAYS}")
    return timedelta(days=number)


def main(arguments: Sequence[str]) -> int:
    """Runs ``sfumato keys``; answers the exit code.

    That is 0, 3 for a key that is not there, 78 for a configuration that cannot be used, and 74 for a
    database that cannot be read or written.
    """
    parsed = parse_arguments(arguments)
    overrides: dict[str, Any] = {}
    if parsed.data_dir is not None:
        overrides["storage.data_dir"] = parsed.data_dir
    try:
        config = load_config(
            all_sections(), file=parsed.config, environment=os.environ, overrides=overrides
        )
        asyncio.run(run(config, parsed))
    except NotFound as error:
        sys.stderr.write(f"sfumato keys: {error.message}\n")
        return exit_codes.NOT_FOUND
    except (StartError, OSError, DBAPIError) as error:
        told = f"the database: {error.orig}" if isinstance(error, DBAPIError) else str(error)
        sys.stderr.write(f"sfumato keys: {told}\n")
        return exit_codes.MISCONFIGURED if isinstance(error, ConfigError) else exit_codes.STORAGE
    return 0


async def run(config: Config, parsed: argparse.Namespace) -> None:
    """Does what the command line asks for.

    Raises:
        NotFound: There is no such key.
        StartError, OSError, DBAPIError: The database cannot be used.
    """
    database = open_database(config.section(StorageConfig))
    clock = SystemClock()
    try:
        await prepare_database(database, [CHASSIS_SCHEMA])
        keys = ApiKeyStore(database, clock=clock)
        match parsed.command:
            case "create":
                scopes = [Scope(scope) for scope in parsed.scope]
                key, text = await keys.create(
                    parsed.principal, scopes, lifetime=parsed.expires_in_days
                )
                say(key, clock.now(), as_json=parsed.json)
                sys.stdout.write(f"{text}\n")
            case "list":
                tell(await keys.list(), clock.now(), as_json=parsed.json)
            case "revoke":
                key = await keys.revoke(parsed.id)
                say(key, clock.now(), as_json=parsed.json)
    finally:
        database.close()


def say(key: ApiKey, now: datetime, *, as_json: bool) -> None:
    """Facts of one key, on standard error: standard output is for the key alone."""
    facts = facts_of(key, now)
    if as_json:
        sys.stderr.write(json.dumps(facts) + "\n")
        return
    sys.stderr.write("".join(f"{name}: {value}\n" for name, value in facts.items() if value))
    if facts["state"] == "valid":
        sys.stderr.write("The key is shown this once. Keep it out of command lines and logs.\n")
    else:
        sys.stderr.write(f"A running server refuses it within {REMEMBERED_SECONDS:g} s.\n")


def tell(keys: Sequence[ApiKey], now: datetime, *, as_json: bool) -> None:
    """Facts of every key, on standard output."""
    rows = [facts_of(key, now) for key in keys]
    if as_json:
        sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))
        return
    names = ("id", "principal", "scopes", "state", "created", "expires")
    lines = [names, *(tuple(row[name] or "-" for name in names) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = "  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True))
        sys.stdout.write(padded.rstrip() + "\n")


def facts_of(key: ApiKey, now: datetime) -> dict[str, str]:
    """What there is to tell; times in UTC."""
    return {
        "id": key.key_id,
        "principal": key.principal,
        "scopes": ",".join(sorted(key.scopes)),
        "state": key.fault(now) or "valid",
        "created": written(key.create_time),
        "expires": written(key.expire_time),
        "revoked": written(key.revoke_time),
    }


def written(time: datetime | None) -> str:
    """A time to the second; empty for none."""
    return "" if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"
