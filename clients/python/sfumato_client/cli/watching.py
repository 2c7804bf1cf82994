"""The command that attaches to a job, and what the commands that make one go on with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic

import typer

from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.following import JobView, WatchMethod, follow, print_result
from sfumato_client.cli.session import Session, session_of
from sfumato_client.client import Client
from sfumato_client.watch import EventT, ResourceT


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchCommand(Generic[ResourceT, EventT]):
    """`sfumato GROUP watch NAME`."""

    group: str
    summary: str
    view: JobView[ResourceT, EventT]
    method: Callable[[Client], WatchMethod[ResourceT, EventT]]

    def add_to(self, app: typer.Typer) -> None:
        """Adds the command to its group."""

        @app.command("watch", help=self.summary)
        def watch(
            context: typer.Context, name: Annotated[str, typer.Argument(help="The job's name.")]
        ) -> None:
            session = session_of(context)
            session.run(lambda client: self.attend(session, client, name))

    async def attend(self, session: Session, client: Client, name: str) -> ExitCode:
        """Shows the job from its first event to its end, and says how that was."""
        session.reattach = session.in_group(self.group, "watch", name)
        resource = await follow(session, self.view, self.method(client), name)
        return print_result(session, self.view, resource)
