"""What tests of the worker channel do with it: launch `tiny_worker`, see what it tells."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from job_stores import create
from sfumato_chassis.executor import LocalExecutor
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import Job, NewEvent
from sfumato_chassis.worker_channel import WorkerChannel, WorkerHandle

LEASE_SECONDS = 20.0
STARTED = NewEvent(kind="started")
OpenChannel = Callable[..., Awaitable[tuple[WorkerChannel, Sequence[WorkerHandle]]]]


class Reports:
    """How reports are taken: as they should be, or not at all while `broken`."""

    def __init__(self) -> None:
        self.broken = False
        self.num_failed = asyncio.Semaphore(0)


async def launch(
    channel: WorkerChannel,
    tmp_path: Path,
    part: str,
    job: Job | None = None,
    *,
    outlives_service: bool = True,
    **settings: Any,
) -> WorkerHandle:
    name, fence = (job.name, job.fence) if job else ("", 0)
    return await channel.launch(
        "tiny_worker",
        {
            "part": part,
            "outlives_service": outlives_service,
            "job": name,
            "fence": fence,
            **settings,
        },
        log_folder=tmp_path / "workers",
        job=name or None,
        fence=fence,
    )


async def running_job(store: JobStore) -> Job:
    return await store.claim((await create(store)).name, STARTED)


async def data_of(store: JobStore, job: Job, kind: str) -> list[Any]:
    events, after = [], 0
    while found := await store.events(job.name, after):
        events += [event.data for event in found if event.kind == kind]
        after = found[-1].sequence
    return events


async def seen(store: JobStore, job: Job, kind: str, count: int) -> list[Any]:
    """The data of events of a kind, once there are so many."""
    async with asyncio.timeout(20):
        while True:
            wakeup = store.wakeups.take(job.name)
            data = await data_of(store, job, kind)
            if len(data) >= count:
                store.wakeups.drop(job.name, wakeup)
                return data
            await wakeup.wait()


def exit_code(handle: WorkerHandle, executor: LocalExecutor) -> int:
    return vars(executor)["_children"][handle.process.pid].wait(20)
