"""Queue and life of imports: each runs in a thread, from its turn to the event that ends it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from sfumato_chassis import unexpected_errors
from sfumato_chassis.background import BackgroundTasks, keep_running
from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.errors import JobFailure, NotFound, SfumatoError, server_draining
from sfumato_chassis.job_control import cancel_job, check_queue, end_attempt
from sfumato_chassis.job_queries import jobs_in_states
from sfumato_chassis.job_store import Fenced, JobStore
from sfumato_chassis.jobs import (
    ACTIVE,
    InterruptionPolicy,
    Job,
    JobKind,
    JobState,
    NewEvent,
    failed_event,
    interrupted_event,
)
from sfumato_chassis.leases import RENEWAL_SECONDS
from sfumato_chassis.logging import get_logger, log_context
from sfumato_chassis.platform import Platform
from sfumato_chassis.requests import Request
from sfumato_chassis.threads import MAX_READERS, Threads
from sfumato_chassis.worker_channel import CANCEL_SECONDS
from sfumato_datasets import import_rows
from sfumato_datasets.config import DatasetsConfig
from sfumato_datasets.import_rows import ImportRecord
from sfumato_datasets.locks import renew_lock, take_lock
from sfumato_datasets.parts import Parts
from sfumato_datasets.report import Report
from sfumato_datasets.staging import Staging

IMPORT_KIND = "import"
HOLDING = (JobState.QUEUED, *ACTIVE)
"""States in which an import holds its dataset."""
REPORT_SECONDS = 0.2
FULL_DISK_SECONDS = 1.0
"""How long to wait for space before events are written again."""

log = get_logger(__name__)


class ImportEngine:
    """Queue and work of all imports."""

    def __init__(self, platform: Platform, config: DatasetsConfig, parts: Parts) -> None:
        self._platform = platform
        self._config = config
        self._parts = parts
        self._staging = Staging(platform.data_dir)
        self._wake = asyncio.Event()
        self.jobs: JobStore = platform.job_store(
            JobKind(
                name=IMPORT_KIND,
                prefix="import",
                project=import_rows.project_import,
                retention=timedelta(hours=config.import_retention_hours),
            ),
            on_queue=self._wake.set,
        )
        self._running: dict[str, tuple[asyncio.Task[None], Report]] = {}
        self._sources = Threads("read-source", limit=MAX_READERS)
        self._imports = BackgroundTasks()
        self._cancelling = BackgroundTasks()
        self._background = BackgroundTasks()
        self._holding = BackgroundTasks()

    async def start(self) -> None:
        """Takes up what an earlier life left: its imports begin anew or end, by their policy."""
        for job in await self.jobs.in_states(*ACTIVE):
            await end_attempt(self.jobs, job.name, job.owner, end_of)
        await self._clear_staging()
        self._background.spawn(keep_running("schedule", self._schedule, self._platform.clock))
        self._holding.spawn(keep_running("hold", self._hold, self._platform.clock))

    async def _hold(self) -> None:
        """Renews the hold of every import on its dataset, for as long as this process lives."""
        while True:
            if await self.jobs.in_states(*HOLDING):
                await self._platform.database.write(self._renew)
            await self._platform.clock.sleep(RENEWAL_SECONDS)

    def _renew(self, connection: Connection) -> None:
        now = self._platform.clock.now()
        for job in jobs_in_states(connection, IMPORT_KIND, *HOLDING):
            record = import_rows.get_import(connection, job.name)
            # One that another has taken is noticed by the import when it goes on or publishes.
            renew_lock(
                connection,
                record.owner,
                record.dataset,
                holder=job.name,
                fence=record.fence,
                now=now,
            )

    async def maintain(self) -> None:
        """Removes the records of imports whose retention has passed, and what ended ones left behind."""
        await self.jobs.purge(remove=import_rows.remove_import)
        await self._clear_staging()

    async def _clear_staging(self) -> None:
        # In this order: an import that begins meanwhile is not among those that are there already.
        there = await asyncio.to_thread(self._staging.imports)
        holding = {job.name for job in await self.jobs.in_states(*HOLDING)}
        await asyncio.to_thread(self._staging.remove, set(there) - holding)

    async def drain(self) -> None:
        """Stops imports; they begin anew with the next start, or end, by their policy.

        An import that has not stopped in time, as where its folder hangs, is left behind.
        """
        now = self._platform.clock.monotonic
        rest_by = now() + self._platform.drain_limits.rest_seconds
        self._wake.set()
        await self._cancelling.cancel()  # all imports are stopped here
        # A step of the queue is finished, not broken off: what it begins must be known here.
        await self._background.rest(within_seconds=rest_by - now())
        for _, report in self._running.values():
            report.cancelled.set()
        await self._imports.rest(within_seconds=rest_by - now())
        await self._holding.cancel()
        for job in await self.jobs.in_states(*ACTIVE):
            await end_attempt(self.jobs, job.name, job.owner, end_of)

    async def create(
        self, request: Request, record: ImportRecord, policy: InterruptionPolicy
    ) -> tuple[Job, bool]:
        """Queues an import; ``record.job`` is filled in.

        Raises:
            Aborted: DATASET_BUSY, another import holds the dataset.
            FailedPrecondition: DATASET_NOT_EMPTY.
            NotFound: An upload that the import names, or its folder.
            ResourceExhausted: QUEUE_FULL.
        """
        known = await self.jobs.find_created(request)
        if known is not None:
            # Whatever became of the source since, the caller gets what the request made.
            return known, True
        await self._check_source(record)

        def add(connection: Connection, job: Job) -> None:
            self._parts.importer.check(connection, record)
            check_queue(job, self._config.max_queued_imports)
            now = self._platform.clock.now()
            lease = take_lock(connection, record.owner, record.dataset, holder=job.name, now=now)
            import_rows.insert_import(connection, replace(record, job=job.name, fence=lease.fence))
            self._platform.failpoint("import.before_create")

        created = await self.jobs.create(request, policy=policy, add=add)
        await asyncio.to_thread(self._platform.failpoint, "import.created")
        return created

    async def validate(self, record: ImportRecord) -> None:
        """Checks what ``create`` checks, and creates nothing."""
        await self._check_source(record)
        await self._platform.database.read(
            lambda connection: self._parts.importer.check(connection, record)
        )

    async def _check_source(self, record: ImportRecord) -> None:
        if record.folder is None:
            self._parts.importer.check_source(record)
        else:
            await self._sources.run(self._parts.importer.check_source, record)

    async def cancel(self, name: str, owner: str) -> Job:
        """Ends an import; nothing of it is kept. One that does not obey in time is left behind.

        Raises:
            FailedPrecondition: It has ended in another way.
        """
        job = await cancel_job(self.jobs, name, owner)
        if name in self._running:
            task, report = self._running[name]
            if not report.cancelled.is_set():
                report.cancelled.set()
                self._cancelling.spawn(self._leave_behind(job, task))
        return job

    async def _leave_behind(self, job: Job, task: asyncio.Task[None]) -> None:
        """Ends a cancelled import whose thread does not, as where its folder hangs."""
        await self._platform.clock.sleep(CANCEL_SECONDS)
        if not task.done():
            log.warning("a cancelled import goes on and is left behind", job=job.name)
            task.cancel()
            await asyncio.wait([task])
            await self._once_there_is_space(
                lambda: end_attempt(self.jobs, job.name, job.owner, end_of)
            )

    async def delete(self, name: str, owner: str) -> None:
        """Removes the record of an ended import. Raises FailedPrecondition while it has not."""
        await self.jobs.delete(name, owner, remove=import_rows.remove_import)

    async def _schedule(self) -> None:
        while not self._platform.draining.is_set():
            self._wake.clear()
            for job in await self.jobs.update_queue():
                if len(self._running) >= self._config.max_concurrent_imports:
                    break
                if job.name not in self._running:
                    await self._begin(job)
            await self._wake.wait()

    async def _begin(self, job: Job) -> None:
        try:
            claimed = await self.jobs.claim(job.name, NewEvent(kind="started"))
        except Fenced:
            return
        report = Report()
        task = self._imports.spawn(self._run(claimed, report))
        self._running[job.name] = task, report
        task.add_done_callback(lambda _: self._end(job.name))

    def _end(self, name: str) -> None:
        del self._running[name]
        self._wake.set()

    async def _run(self, job: Job, report: Report) -> None:
        with log_context(job=job.name):
            telling = asyncio.create_task(
                keep_running("report", lambda: self._tell(job, report), self._platform.clock)
            )
            try:
                end = await self._work(job, report)
                if end is not None:
                    async with report.taking() as events:
                        await self._append(job, [*events, end])
            except (Fenced, NotFound):
                log.warning("the import was over already")
            finally:
                telling.cancel()
                await asyncio.gather(telling, return_exceptions=True)

    async def _work(self, job: Job, report: Report) -> NewEvent | None:
        """Does the import; answers the event that ends it, or None when that is in the log already."""
        try:
            failure = await self._parts.importer.run(self.jobs, job, report)
            if failure is not None:
                return failed_event(failure)
            if report.cancelled.is_set():
                async with report.taking() as events:  # such as the commit at which it goes on
                    if events:
                        await self._append(job, events)
                await end_attempt(self.jobs, job.name, job.owner, end_of)
        except SfumatoError as error:
            return failed_event(JobFailure.of(error))
        except Fenced:
            # Cancelled at the last moment, or not this attempt's any more.
            current = await self.jobs.get(job.name, job.owner)
            if current.fence == job.fence:
                await self._once_there_is_space(
                    lambda: end_attempt(self.jobs, job.name, job.owner, end_of)
                )
        except Exception as error:  # noqa: BLE001 - the boundary, where it is logged
            told = unexpected_errors.report(error, "import failed unexpectedly")
            return failed_event(JobFailure.of(told))
        return None

    async def _append(self, job: Job, events: Sequence[NewEvent]) -> None:
        """Appends to the log, once there is space for it. Raises Fenced."""
        await self._once_there_is_space(lambda: self.jobs.append(job.name, events, fence=job.fence))

    async def _once_there_is_space(self, append: Callable[[], Awaitable[Job]]) -> None:
        """Appends to the log of an import.

        Without its end in the log an import would be RUNNING, and its dataset busy, until a restart.
        """
        while True:
            try:
                await append()
                return
            except OperationalError as error:
                if self._platform.draining.is_set() or not is_disk_full(error):
                    raise
                log.warning("no space for the events of the import, which waits", exc_info=error)
                await self._platform.clock.sleep(FULL_DISK_SECONDS)

    async def _tell(self, job: Job, report: Report) -> None:
        while True:
            await self._platform.clock.sleep(REPORT_SECONDS)
            try:
                async with report.taking() as events:
                    if events:
                        await self._append(job, events)
            except (Fenced, NotFound):
                report.cancelled.set()
                return


def end_of(job: Job) -> NewEvent:
    """The event of an attempt that ended without having been finished."""
    if job.state is JobState.CANCELLING:
        return NewEvent(kind="cancelled")
    return interrupted_event(job, JobFailure.of(server_draining()))
