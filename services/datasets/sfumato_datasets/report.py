"""What the thread of an import tells the service."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

from sfumato_chassis.job_store import Fenced
from sfumato_chassis.jobs import NewEvent
from sfumato_datasets.notes import ImportNote, IngestProgress


@dataclass(kw_only=True, slots=True)
class Told:
    """What has been told since the last time it was taken."""

    revision: str | None = None
    notes: list[ImportNote] = field(default_factory=list)
    progress: dict[str, int] = field(default_factory=dict)

    def before(self, later: "Told") -> "Told":
        """This, with what was told after it."""
        return Told(
            revision=later.revision or self.revision,
            notes=[*self.notes, *later.notes],
            progress={**self.progress, **later.progress},
        )

    def events(self) -> list[NewEvent]:
        """As events: every note, and only the newest progress."""
        events = [NewEvent(kind="note", data=note_data(note)) for note in self.notes]
        if self.revision is not None:
            events.insert(0, NewEvent(kind="revision_pinned", data={"revision": self.revision}))
        if self.progress:
            events.append(NewEvent(kind="progress", data=dict(self.progress)))
        return events


class Report:
    """What an import's thread has to tell, collected until the loop takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told = Told()
        self._progress: dict[str, int] = {}
        self._taking = asyncio.Lock()
        self.cancelled = threading.Event()

    def note(self, note: ImportNote) -> None:
        """Called by the thread."""
        with self._lock:
            self._told.notes.append(note)

    def progress(self, progress: IngestProgress) -> None:
        """Called by the thread."""
        self._add_figures(asdict(progress))

    def fetched(self, num_bytes_fetched: int, num_bytes_to_fetch: int) -> None:
        """Called by the thread: how much of what it fetches is here."""
        self._add_figures(
            {"num_bytes_fetched": num_bytes_fetched, "num_bytes_to_fetch": num_bytes_to_fetch}
        )

    def _add_figures(self, figures: dict[str, int]) -> None:
        with self._lock:
            self._progress |= figures
            self._told.progress = dict(self._progress)

    def pinned(self, revision: str) -> None:
        """Called by the thread: at which commit it reads."""
        with self._lock:
            self._told.revision = revision

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[list[NewEvent]]:
        """The events since the last time: every note, and the newest progress.

        Whoever takes them appends them within; nobody else takes any meanwhile. Where that fails they
        are there again, unless the log takes no more.
        """
        async with self._taking:
            with self._lock:
                told, self._told = self._told, Told()
            try:
                yield told.events()
            except Fenced:
                raise
            except BaseException:
                with self._lock:
                    self._told = told.before(self._told)
                raise


def note_data(note: ImportNote) -> dict[str, object]:
    """A note as an event's data."""
    return {
        "file_name": note.file_name,
        "refused": note.refused,
        "reason": note.reason,
        "message": note.message,
    }
