"""Puts the commands together."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sfumato_client.cli import connecting, datasets, generating, local, training
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.failures import describe_local_error
from sfumato_client.cli.output import watched_output
from sfumato_client.cli.session import RetryPolicies, Session

EPILOG = (
    "Exit codes: 0 ok, 1 the job failed, 2 wrong usage, argument or file, 3 not found, 4 refused,"
    " 5 the server did not answer, 130 Ctrl-C, 141 nobody reads the output (a job goes on)."
)


class Commands(TyperGroup):
    """Every command, and what is said when one is left early."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Reads the options before the command."""
        with _left_early(session=lambda: None):
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        """Runs the command."""
        with _left_early(session=lambda: ctx.obj):
            return super().invoke(ctx)


@contextmanager
def _left_early(*, session: Callable[[], Session | None]) -> Iterator[None]:
    """Ends the command when the user or the output's reader leaves; a job goes on, and is named."""

    def farewell() -> str:
        left = session()
        if left is None or left.reattach is None:
            return ""
        return f"detached; the job goes on. Attach again: {left.reattach}\n"

    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write(farewell() or "interrupted\n")
        raise typer.Exit(ExitCode.DETACHED) from None
    except BrokenPipeError:
        sys.stderr.write(farewell())
        raise typer.Exit(ExitCode.OUTPUT_CLOSED) from None


def run(arguments: Sequence[str]) -> int:
    """Runs one command and answers its exit code."""
    code: int = ExitCode.OK
    with watched_output() as outputs:
        code = _run(arguments)
    return ExitCode.OUTPUT_CLOSED if any(output.is_broken for output in outputs) else code


def _run(arguments: Sequence[str]) -> int:
    try:
        build(arguments)(args=list(arguments), prog_name="sfumato")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except (OSError, UnicodeEncodeError) as error:
        sys.stderr.write(describe_local_error(error) + "\n")
        return ExitCode.INVALID
    return ExitCode.OK


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application. `arguments` are what the user typed, to say how a command is repeated."""
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        add_completion=False,
        help="Train adapters for diffusion models on captioned images, and make pictures.",
        epilog=EPILOG,
    )

    @app.callback()
    def options(
        context: typer.Context,
        address: connecting.AddressOption = None,
        api_key_file: connecting.ApiKeyFileOption = None,
        tls: connecting.TlsOption = False,
        tls_ca: connecting.TlsCaOption = None,
        tls_certificate: connecting.TlsCertificateOption = None,
        tls_key: connecting.TlsKeyOption = None,
        insecure: connecting.InsecureOption = False,
        as_json: Annotated[
            bool, typer.Option("--json", help="One JSON object a line, for programs.")
        ] = False,
        trace: Annotated[
            bool,
            typer.Option("--trace", help="Print the grpcurl line of each call to standard error."),
        ] = False,
        retry_seconds: Annotated[
            float | None,
            typer.Option(
                min=0,
                help="How long to try a server that does not answer; default 10, and 300 while a"
                " job is followed.",
            ),
        ] = None,
    ) -> None:
        files = connecting.tls_of(
            tls=tls, ca_file=tls_ca, certificate_file=tls_certificate, key_file=tls_key
        )
        connection = connecting.connection_of(
            address=address, api_key_file=api_key_file, tls=files, insecure=insecure
        )
        context.obj = Session(
            connection=connection,
            retries=RetryPolicies.within(retry_seconds),
            as_json=as_json,
            trace=trace,
            arguments=arguments,
        )

    _add_commands(app)
    return app


def _add_commands(app: typer.Typer) -> None:
    pass_through = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=pass_through, add_help_option=False)(local.serve)
    app.command(context_settings=pass_through, add_help_option=False)(local.keys)
    app.command()(local.tiny)
    app.command()(generating.generate)
    app.add_typer(datasets.app, name="datasets")
    app.add_typer(training.app, name="train")
    app.add_typer(generating.gallery, name="gallery")
    app.add_typer(local.config, name="config")
