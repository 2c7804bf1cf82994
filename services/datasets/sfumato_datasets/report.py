"""What the thread of an import tells the service."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields

from sfumato_chassis.job_store import Fenced
from sfumato_chassis.jobs import NewEvent
from sfumato_datasets.notes import ImportNote, IngestProgress


class Report:
    """What an import's thread has to tell, collected until the loop takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: list[ImportNote] = []
        self._progress: IngestProgress | None = None
        self._taking = asyncio.Lock()
        self.cancelled = threading.Event()

    def note(self, note: ImportNote) -> None:
        """Called by the thread."""
        with self._lock:
            self._notes.append(note)

    def progress(self, progress: IngestProgress) -> None:
        """Called by the thread."""
        with self._lock:
            self._progress = progress

    @asynccontextmanager
    async def taking(self) -> AsyncIterator[Sequence[NewEvent]]:
        """The events since the last time: every note, and the newest progress.

        Whoever takes them appends them within; nobody else takes any meanwhile. Where that fails they
        are there again, unless the log takes no more.
        """
        async with self._taking:
            with self._lock:
                notes, progress = self._notes, self._progress
                self._notes, self._progress = [], None
            try:
                yield events_of(notes, progress)
            except Fenced:
                raise
            except BaseException:
                with self._lock:
                    self._notes[:0] = notes
                    self._progress = self._progress or progress
                raise


def events_of(notes: Sequence[ImportNote], progress: IngestProgress | None) -> list[NewEvent]:
    """What is taken, as events."""
    events = [NewEvent(kind="note", data=note_data(note)) for note in notes]
    if progress is not None:
        data = {field.name: getattr(progress, field.name) for field in fields(progress)}
        events.append(NewEvent(kind="progress", data=data))
    return events


def note_data(note: ImportNote) -> dict[str, object]:
    """A note as an event's data."""
    return {
        "file_name": note.file_name,
        "refused": note.refused,
        "reason": note.reason,
        "message": note.message,
    }
