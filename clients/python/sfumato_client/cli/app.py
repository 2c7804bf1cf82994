"""Puts the commands together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from sfumato_client.calls import RetryPolicy
from sfumato_client.channel import Addresses, Connection
from sfumato_client.cli import datasets, generating, local, training
from sfumato_client.cli.session import Session

EPILOG = (
    "Exit codes: 0 ok, 1 the job failed, 2 wrong usage or argument, 3 not found, 4 refused,"
    " 5 the server did not answer, 130 detached with Ctrl-C (the job goes on)."
)


def run(arguments: Sequence[str]) -> int:
    """Runs one command and answers its exit code."""
    try:
        build(arguments)(args=list(arguments), prog_name="sfumato")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application. `arguments` are what the user typed, to say how a command is repeated."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        help="Train adapters for diffusion models on captioned images, and make pictures.",
        epilog=EPILOG,
    )

    @app.callback()
    def options(
        context: typer.Context,
        address: Annotated[
            str | None,
            typer.Option(help="host:port of all services; default SFUMATO_ADDRESS."),
        ] = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="One JSON object a line, for programs.")
        ] = False,
        trace: Annotated[
            bool,
            typer.Option("--trace", help="Print the grpcurl line of each call to standard error."),
        ] = False,
        retry_seconds: Annotated[
            float, typer.Option(min=0, help="How long to try a server that does not answer.")
        ] = 10.0,
    ) -> None:
        connection = Connection.from_environment(os.environ)
        if address is not None:
            connection = replace(connection, addresses=Addresses.all_at(address))
        context.obj = Session(
            connection=connection,
            policy=RetryPolicy(budget_seconds=retry_seconds),
            as_json=as_json,
            trace=trace,
            arguments=arguments,
        )

    pass_through = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=pass_through, add_help_option=False)(local.serve)
    app.command()(local.tiny)
    app.command()(generating.generate)
    app.add_typer(datasets.app, name="datasets")
    app.add_typer(training.app, name="train")
    app.add_typer(generating.gallery, name="gallery")
    app.add_typer(local.config, name="config")
    return app
