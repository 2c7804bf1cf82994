"""The durable store of jobs and their event logs.

An append is one transaction: it checks the fence and that the job has not ended, numbers the events
without a gap, derives the state from them and lets the service update its own tables. Nobody sees an
event before that transaction is committed.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, delete, insert, select, update

from sfumato_chassis.clock import Clock
from sfumato_chassis.database import Database
from sfumato_chassis.errors import FailedPrecondition, NotFound, Reason
from sfumato_chassis.identifiers import NewName
from sfumato_chassis.job_queries import find_job, jobs_in_states, select_events, select_job_page
from sfumato_chassis.job_rows import (
    event_row,
    expired_job,
    failure_after,
    next_ordinal,
    num_queued,
    to_job,
    update_row,
)
from sfumato_chassis.jobs import (
    ACTIVE,
    ENDED,
    NOT_ENDED,
    Event,
    InterruptionPolicy,
    Job,
    JobKind,
    JobState,
    NewEvent,
    number_events,
    state_after,
)
from sfumato_chassis.paging import Page
from sfumato_chassis.requests import (
    KnownRequest,
    Request,
    expire_request,
    find_request,
    record_request,
)
from sfumato_chassis.tables import job_events, jobs
from sfumato_chassis.wakeups import Wakeups

Result = TypeVar("Result")


class Fenced(Exception):
    """The writer does not hold the job any more: another attempt does, or the job has ended."""


def nothing_more(connection: Connection, job: Job) -> None:
    """For an append that stands alone."""
    del connection, job


class JobStore:
    """Jobs of one kind.

    Args:
        on_queue: Called after a commit by which a job was queued, claimed or has ended.
    """

    def __init__(
        self,
        database: Database,
        kind: JobKind,
        *,
        clock: Clock,
        new_name: NewName,
        wakeups: Wakeups,
        on_queue: Callable[[], None],
    ) -> None:
        self._database = database
        self._kind = kind
        self._clock = clock
        self._new_name = new_name
        self.wakeups = wakeups
        self._on_queue = on_queue
        self._commits: set[asyncio.Task[Any]] = set()

    async def create(
        self,
        request: Request,
        *,
        policy: InterruptionPolicy,
        add: Callable[[Connection, Job], None],
    ) -> tuple[Job, bool]:
        """Makes a queued job, or finds the one that this request made before.

        Args:
            request: Who asks for what, under which request id.
            policy: What happens when its process dies.
            add: Writes the service's own row, in the same transaction.

        Returns:
            The job, and whether it was there before.

        Raises:
            AlreadyExists: REQUEST_ID_REUSED.
        """

        def work(connection: Connection) -> tuple[Job, bool]:
            known = find_request(connection, request)
            if known is not None:
                return self._created(connection, request, known), True
            job = self._insert(connection, request.principal, policy)
            record_request(connection, request, job.name, self._clock.now())
            add(connection, job)
            queued = NewEvent(kind="queued", data={"position": job.queue_position})
            return self._append(connection, job, [queued]), False

        return await self._commit(work, lambda made: made[0])

    async def find_created(self, request: Request) -> Job | None:
        """The job that ``request`` made when it came before, if it did. Raises AlreadyExists."""

        def work(connection: Connection) -> Job | None:
            known = find_request(connection, request)
            return None if known is None else self._created(connection, request, known)

        return await self._database.read(work)

    async def get(self, name: str, owner: str) -> Job:
        """The job ``name`` of ``owner``.

        Raises:
            NotFound: RESOURCE_NOT_FOUND, or JOB_EXPIRED for one whose record was removed.
        """
        return await self._database.read(lambda connection: self.find(connection, name, owner))

    async def read(
        self, name: str, owner: str, also: Callable[[Connection, Job], Result]
    ) -> tuple[Job, Result]:
        """A job and what ``also`` reads of it, from one transaction. Raises NotFound."""

        def work(connection: Connection) -> tuple[Job, Result]:
            job = self.find(connection, name, owner)
            return job, also(connection, job)

        return await self._database.read(work)

    def find(self, connection: Connection, name: str, owner: str) -> Job:
        """Like :meth:`get`, inside a transaction."""
        return find_job(connection, self._kind.name, name, owner)

    def select_page(
        self, connection: Connection, owner: str, *, size: int, token: str
    ) -> Page[Job]:
        """A page of ``owner``'s jobs, newest first, inside a transaction."""
        return select_job_page(connection, self._kind.name, owner, size=size, token=token)

    async def in_states(self, *states: JobState) -> Sequence[Job]:
        """All jobs in one of ``states``, oldest first."""
        return await self._database.read(lambda c: jobs_in_states(c, self._kind.name, *states))

    async def events(
        self, name: str, after_sequence: int, tell: Callable[[Event], Any] = lambda event: event
    ) -> Sequence[Any]:
        """What ``tell`` makes of the next events of the log, a few hundred at most."""
        return await self._database.read(
            lambda c: [tell(event) for event in select_events(c, name, after_sequence)]
        )

    async def claim(self, name: str, started: NewEvent) -> Job:
        """Begins the next attempt: counts it, takes a new fence and appends ``started``.

        Raises:
            Fenced: The job is not queued any more.
        """

        def work(connection: Connection) -> Job:
            job = self._require(connection, name)
            if job.state is not JobState.QUEUED:
                raise Fenced(name)
            claimed = replace(job, attempt=job.attempt + 1, fence=job.fence + 1, queue_position=0)
            connection.execute(
                update(jobs)
                .where(jobs.c.name == name)
                .values(
                    attempt=claimed.attempt,
                    fence=claimed.fence,
                    worker_local_number=0,
                    queue_position=0,
                )
            )
            event = NewEvent(kind="started", data={"attempt": claimed.attempt, **started.data})
            return self._append(connection, claimed, [event])

        claimed = await self._commit(work, lambda claimed: claimed)
        self._on_queue()
        return claimed

    async def append(
        self,
        name: str,
        events: Sequence[NewEvent],
        *,
        fence: int | None = None,
        states: Collection[JobState] = NOT_ENDED,
        also: Callable[[Connection, Job], None] = nothing_more,
    ) -> Job:
        """Appends events that the service itself has to tell.

        Args:
            name: The job.
            events: In order. The state follows from them.
            fence: When given, the fence that the job must still have.
            states: One of these the job must be in.
            also: What the service writes in the same transaction, after the events.

        Raises:
            Fenced: Another attempt holds the job, or it is in another state.
        """

        def work(connection: Connection) -> Job:
            job = self._require(connection, name)
            if job.state not in states or fence not in {None, job.fence}:
                raise Fenced(name)
            appended = self._append(connection, job, events)
            also(connection, appended)
            return appended

        return await self._commit(work, lambda appended: appended)

    async def append_from_worker(
        self, name: str, fence: int, numbered: Sequence[tuple[int, NewEvent]]
    ) -> tuple[Job, int]:
        """Appends a worker's events once each, however often it sends them.

        An end that comes after a Cancel was acknowledged ends the job CANCELLED.

        Args:
            name: The job.
            fence: The fence that the worker was started with.
            numbered: Events with the worker's own numbers, ascending.

        Returns:
            The job, and the worker's number up to which everything is in the log.

        Raises:
            Fenced: Another attempt holds the job, or it has ended.
        """

        def work(connection: Connection) -> tuple[Job, int]:
            row = connection.execute(select(jobs).where(jobs.c.name == name)).one_or_none()
            if row is None or row.fence != fence:
                raise Fenced(name)
            job, known = to_job(row), row.worker_local_number
            fresh = [(number, event) for number, event in numbered if number > known]
            if not fresh:
                return job, known
            if job.ended:
                raise Fenced(name)
            known = fresh[-1][0]
            connection.execute(
                update(jobs).where(jobs.c.name == name).values(worker_local_number=known)
            )
            return self._append(connection, job, [event for _, event in fresh]), known

        return await self._commit(work, lambda appended: appended[0])

    async def update_queue(self) -> Sequence[Job]:
        """Numbers the queue anew, tells every job whose position changed, answers the queue in order."""
        touched: list[str] = []

        def work(connection: Connection) -> Sequence[Job]:
            waiting = jobs_in_states(connection, self._kind.name, JobState.QUEUED)
            for position, job in enumerate(waiting, start=1):
                if job.queue_position != position:
                    connection.execute(
                        update(jobs).where(jobs.c.name == job.name).values(queue_position=position)
                    )
                    event = NewEvent(kind="queued", data={"position": position})
                    self._append(connection, replace(job, queue_position=position), [event])
                    touched.append(job.name)
            return waiting

        waiting = await self._database.write(work)
        for name in touched:
            self.wakeups.notify(name)
        return waiting

    async def delete(
        self, name: str, owner: str, *, remove: Callable[[Connection, Job], None]
    ) -> None:
        """Removes an ended job and its log; its request id goes on answering.

        Raises:
            NotFound: No such job.
            FailedPrecondition: JOB_STATE_UNSUITABLE, it has not ended.
        """

        def work(connection: Connection) -> Job:
            job = self.find(connection, name, owner)
            if not job.ended:
                raise FailedPrecondition(
                    Reason.JOB_STATE_UNSUITABLE,
                    f"{name} is {job.state.value}; cancel it first",
                    details={"state": job.state.value},
                )
            self._remove(connection, job, remove, deleted=True)
            return job

        await self._commit(work, lambda removed: removed)

    async def purge(self, *, remove: Callable[[Connection, Job], None]) -> int:
        """Removes every job whose retention has passed; answers how many."""

        expired = select(jobs).where(
            jobs.c.kind == self._kind.name, jobs.c.expire_time <= self._clock.now()
        )

        def work(connection: Connection) -> int:
            rows = connection.execute(expired).all()
            for row in rows:
                self._remove(connection, to_job(row), remove, deleted=False)
            return len(rows)

        return await self._database.write(work)

    async def _commit(
        self, work: Callable[[Connection], Result], job_of: Callable[[Result], Job]
    ) -> Result:
        """Writes and tells those who wait, also when the caller goes away in between."""

        async def commit() -> Result:
            result = await self._database.write(work)
            job = job_of(result)
            self.wakeups.notify(job.name)
            if job.ended or job.state is JobState.QUEUED:
                self._on_queue()
            return result

        task = asyncio.ensure_future(commit())
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)
        return await asyncio.shield(task)

    def _remove(
        self,
        connection: Connection,
        job: Job,
        remove: Callable[[Connection, Job], None],
        *,
        deleted: bool,
    ) -> None:
        remove(connection, job)
        expire_request(connection, job.name, self._clock.now(), deleted=deleted)
        connection.execute(delete(jobs).where(jobs.c.name == job.name))

    def _created(self, connection: Connection, request: Request, known: KnownRequest) -> Job:
        if known.expired:
            return expired_job(
                self._kind.name, known.resource, request.principal, known.create_time
            )
        return self._require(connection, known.resource)

    def _require(self, connection: Connection, name: str) -> Job:
        row = connection.execute(select(jobs).where(jobs.c.name == name)).one_or_none()
        if row is None:
            raise NotFound.resource(self._kind.name, name)
        return to_job(row)

    def _insert(self, connection: Connection, owner: str, policy: InterruptionPolicy) -> Job:
        job = Job(
            name=self._new_name(self._kind.prefix),
            ordinal=next_ordinal(connection),
            kind=self._kind.name,
            owner=owner,
            state=JobState.QUEUED,
            interruption_policy=policy,
            failure=None,
            log_id=self._new_name("log"),
            first_sequence=1,
            last_sequence=0,
            attempt=0,
            fence=0,
            queue_position=num_queued(connection, self._kind.name) + 1,
            create_time=self._clock.now(),
            start_time=None,
            end_time=None,
            expire_time=None,
        )
        connection.execute(insert(jobs).values(**asdict(job), worker_local_number=0))
        return job

    def _append(self, connection: Connection, job: Job, events: Sequence[NewEvent]) -> Job:
        now = self._clock.now()
        numbered = number_events(job, events, now)
        state, failure = job.state, job.failure
        for event in numbered:
            if state in ENDED:
                raise Fenced(f"{job.name}: {event.kind} after its end")
            state, failure = state_after(state, event), failure_after(failure, event)
        ended = state in ENDED
        job = replace(
            job,
            state=state,
            failure=failure,
            last_sequence=numbered[-1].sequence,
            start_time=job.start_time or (now if state in ACTIVE else None),
            end_time=now if ended else None,
            expire_time=now + self._kind.retention if ended and self._kind.retention else None,
            queue_position=job.queue_position if state is JobState.QUEUED else 0,
        )
        update_row(connection, job)
        connection.execute(insert(job_events), [event_row(job.name, event) for event in numbered])
        self._kind.project(connection, job, numbered)
        return job
