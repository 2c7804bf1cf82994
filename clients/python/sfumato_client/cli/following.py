"""Shows a job while it runs: what happened as lines, how far it is as a bar."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from google.protobuf.json_format import MessageToDict
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from sfumato.job.v1 import job_pb2
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.failures import describe_job_error, exit_code_of_job
from sfumato_client.cli.session import Session
from sfumato_client.cli.text import printable, state_name
from sfumato_client.errors import violated
from sfumato_client.watch import (
    Attached,
    Cursor,
    Event,
    EventT,
    Finished,
    Reconnecting,
    ResourceT,
    Snapshot,
    WatchItem,
)

OnReconnecting = Callable[[Reconnecting], None]


class WatchMethod(Protocol[ResourceT, EventT]):
    """A watch method of the client."""

    def __call__(
        self, name: str, *, cursor: Cursor | None, on_reconnecting: OnReconnecting | None
    ) -> AsyncGenerator[WatchItem[ResourceT, EventT], None]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Milestone:
    """Something that stays on the screen."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far the job is."""

    stage: str
    done: float
    # None: unknown.
    total: float | None
    # Loss, learning rate, time left.
    facts: str = ""


Sight = Milestone | Position


def describe_queued(queued: job_pb2.Queued) -> Sight:
    """It waits."""
    return Position(stage=f"queued at {queued.position}", done=0, total=None)


def describe_started(started: job_pb2.Started) -> Sight:
    """An attempt began."""
    device = f" on {started.device}" if started.device else ""
    again = f", attempt {started.attempt}" if started.attempt > 1 else ""
    return Milestone(text=f"began{device}{again}")


def describe_interrupted(interrupted: job_pb2.Interrupted) -> Sight:
    """The process that did the work died."""
    follows = "another follows" if interrupted.retrying else "it was the last"
    return Milestone(text=f"attempt {interrupted.attempt} was interrupted; {follows}")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobView(Generic[ResourceT, EventT]):
    """How one kind of job looks."""

    describe_event: Callable[[EventT], Sight | None]
    # Where the job stands, when a snapshot replaces its first events.
    describe_resource: Callable[[ResourceT], Sight | None]
    describe_success: Callable[[ResourceT], str]


async def follow(
    session: Session,
    view: JobView[ResourceT, EventT],
    watch: WatchMethod[ResourceT, EventT],
    name: str,
    *,
    on_event: Callable[[EventT], Awaitable[None]] | None = None,
) -> ResourceT:
    """Shows a job from its first event to its end, and answers the final resource."""
    with Screen(session) as screen:
        watching = watch(name, cursor=Cursor(replay=True), on_reconnecting=screen.reconnecting)
        async with aclosing(watching) as items:
            async for item in items:
                screen.show(item, view)
                if isinstance(item, Event) and on_event is not None:
                    await on_event(item.event)
                if isinstance(item, Finished):
                    return item.resource
    raise violated("the watch ended without the final resource")


def print_result(
    session: Session, view: JobView[ResourceT, EventT], resource: ResourceT
) -> ExitCode:
    """Says how a job ended, and answers the exit code."""
    status = resource.status
    if not session.as_json:
        if status.state == job_pb2.JOB_STATE_SUCCEEDED:
            session.print(view.describe_success(resource))
        else:
            session.print(f"the job ended as {state_name(status.state)}")
            for line in describe_job_error(status.error) if status.HasField("error") else ():
                sys.stderr.write(printable(line) + "\n")
    return exit_code_of_job(status)


class Screen(AbstractContextManager["Screen"]):
    """A bar on a terminal, plain lines in a pipe, JSON lines with --json."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_live = session.console.is_terminal and not session.as_json
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[position]}", markup=False),
            TextColumn("{task.fields[facts]}", markup=False),
            TextColumn("{task.fields[connection]}", markup=False, style="dim"),
            console=session.console,
            transient=True,
            disable=not self._is_live,
        )
        self._task = self._progress.add_task(
            "waiting", total=None, position="", facts="", connection=""
        )

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def reconnecting(self, _reconnecting: Reconnecting) -> None:
        """Shows quietly that the connection is lost; the job goes on without it."""
        self._progress.update(self._task, connection="reconnecting")

    def show(self, item: WatchItem[ResourceT, EventT], view: JobView[ResourceT, EventT]) -> None:
        """Shows one item of a watch."""
        self._progress.update(self._task, connection="")
        if self._session.as_json:
            self._session.print_json(item_json(item))
            return
        match item:
            case Event(event=event):
                sight = view.describe_event(event)
            case Snapshot(resource=resource):
                sight = view.describe_resource(resource)
            case Attached() | Finished():
                return
        match sight:
            case Milestone(text=text):
                self._session.print(text)
            case Position():
                self._move(sight)
            case None:
                return

    def _move(self, position: Position) -> None:
        self._progress.update(
            self._task,
            description=printable(position.stage),
            completed=position.done,
            total=position.total,
            position="" if position.total is None else f"{position.done:g}/{position.total:g}",
            facts=printable(position.facts),
        )


def item_json(item: WatchItem[Any, Any]) -> dict[str, Any]:
    """An item in the shape of the Watch method's own messages."""
    match item:
        case Attached(status=status):
            return {"attached": {"status": MessageToDict(status)}}
        case Snapshot(resource=resource):
            return {"snapshot": MessageToDict(resource)}
        case Event(event=event):
            return {"event": MessageToDict(event)}
        case Finished(resource=resource):
            return {"finished": MessageToDict(resource)}
