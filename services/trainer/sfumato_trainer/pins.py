"""Keeps the dataset versions that runs read from being deleted."""

from collections.abc import Awaitable, Callable

from sfumato_chassis.clock import Clock
from sfumato_chassis.errors import SfumatoError
from sfumato_chassis.job_store import JobStore
from sfumato_chassis.jobs import ACTIVE, Job, JobState
from sfumato_chassis.logging import get_logger
from sfumato_trainer.dataset_reader import DatasetReader
from sfumato_trainer.storage import Run

RENEWALS_PER_PIN = 3

log = get_logger(__name__)


class Pins:
    """The pins of all runs that have not ended.

    Args:
        datasets: The datasets service.
        jobs: The runs' jobs.
        run_of: Reads the run of a job by its name.
        seconds: How long a pin lasts without being renewed.
    """

    def __init__(
        self,
        datasets: DatasetReader,
        jobs: JobStore,
        run_of: Callable[[str], Awaitable[Run]],
        *,
        seconds: float,
    ) -> None:
        self._datasets = datasets
        self._jobs = jobs
        self._run_of = run_of
        self._seconds = seconds

    async def keep(self, clock: Clock) -> None:
        """Renews every pin in time, until cancelled."""
        while True:
            for job in await self._jobs.in_states(JobState.QUEUED, *ACTIVE):
                await self.hold(job)
            await clock.sleep(self._seconds / RENEWALS_PER_PIN)

    async def hold(self, job: Job) -> None:
        """Pins the version of a run, or renews its pin; a failure is logged and tried again later."""
        run = await self._run_of(job.name)
        try:
            await self._datasets.pin(
                run.owner, run.dataset, run.dataset_version, holder=job.name, seconds=self._seconds
            )
        except SfumatoError as error:
            log.warning("dataset version not pinned", job=job.name, reason=error.reason)

    async def release(self, job: Job) -> None:
        """Gives the version of an ended run back; a pin that is left lapses by itself."""
        run = await self._run_of(job.name)
        try:
            await self._datasets.unpin(run.owner, run.dataset, run.dataset_version, holder=job.name)
        except SfumatoError as error:
            log.warning("dataset version not unpinned", job=job.name, reason=error.reason)
