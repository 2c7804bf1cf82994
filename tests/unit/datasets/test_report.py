"""What an import tells is told once, whatever fails on the way."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from sfumato_chassis.job_store import Fenced
from sfumato_datasets.notes import ImportNote, IngestProgress
from sfumato_datasets.report import Report


def note(name: str) -> ImportNote:
    return ImportNote(file_name=name, refused=True, reason="FILE_EMPTY", message="is empty")


def progress(done: int) -> IngestProgress:
    return IngestProgress(num_files_done=done, num_files=9, num_bytes_done=0)


async def told(report: Report) -> list[object]:
    async with report.taking() as events:
        return [event.data.get("file_name", event.data.get("num_files_done")) for event in events]


async def fail_to_tell(report: Report, meanwhile: Callable[[], None]) -> None:
    with suppress(OSError):
        async with report.taking():
            meanwhile()
            raise OSError("no space")


async def test_what_could_not_be_written_is_there_again_in_its_order() -> None:
    report = Report()
    report.note(note("a"))
    report.progress(progress(1))
    await fail_to_tell(report, lambda: report.note(note("b")))
    assert await told(report) == ["a", "b", 1]
    assert await told(report) == []


async def test_newer_progress_stands() -> None:
    report = Report()
    report.progress(progress(1))
    await fail_to_tell(report, lambda: report.progress(progress(2)))
    assert await told(report) == [2]


async def test_what_a_closed_log_does_not_take_is_given_up() -> None:
    report = Report()
    report.note(note("a"))
    with pytest.raises(Fenced):
        async with report.taking():
            raise Fenced
    assert await told(report) == []


async def test_one_takes_after_another() -> None:
    report = Report()
    report.note(note("a"))
    async with report.taking() as first:
        other = asyncio.create_task(told(report))
        await asyncio.sleep(0)
        report.note(note("b"))
        assert (len(first), other.done()) == (1, False)
    assert await other == ["b"]
