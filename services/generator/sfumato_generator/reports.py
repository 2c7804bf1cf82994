"""What the worker reports, appended to the log of the generation that it is about."""

from collections.abc import Sequence

from sfumato_chassis.database import Database
from sfumato_chassis.errors import NotFound
from sfumato_chassis.job_store import Fenced, JobStore
from sfumato_chassis.jobs import NewEvent
from sfumato_chassis.logging import get_logger
from sfumato_generator import storage
from sfumato_generator.gallery import Gallery

Numbered = tuple[int, NewEvent]
"""An event with the worker's own number."""

log = get_logger(__name__)


class Reports:
    """Appends reports."""

    def __init__(self, database: Database, jobs: JobStore, gallery: Gallery) -> None:
        self._database = database
        self._jobs = jobs
        self._gallery = gallery

    async def append(self, name: str, fence: int, events: Sequence[Numbered]) -> int:
        """Appends ``events`` once each, however often they are reported.

        What is told of a generation that is over or removed is dropped and acknowledged: the worker
        has others to do.

        Returns:
            The worker's number up to which nothing has to be reported again.

        Raises:
            Fenced: The generation was given to another worker.
        """
        try:
            return await self._append(name, fence, events)
        except NotFound:
            log.info("report of a removed generation dropped", job=name)
        return max((number for number, _ in events), default=0)

    async def _append(self, name: str, fence: int, events: Sequence[Numbered]) -> int:
        record = await self._database.read(
            lambda connection: storage.get_generation(connection, name)
        )
        acknowledged = 0
        for batch in batches(events):
            completed = [
                (number, self._gallery.completed(event, record)) for number, event in batch
            ]
            try:
                _, acknowledged = await self._jobs.append_from_worker(name, fence, completed)
            except Fenced:
                job = await self._jobs.get(name, record.owner)
                if job.fence != fence:
                    raise
                log.info("report of an ended generation dropped", job=name)
                acknowledged = batch[-1][0]
        return acknowledged


def batches(events: Sequence[Numbered]) -> Sequence[Sequence[Numbered]]:
    """Splits events so that each image is appended on its own and has a time of its own."""
    split: list[list[Numbered]] = [[]]
    for numbered in events:
        if numbered[1].kind == "image_saved" and split[-1]:
            split.append([])
        split[-1].append(numbered)
    return split
