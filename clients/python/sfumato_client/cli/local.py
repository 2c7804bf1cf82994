"""Commands that need no server: `serve` is one; `tiny`, `keys` and `config` prepare it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from sfumato_client.cli import main as entry
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.files import check_folder_writable
from sfumato_client.cli.session import session_of

config = typer.Typer(no_args_is_help=True, help="The configuration of the services.")


def serve(context: typer.Context) -> None:
    """Run the services in this process. `sfumato serve --help` says how."""
    raise typer.Exit(entry.serve(context.args))


def keys(context: typer.Context) -> None:
    """Make, list and revoke API keys on the server's machine. `sfumato keys --help` says how."""
    raise typer.Exit(entry.keys(context.args))


def tiny(
    family: Annotated[str, typer.Argument(help="Name of a family, e.g. flux.1.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write it.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights.")] = 0,
) -> None:
    """Write a tiny base model with random weights, to try things on a small machine."""
    if find_spec("torch") is None:
        sys.stderr.write("sfumato tiny needs torch: pip install '.[trainer]'\n")
        raise typer.Exit(ExitCode.INVALID)
    check_folder_writable(folder)
    # In a process of its own, because it needs torch and this command line must not; and in a group
    # of its own, so that Ctrl-C reaches this one alone, which ends it.
    command = [sys.executable, "-m", "sfumato_diffusion.tiny", "--seed", str(seed)]
    finished = subprocess.run([*command, "--", family, str(folder)], check=False, process_group=0)
    raise typer.Exit(finished.returncode)


@config.command()
def show(
    context: typer.Context,
    config_file: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file; default sfumato.toml if it is there."),
    ] = None,
) -> None:
    """Print every setting in force and where it came from."""
    from sfumato_chassis.config import ConfigError, json_value, load_config, toml_value
    from sfumato_chassis.serve import all_sections

    session = session_of(context)
    try:
        loaded = load_config(all_sections(), file=config_file, environment=os.environ)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        raise typer.Exit(ExitCode.INVALID) from error
    if session.as_json:
        for setting in loaded.settings:
            session.print_json(
                {
                    "section": setting.section,
                    "field": setting.field,
                    "value": json_value(setting.value),
                    "origin": setting.origin,
                }
            )
        return
    rows = [
        (f"{setting.section}.{setting.field}", toml_value(setting.value), setting.origin)
        for setting in loaded.settings
    ]
    session.print_table(("setting", "value", "from"), rows)
