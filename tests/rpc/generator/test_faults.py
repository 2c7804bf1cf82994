"""Workers that die, services that stop and start, a queue that survives both."""

import os
import signal

from sfumato.job.v1 import job_pb2
from sfumato_chassis.process import identify, is_alive

LONG = {"steps": 150, "count": 3, "width": 128, "height": 128}
AUTO = {"interruption_policy": "INTERRUPTION_POLICY_AUTO"}
WORKER_DIED = 130


def stepped(event):
    """Whether a step was taken."""
    return event.HasField("step")


async def kill_worker(studio):
    os.kill(await studio.worker_pid(), signal.SIGKILL)


async def test_killed_workers(studio_of):
    """The first one's generation fails; the second one's goes on with the images that are missing."""
    async with studio_of() as studio:
        manual = await studio.create(**LONG)
        automatic = await studio.create(seed=11, **LONG, **AUTO)
        await studio.until(manual.name, stepped)
        await kill_worker(studio)
        failed = await studio.ended(manual.name)
        await studio.until(automatic.name, lambda event: event.HasField("image_saved"))
        await kill_worker(studio)
        resumed = await studio.ended(automatic.name)
        events = await studio.events(automatic.name)
        undisturbed = await studio.make(seed=11, **LONG)

    assert failed.status.state == job_pb2.JOB_STATE_FAILED
    assert failed.status.error.reason == WORKER_DIED
    assert resumed.status.state == job_pb2.JOB_STATE_SUCCEEDED
    assert resumed.status.attempt == 2
    assert [image.file for image in resumed.images] == [image.file for image in undisturbed.images]
    interrupted = [event.interrupted for event in events if event.HasField("interrupted")]
    assert [(entry.attempt, entry.retrying) for entry in interrupted] == [(1, True)]
    assert [event.header.sequence for event in events] == list(range(1, len(events) + 1))


async def test_a_restarted_service_ends_what_ran_and_does_what_waited(studio_of):
    async with studio_of() as first:
        data_dir = first.platform.data_dir
        manual = await first.create(**LONG)
        waiting = await first.create(seed=3)
        await first.until(manual.name, stepped)
        worker = identify(await first.worker_pid())
    assert not is_alive(worker)
    async with studio_of(data_dir=data_dir) as second:
        interrupted = await second.ended(manual.name)
        done = await second.ended(waiting.name)
        events = await second.events(manual.name)

    assert interrupted.status.state == job_pb2.JOB_STATE_INTERRUPTED
    assert interrupted.status.error.reason == WORKER_DIED
    assert not events[-1].interrupted.retrying
    assert done.status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_what_a_killed_service_left_is_ended_at_the_next_start(studio_of):
    """A second service finds the store as a killed one leaves it, and a worker that hangs."""
    async with studio_of() as first:
        running = await first.create(**LONG)
        await first.until(running.name, stepped)
        worker = identify(await first.worker_pid())
        os.kill(worker.pid, signal.SIGSTOP)
        async with studio_of(data_dir=first.platform.data_dir) as second:
            assert not is_alive(worker)
            ended = await second.ended(running.name)

    assert ended.status.state == job_pb2.JOB_STATE_INTERRUPTED
