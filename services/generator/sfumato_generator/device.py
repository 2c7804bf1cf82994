"""The device and the worker process on it: the lease is held for as long as the process lives."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from sfumato_chassis.background import BackgroundTasks, keep_running
from sfumato_chassis.clock import Clock
from sfumato_chassis.leases import RENEWAL_SECONDS, Held, Lease, LeaseStore, device_key
from sfumato_chassis.logging import get_logger
from sfumato_chassis.worker_channel import WorkerChannel, WorkerHandle

HOLDER = "generator"
PURPOSE = "resident"
WORKER_MODULE = "sfumato_generator.worker"
POLL_SECONDS = 0.5
GOODBYE_SECONDS = 5.0

log = get_logger(__name__)


class Device:
    """One device of this machine.

    Attributes:
        worker: The process on it; None when the device is left to others.
        wanted_by: Who asked for it while it was held.
    """

    def __init__(
        self,
        name: str,
        channel: WorkerChannel,
        leases: LeaseStore,
        *,
        clock: Clock,
        lease: timedelta,
        log_folder: Path,
        configuration: Mapping[str, Any],
        on_change: Callable[[], None],
    ) -> None:
        """
        Args:
            name: ``cpu`` or ``cuda:<n>``.
            lease: How long its lease lasts without being renewed; longer than a worker can.
            log_folder: Of the worker's log.
            configuration: What the worker needs.
            on_change: Called when the worker is gone and when somebody wants the device.
        """
        self.name = name
        self.worker: WorkerHandle | None = None
        self.wanted_by: str | None = None
        self._key = device_key(name)
        self._channel = channel
        self._leases = leases
        self._clock = clock
        self._lease = lease
        self._log_folder = log_folder
        self._configuration = configuration
        self._on_change = on_change
        self._attendance: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()

    async def clear(self) -> None:
        """Gives back what an earlier life of this service held."""
        await self._leases.release(self._key, HOLDER)

    async def foreign_holder(self) -> str | None:
        """Who else has the device, or is about to get it."""
        lease = await self._leases.get(self._key)
        if lease is None:
            return None
        return lease.wanted_by if lease.holder == HOLDER else lease.holder

    async def occupy(self) -> WorkerHandle:
        """The worker on the device, started if there is none.

        Raises:
            Held: Somebody else has the device; it is marked as wanted.
            OSError: No process could be started.
        """
        if self.worker is not None:
            return self.worker
        await self._acquire()
        try:
            worker = await self._channel.launch(
                WORKER_MODULE, self._configuration, log_folder=self._log_folder
            )
        except BaseException:
            await self._leases.release(self._key, HOLDER)
            raise
        self.worker, self.wanted_by = worker, None
        self._attendance = self._background.spawn(self._attend(worker))
        return worker

    async def leave(self, command: str, *, within_seconds: float = GOODBYE_SECONDS) -> None:
        """Sends the worker away with ``stop`` or ``drain`` and gives the device back.

        Args:
            within_seconds: How long the worker may take; then it is ended.
        """
        await self._part_with_worker(command, within_seconds)

    async def end(self) -> None:
        """Ends the worker at once and gives the device back."""
        await self._part_with_worker("drain", 0.0)

    async def _part_with_worker(self, command: str, within_seconds: float) -> None:
        if self.worker is None or self._attendance is None:
            return
        self._channel.send_away(self.worker, command, within_seconds=within_seconds)
        await asyncio.wait([self._attendance])

    async def _acquire(self) -> Lease:
        return await self._leases.acquire(self._key, HOLDER, PURPOSE, duration=self._lease)

    async def _attend(self, worker: WorkerHandle) -> None:
        """Stays until the worker is gone, then gives the device back."""
        keeping = keep_running("device lease", lambda: self._keep_lease(worker), self._clock)
        renewing = self._background.spawn(keeping)
        try:
            await self._channel.wait_gone(worker)
        except BaseException:
            # Nobody would notice its end any more, so it must not go on.
            await self._channel.end(worker)
            raise
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            try:
                await self._leases.release(self._key, HOLDER)
            finally:
                self.worker = None
                self._on_change()

    async def _keep_lease(self, worker: WorkerHandle) -> None:
        """Renews the lease and looks who wants the device; a worker that lost it comes to rest."""
        renewal = self._clock.monotonic()
        try:
            while True:
                lease = await self._leases.get(self._key)
                if lease is None or self._clock.monotonic() >= renewal:
                    lease = await self._acquire()
                    renewal = self._clock.monotonic() + RENEWAL_SECONDS
                if lease.holder != HOLDER:
                    raise Held(lease)
                if lease.wanted_by != self.wanted_by:
                    self.wanted_by = lease.wanted_by
                    self._on_change()
                await self._clock.sleep(POLL_SECONDS)
        except Held as held:
            log.error("device lost", worker=worker.worker_id, holder=held.lease.holder)
            await self.leave("drain")
