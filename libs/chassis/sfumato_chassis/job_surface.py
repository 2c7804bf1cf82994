"""The methods that every kind of job has, over the wire: Get, List, Wait, Watch."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from google.protobuf.message import Message
from sqlalchemy import Connection

from sfumato.job.v1 import job_pb2
from sfumato_chassis import watching
from sfumato_chassis.job_messages import (
    WaitRequest,
    WatchRequest,
    cursor_of,
    duration,
    job_status,
    wait_seconds,
)
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import Event, Job, JobState
from sfumato_chassis.paging import page_size, rows_that_fit
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform

ResourceT = TypeVar("ResourceT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class ListRequest(Protocol):
    """What the requests of all lists have in common."""

    page_size: int
    page_token: str


class NamedWaitRequest(WaitRequest, Protocol):
    """What the requests of all waits have in common."""

    name: str


class JobSurface(Generic[ResourceT]):
    """Jobs of one kind as their callers see them. Every answer is read in one transaction.

    Args:
        resource_type: The message of the whole resource; has ``name``, ``owner`` and ``status``.
        resource: Reads a job's resource.
        listed: Reads what a list shows of it; the resource if not given.
        event: The service's message of an event.
        succeeded: The same for the event that tells of the result, which stands in the resource.
    """

    def __init__(
        self,
        platform: Platform,
        store: JobStore,
        resource_type: Callable[..., ResourceT],
        *,
        resource: Callable[[Connection, Job], ResourceT],
        listed: Callable[[Connection, Job], ResourceT] | None = None,
        event: Callable[[Event], Message],
        succeeded: Callable[[Event, ResourceT], Message] | None = None,
    ) -> None:
        self._platform = platform
        self._store = store
        self._resource_type = resource_type
        self._resource = resource
        self._listed = listed or resource
        self._event = event
        self._succeeded = succeeded

    async def get(self, name: str) -> ResourceT:
        """The resource of a job of the caller's. Raises NotFound."""
        _, resource = await self._store.read(name, current_principal().name, self._resource)
        return resource

    async def of(self, job: Job) -> ResourceT:
        """The resource of a job that was just made or changed; of an expired one, what is left."""
        if job.state is JobState.EXPIRED:
            return self._resource_type(name=job.name, owner=job.owner, status=job_status(job))
        _, resource = await self._store.read(job.name, job.owner, self._resource)
        return resource

    async def list(self, request: ListRequest) -> tuple[list[ResourceT], str]:
        """A page of the caller's resources and the token of the next. Raises PAGE_TOKEN_INVALID."""
        owner, size = current_principal().name, page_size(request.page_size)

        def work(connection: Connection) -> tuple[list[ResourceT], str]:
            select = partial(self._store.select_page, connection, owner, token=request.page_token)
            page = select(size=size)
            resources = [self._listed(connection, job) for job in page.rows]
            fitting = rows_that_fit(resources, lambda resource: resource.ByteSize())
            if len(fitting) < len(resources):
                page = select(size=len(fitting))
            return list(fitting), page.next_page_token

        return await self._platform.database.read(work)

    async def wait(self, request: NamedWaitRequest) -> ResourceT:
        """The resource when the job has ended or the time is up. Raises NotFound, Unavailable."""
        job = await watching.wait_until_ended(
            self._store,
            request.name,
            current_principal().name,
            timeout_seconds=wait_seconds(request),
            draining=self._platform.draining,
        )
        return await self.of(job)

    async def watch(
        self, request: WatchRequest, response: Callable[..., ResponseT]
    ) -> AsyncIterator[ResponseT]:
        """Yields the responses of a watch; all watches have the same fields.

        Raises:
            NotFound: No such job.
            OutOfRange: EVENT_LOG_CHANGED.
        """
        limits = self._platform.watch_limits
        messages = watching.watch(
            self._store,
            request.name,
            current_principal().name,
            cursor_of(request),
            resource=self._resource,
            tell=partial(self._tell, response),
            clock=self._platform.clock,
            limits=limits,
            draining=self._platform.draining,
        )
        async for message in messages:
            if isinstance(message, watching.Happened):
                for event, told in message.events:
                    if told is not None:
                        yield told
                    elif self._succeeded is not None:
                        resource = await self.get(request.name)
                        yield response(event=self._succeeded(event, resource))
            else:
                yield response(**self._field(message, limits.heartbeat_seconds))

    def _tell(self, response: Callable[..., ResponseT], event: Event) -> ResponseT | None:
        """The response for an event; None for one that needs the resource."""
        if event.kind == "succeeded" and self._succeeded is not None:
            return None
        return response(event=self._event(event))

    def _field(self, message: watching.Message, heartbeat_seconds: float) -> dict[str, Any]:
        """The field of a watch's response that carries ``message``, other than an event."""
        match message:
            case watching.Attached(job=job):
                interval = duration(heartbeat_seconds)
                attached = job_pb2.Attached(status=job_status(job), heartbeat_interval=interval)
                return {"attached": attached}
            case watching.Snapshot(resource=resource):
                return {"snapshot": resource}
            case watching.Heartbeat(delivered_sequence=delivered):
                return {"heartbeat": job_pb2.Heartbeat(delivered_sequence=delivered)}
            case watching.GoingAway(retry_after_seconds=seconds):
                return {"going_away": job_pb2.GoingAway(retry_after=duration(seconds))}
            case watching.Finished(resource=resource):
                return {"finished": resource}
            case _:
                raise TypeError(f"no field for {type(message).__name__}")
