"""How long a worker goes on, and what ends one that does not come to rest."""

import asyncio
import os
import signal
import time
from pathlib import Path

from sfumato_chassis.executor import LocalExecutor
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.process import is_alive
from sfumato_chassis.worker_session import EXIT_LAPSED
from tiny_worker import EXIT_DRAINED
from worker_channels import (
    LEASE_SECONDS,
    OpenChannel,
    Reports,
    data_of,
    exit_code,
    launch,
    running_job,
    seen,
)

SHORT_LEASE_SECONDS = 4.0
"""The first lasts from the launch: on a busy machine, too, a worker must be there within it."""


async def test_a_worker_that_is_stopped_loses_its_lease_and_is_ended(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=SHORT_LEASE_SECONDS, rest_seconds=0.5)
    handle = await launch(
        channel, tmp_path, "emit_steps", job, num_steps=10_000, step_seconds=0.002
    )
    await seen(store, job, "step", 10)
    waiting = asyncio.ensure_future(channel.wait_gone(handle))
    done, _ = await asyncio.wait([waiting], timeout=SHORT_LEASE_SECONDS + 0.6)
    assert not done, "a worker that answers keeps its lease"
    os.kill(handle.process.pid, signal.SIGSTOP)
    await asyncio.wait_for(waiting, 20)
    assert not is_alive(handle.process)


async def test_a_worker_whose_lease_has_lapsed_has_its_time_to_come_to_rest(
    store: JobStore, open_channel: OpenChannel, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=0.2, rest_seconds=LEASE_SECONDS)
    handle = await launch(channel, tmp_path, "ignore_orders", job)
    await seen(store, job, "ready", 1)
    os.kill(handle.process.pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(channel.wait_gone(handle))
    lapsed = handle.deadline - time.monotonic() + 0.3
    done, _ = await asyncio.wait([waiting], timeout=lapsed)
    assert not done
    assert is_alive(handle.process)
    waiting.cancel()


async def test_a_worker_that_need_not_outlive_its_service_ends_with_it(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "follow_orders", job, outlives_service=False)
    await seen(store, job, "ready", 1)
    await channel.stop()
    assert await asyncio.to_thread(exit_code, handle, executor) == 0


async def test_a_worker_alone_drains_when_its_lease_ends(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=SHORT_LEASE_SECONDS)
    handle = await launch(channel, tmp_path, "follow_orders", job)
    await seen(store, job, "ready", 1)
    await channel.stop()
    assert await asyncio.to_thread(exit_code, handle, executor) == EXIT_DRAINED


async def test_a_worker_that_does_not_come_to_rest_ends_itself(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=SHORT_LEASE_SECONDS, rest_seconds=0.2)
    handle = await launch(channel, tmp_path, "ignore_orders", job)
    await seen(store, job, "ready", 1)
    await channel.stop()
    assert await asyncio.to_thread(exit_code, handle, executor) == EXIT_LAPSED


async def test_a_worker_that_is_sent_away_and_does_not_go_is_ended(
    store: JobStore, open_channel: OpenChannel, executor: LocalExecutor, tmp_path: Path
) -> None:
    job = await running_job(store)
    channel, _ = await open_channel()
    handle = await launch(channel, tmp_path, "ignore_orders", job)
    await seen(store, job, "ready", 1)
    waiting = asyncio.ensure_future(channel.wait_gone(handle))
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    channel.send_away(handle, "drain", within_seconds=0.1)
    channel.send_away(handle, "drain", within_seconds=LEASE_SECONDS)  # the shorter time counts
    await asyncio.wait_for(waiting, 20)
    assert not is_alive(handle.process)


async def test_a_service_that_cannot_take_a_report_is_still_there(
    store: JobStore, open_channel: OpenChannel, reports: Reports, tmp_path: Path
) -> None:
    """Also for a worker that would end with its service."""
    job = await running_job(store)
    channel, _ = await open_channel()
    reports.broken = True
    handle = await launch(channel, tmp_path, "follow_orders", job, outlives_service=False)
    async with asyncio.timeout(20):
        for _ in range(3):
            await reports.num_failed.acquire()
    reports.broken = False
    await seen(store, job, "ready", 1)
    assert is_alive(handle.process)


async def test_a_service_that_cannot_take_reports_renews_the_lease_all_the_same(
    store: JobStore, open_channel: OpenChannel, reports: Reports, tmp_path: Path
) -> None:
    """At both ends: neither does the worker come to rest nor is it ended."""
    job = await running_job(store)
    channel, _ = await open_channel(lease_seconds=SHORT_LEASE_SECONDS, rest_seconds=0.5)
    reports.broken = True
    handle = await launch(channel, tmp_path, "follow_orders", job)
    waiting = asyncio.ensure_future(channel.wait_gone(handle))
    await asyncio.wait_for(reports.num_failed.acquire(), 20)
    until = time.monotonic() + SHORT_LEASE_SECONDS + 1.0
    while time.monotonic() < until:
        await asyncio.wait_for(reports.num_failed.acquire(), 20)
    reports.broken = False
    await seen(store, job, "ready", 1)
    assert await data_of(store, job, "ordered") == []
    assert not waiting.done()
    waiting.cancel()
