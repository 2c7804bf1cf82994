"""What the thread of an import tells the service."""

import asyncio
import threading
from dataclasses import fields

from sfumato_chassis.jobs import NewEvent
from sfumato_datasets.notes import ImportNote, IngestProgress


class Report:
    """What an import's thread has to tell, collected until the loop takes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._notes: list[ImportNote] = []
        self._progress: IngestProgress | None = None
        self.cancelled = threading.Event()
        self.appending = asyncio.Lock()
        """Held from a take until its events are in the log, so that none is lost and none overtakes."""

    def note(self, note: ImportNote) -> None:
        """Called by the thread."""
        with self._lock:
            self._notes.append(note)

    def progress(self, progress: IngestProgress) -> None:
        """Called by the thread."""
        with self._lock:
            self._progress = progress

    def take(self) -> list[NewEvent]:
        """The events since the last take: every note, and the newest progress."""
        with self._lock:
            notes, progress = self._notes, self._progress
            self._notes, self._progress = [], None
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
