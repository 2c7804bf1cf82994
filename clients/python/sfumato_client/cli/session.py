"""What the commands of one invocation share."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import typer
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.console import Console
from rich.table import Column, Table

from sfumato_client.calls import RetryPolicy
from sfumato_client.channel import Connection
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.failures import exit_code_of, print_error
from sfumato_client.cli.output import PipeConsole
from sfumato_client.cli.text import printable
from sfumato_client.client import Client
from sfumato_client.errors import SfumatoError
from sfumato_client.trace import Trace, TracedCall
from sfumato_client.watch import WATCH_POLICY

CALL_POLICY = RetryPolicy(budget_seconds=10.0)
# A server that is there may take this long to answer, however little time there is for retries.
SHORTEST_ATTEMPT_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicies:
    """How long a server that is away is tried: by calls, and by a watch of a job."""

    calls: RetryPolicy = CALL_POLICY
    watches: RetryPolicy = WATCH_POLICY

    @classmethod
    def within(cls, seconds: float | None) -> RetryPolicies:
        """The same for everything, or the defaults. An attempt ends with it too, but not before 5 s."""
        if seconds is None:
            return cls()

        def shortened(policy: RetryPolicy) -> RetryPolicy:
            attempt_seconds = max(seconds, SHORTEST_ATTEMPT_SECONDS)
            return replace(
                policy,
                budget_seconds=seconds,
                attempt_timeout_seconds=min(policy.attempt_timeout_seconds, attempt_seconds),
            )

        return cls(calls=shortened(CALL_POLICY), watches=shortened(WATCH_POLICY))


@dataclass(kw_only=True, slots=True)
class Session:
    """Options that stand before the command, and the way to the screen."""

    connection: Connection
    retries: RetryPolicies
    as_json: bool
    trace: bool
    # The words after `sfumato`, to say how a command is repeated.
    arguments: Sequence[str]
    # Nothing that is printed is markup: names and captions come from the server.
    console: Console = field(
        default_factory=lambda: PipeConsole(markup=False, highlight=False, soft_wrap=True)
    )
    # Command that attaches to the job again, once there is one.
    reattach: str | None = None

    def run(self, work: Callable[[Client], Awaitable[ExitCode | None]]) -> None:
        """Runs a command's work with a client, and leaves with its exit code."""
        try:
            self.connection.check_secrecy()
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        try:
            code = asyncio.run(self._with_client(work))
        except SfumatoError as error:
            print_error(error, sys.stderr, as_json=self.as_json)
            raise typer.Exit(exit_code_of(error)) from error
        raise typer.Exit(code or ExitCode.OK)

    async def _with_client(
        self, work: Callable[[Client], Awaitable[ExitCode | None]]
    ) -> ExitCode | None:
        tls = self.connection.tls
        interceptors = Trace(record=_print_call, tls=tls) if self.trace else None
        client = Client(
            self.connection,
            policy=self.retries.calls,
            watch_policy=self.retries.watches,
            interceptors=interceptors,
        )
        async with client:
            return await work(client)

    def repeated_with(self, request_id: str) -> str:
        """This very command with a request id, which attaches to the same job."""
        options = list(self.arguments)
        operands = options[options.index("--") :] if "--" in options else []
        options = options[: len(options) - len(operands)]
        if not any(word.partition("=")[0] == "--request-id" for word in options):
            options += ["--request-id", request_id]
        return shlex.join(["sfumato", *options, *operands])

    def in_group(self, group: str, *words: str) -> str:
        """Another command of this one's group, with the options that stood before the group."""
        options = self.arguments[: list(self.arguments).index(group)]
        return shlex.join(["sfumato", *options, group, *words])

    def print(self, text: str) -> None:
        """A line for people."""
        self.console.print(printable(text))

    def print_message(self, message: Message) -> None:
        """A message as JSON: indented for people, in one line for programs."""
        if self.as_json:
            self.print_json(MessageToDict(message))
        else:
            self.console.print(json.dumps(MessageToDict(message), ensure_ascii=False, indent=2))

    def print_json(self, value: Any) -> None:
        """One JSON object in one line; ASCII where the encoding cannot hold every character."""
        is_ascii = sys.stdout.encoding.lower() != "utf-8"
        sys.stdout.write(json.dumps(value, ensure_ascii=is_ascii, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    def print_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Rows for people. The first column is a name, which stays whole: it is there to be copied."""
        name, *others = columns
        table = Table(
            Column(name, no_wrap=True),
            *(Column(other, overflow="fold") for other in others),
            box=None,
            pad_edge=False,
            header_style="bold",
        )
        for row in rows:
            table.add_row(*map(printable, row))
        self.console.print(table)


def session_of(context: typer.Context) -> Session:
    """The session that the options before the command made."""
    session = context.obj
    assert isinstance(session, Session)
    return session


def _print_call(call: TracedCall) -> None:
    sys.stderr.write(call.grpcurl() + "\n")
