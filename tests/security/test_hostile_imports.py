"""Whatever is imported, by whatever way, is answered as documented, file by file."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from datasets_server import Running, running
from hostile_archive_cases import archive_cases, metadata_cases
from hostile_archives import tar_of, zip_of
from hostile_images import file_cases
from hostile_imports import (
    STOP,
    failure_of,
    import_archive,
    import_files,
    import_folder,
    listing,
    reasons_of,
)
from hostile_names import NameCase, good_files, name_cases
from pictures import picture
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2, versions_pb2
from sfumato_datasets.notes import printable_name

WAYS = ["upload", "zip", "tar", "folder"]
NUM_AT_ONCE = 8


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    (tmp_path / "root").mkdir()
    overrides = {"datasets.import_roots": (tmp_path / "root",)}
    async with running(tmp_path / "data", overrides=overrides) as started:
        yield started


async def imported_by(
    way: str, server: Running, root: Path, files: Mapping[bytes, bytes], **options: int
) -> imports_pb2.Import:
    """Imports the same files by an upload, an archive or from a folder."""
    if way == "upload":
        named = [(name.decode(), data) for name, data in files.items()]
        return await import_files(server.stubs, "hostile", named, **options)
    if way == "folder":
        folder = root / "hostile"
        folder.mkdir()
        for name, data in files.items():
            Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(data)
        return await import_folder(server.stubs, "hostile", "hostile", **options)
    make = zip_of if way == "zip" else tar_of
    archive = make(list(files.items()))
    return await import_archive(server.stubs, "hostile", archive, **options)


def differing(found: Mapping[str, object], expected: Mapping[str, object]) -> dict[str, object]:
    """What was found and what was expected of each case where these differ."""
    assert found.keys() == expected.keys()
    return {
        name: (answer, expected[name]) for name, answer in found.items() if answer != expected[name]
    }


async def samples_of(server: Running, dataset: str) -> dict[str, str]:
    """File name to caption of everything that a dataset holds."""
    version = versions_pb2.VersionRef(dataset=dataset)
    request = pb.ListSamplesRequest(version=version, page_size=200)
    answer = await server.stubs.datasets.ListSamples(request)
    assert not answer.next_page_token
    return {sample.file_name: sample.caption for sample in answer.samples}


@pytest.mark.parametrize("way", WAYS)
async def test_every_hostile_file_has_its_answer(way: str, server: Running, tmp_path: Path) -> None:
    cases = file_cases()
    files = {name.encode(): data for name, data in good_files().items()}
    for case in cases:
        files[case.file_name.encode()] = case.data
        files |= {name.encode(): data for name, data in case.beside.items()}
    ended = await imported_by(way, server, tmp_path / "root", files)
    assert failure_of(ended) == ""
    reasons = reasons_of(ended)
    samples = await samples_of(server, "hostile")
    expected = {case.name: ({case.reason} - {""}, case.accepted) for case in cases}
    found = {
        case.name: (reasons.get(case.file_name, set()), case.file_name in samples) for case in cases
    }
    assert differing(found, expected) == {}
    assert samples["good.png"] == "a good one"
    assert samples["with_mark.png"] == "a dog"
    assert samples["windows_lines.png"] == "a dog\non a mat"
    assert samples["two_captions.png"] == "first"
    for case in cases:
        for sidecar in case.beside:
            if not case.accepted:
                assert reasons[sidecar] == {case.reason}


def names_by(way: str) -> list[NameCase]:
    """The cases whose names this way can carry."""
    cases = name_cases()
    if way == "upload":
        return [case for case in cases if case.fits_an_upload]
    return [case for case in cases if way != "folder" or case.fits_a_folder]


@pytest.mark.parametrize("way", WAYS)
async def test_every_hostile_name_has_its_answer(way: str, server: Running, tmp_path: Path) -> None:
    cases = names_by(way)
    files = {name.encode(): data for name, data in good_files().items()}
    files |= {case.raw: picture(index + 10) for index, case in enumerate(cases)}
    ended = await imported_by(way, server, tmp_path / "root", files)
    assert failure_of(ended) == ""
    reasons = reasons_of(ended)
    found = {case.name: reasons.get(printable_name(case.text)) for case in cases}
    expected = {case.name: {case.reason} for case in cases}
    assert differing(found, expected) == {}
    assert await samples_of(server, "hostile") == {"good.png": "a good one"}
    assert len(cases) >= 20


async def test_names_longer_than_a_message_take_nothing_down(server: Running) -> None:
    names = [b"%d" % index + b"\x01" * 60_000 + b".png" for index in range(600)]
    files = [(name, b"") for name in names] + [(b"good.png", picture(1))]
    ended = await import_archive(server.stubs, "long", zip_of(files))
    assert failure_of(ended) == ""
    assert {note.reason for note in ended.notes} == {"NAME_UNSAFE"}
    assert max(len(note.file_name) for note in ended.notes) <= 300


@pytest.mark.parametrize("way", WAYS)
async def test_the_first_hostile_file_stops_an_import_that_is_to_stop(
    way: str, server: Running, tmp_path: Path
) -> None:
    for case in file_cases():
        if case.reason in ("IMAGE_TRUNCATED", "CAPTION_ENCODING"):
            break
    files = {b"good.png": picture(1), case.file_name.encode(): case.data}
    ended = await imported_by(way, server, tmp_path / "root", files, policy=STOP)
    assert failure_of(ended) == "FILES_REFUSED"
    assert case.file_name in ended.status.error.message
    listed = await server.stubs.datasets.ListDatasets(pb.ListDatasetsRequest())
    assert not listed.datasets


async def test_every_hostile_archive_has_its_answer(server: Running, tmp_path: Path) -> None:
    cases = archive_cases()
    slots = asyncio.Semaphore(NUM_AT_ONCE)
    outside = listing(tmp_path / "root")

    async def answer(index: int) -> tuple[str, dict[str, set[str]]]:
        async with slots:
            ended = await import_archive(server.stubs, f"archive{index}", cases[index].data)
            if failure_of(ended).startswith("ARCHIVE"):
                assert ended.status.error.message.startswith("pictures.bin: "), cases[index].name
            return failure_of(ended), reasons_of(ended)

    answers = await asyncio.gather(*map(answer, range(len(cases))))
    found = {case.name: answer for case, answer in zip(cases, answers, strict=True)}
    expected = {
        case.name: (case.failure, {name: {reason} for name, reason in case.notes.items()})
        for case in cases
    }
    assert differing(found, expected) == {}
    for index, case in enumerate(cases):
        if not case.failure:
            samples = await samples_of(server, f"archive{index}")
            assert "good.png" in samples, case.name
            assert not set(samples) & set(case.notes), case.name
    assert listing(tmp_path / "root") == outside
    assert not list((tmp_path / "data" / "staging").iterdir())


async def test_every_hostile_metadata_file_has_its_answer(server: Running) -> None:
    cases = metadata_cases()
    slots = asyncio.Semaphore(NUM_AT_ONCE)

    async def answer(index: int) -> tuple[str, set[str]]:
        case = cases[index]
        files = [("good.png", picture(1)), (case.file_name, case.data)]
        async with slots:
            ended = await import_files(server.stubs, f"metadata{index}", files)
        return failure_of(ended), reasons_of(ended).get(case.file_name, set())

    answers = await asyncio.gather(*map(answer, range(len(cases))))
    found = {case.name: answer for case, answer in zip(cases, answers, strict=True)}
    expected = {
        case.name: ("FILES_REFUSED" if case.fails else "", {case.reason} - {""}) for case in cases
    }
    assert differing(found, expected) == {}
