"""Two thousand damaged files, sent to one server: each is answered, and the server stays as it was."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from datasets_server import Stubs, server_process
from hostile_imports import failure_of, import_archive, import_files, listing
from hostile_mutations import PICTURES, good_archives, good_images, good_metadata, mutated
from pictures import picture
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import imports_pb2, versions_pb2

NUM_OF_EACH_FORMAT = 150
NUM_OF_EACH_ARCHIVE = {"zip": 150, "tar": 120, "gz": 40, "bz2": 20, "xz": 20}
NUM_OF_EACH_METADATA = {"metadata.jsonl": 150, "metadata.csv": 100}
NUM_SIDECARS = 200
NUM_AT_ONCE = 4
MAX_GROWTH_BYTES = 50 << 20

FAILURES = {"", "FILES_REFUSED", "DATASET_EMPTY", "ARCHIVE_INVALID", "ARCHIVE_TOO_LARGE"}
REFUSALS = {
    *("NOT_AN_IMAGE", "IMAGE_TRUNCATED", "IMAGE_CORRUPT", "IMAGE_TOO_LARGE"),
    *("IMAGE_PIXELS_UNSUPPORTED", "FILE_UNREADABLE", "FILE_TOO_LARGE", "NAME_UNSAFE"),
    *("NAME_DUPLICATE", "NAME_COLLISION", "STEM_DUPLICATE", "MEDIA_UNSUPPORTED"),
    *("CAPTION_INVALID", "CAPTION_ENCODING", "CAPTION_TOO_LONG", "CAPTION_REFUSED"),
    "CAPTION_METADATA_INVALID",
}

Send = Callable[[Stubs], Awaitable[imports_pb2.Import]]


def resident_bytes(process_id: int) -> int:
    """What a process holds in memory."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


def outside(place: Path) -> dict[str, tuple[int, int, str]]:
    """Everything beside the data folder."""
    return {path: found for path, found in listing(place).items() if Path(path).parts[0] != "data"}


async def accepted(stubs: Stubs, dataset: str) -> set[str]:
    """The names of everything in a dataset."""
    version = versions_pb2.VersionRef(dataset=dataset)
    request = pb.ListSamplesRequest(version=version, page_size=200)
    names: set[str] = set()
    while True:
        answer = await stubs.datasets.ListSamples(request)
        names |= {sample.file_name for sample in answer.samples}
        if not answer.next_page_token:
            return names
        request.page_token = answer.next_page_token


def refusals_of(ended: imports_pb2.Import) -> Counter[str]:
    """How often each reason was given; each is one of those that are documented."""
    refused = Counter(note.reason for note in ended.notes if note.refused)
    assert refused.keys() <= REFUSALS, refused
    return refused


async def send_images(stubs: Stubs, suffix: str, data: bytes) -> Counter[str]:
    """Imports damaged pictures of one format; each is either in the version or in the report."""
    files = [
        (f"damaged_{index:03d}.{suffix}", mutated(data, f"{suffix} {index}"))
        for index in range(NUM_OF_EACH_FORMAT)
    ]
    ended = await import_files(stubs, f"images-{suffix}", [*files, ("good.png", picture(7))])
    assert failure_of(ended) == ""
    present = await accepted(stubs, f"images-{suffix}")
    refused = {note.file_name for note in ended.notes if note.refused}
    assert present | refused == {"good.png", *(name for name, _ in files)}
    assert not present & refused
    return refusals_of(ended)


async def send_sidecars(stubs: Stubs) -> Counter[str]:
    """Imports pictures with damaged captions."""
    caption = "Größe, 日本 — a dog\r\non a mat".encode() * 3
    files: list[tuple[str, bytes]] = []
    for index in range(NUM_SIDECARS):
        files.append((f"captioned_{index:03d}.png", picture(index % 4)))
        files.append((f"captioned_{index:03d}.txt", mutated(caption, f"caption {index}")))
    ended = await import_files(stubs, "sidecars", [*files, ("good.png", picture(7))])
    assert failure_of(ended) == ""
    refused = {note.file_name for note in ended.notes if note.refused}
    present = await accepted(stubs, "sidecars")
    assert len(present) - 1 + len(refused) // 2 == NUM_SIDECARS
    return refusals_of(ended)


def archives(part: slice) -> list[Send]:
    """Imports of damaged archives, one each."""
    return [
        partial(import_archive, dataset=f"{kind}-{index}", data=mutated(data, f"{kind} {index}"))
        for kind, data in good_archives().items()
        for index in range(NUM_OF_EACH_ARCHIVE[kind])[part]
    ]


def metadata(part: slice) -> list[Send]:
    """Imports of the same good pictures with damaged metadata files."""
    pictures = [(name.decode().removeprefix("set/"), data) for name, data in PICTURES]
    return [
        partial(
            import_files,
            dataset=f"{name}-{index}",
            files=[*pictures, (name, mutated(data, f"{name} {index}"))],
        )
        for name, data in good_metadata().items()
        for index in range(NUM_OF_EACH_METADATA[name])[part]
    ]


async def send_all(stubs: Stubs, sends: Sequence[Send]) -> Counter[str]:
    """Does imports, a few at once; answers how they ended."""
    slots = asyncio.Semaphore(NUM_AT_ONCE)

    async def one(send: Send) -> str:
        async with slots:
            ended = await send(stubs)
        refusals_of(ended)
        return failure_of(ended)

    ends = Counter(await asyncio.gather(*map(one, sends)))
    assert ends.keys() <= FAILURES, ends
    return ends


@pytest.mark.slow
async def test_two_thousand_damaged_files(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for name in ("beside", "temporary", "data"):
        (place / name).mkdir(parents=True)
    (place / "beside" / "sentinel.png").write_bytes(picture(1))
    environment = {"TMPDIR": str(place / "temporary"), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "server.log").open("wb") as log:
        async with server_process(place / "data", environment=environment, stderr=log.fileno()) as (
            server,
            stubs,
        ):
            before_all = outside(place)
            images = list(good_images().items())
            refused = await send_images(stubs, *images[0])
            ends = await send_all(stubs, [*archives(slice(30)), *metadata(slice(30))])
            before = resident_bytes(server.process.pid)
            for suffix, data in images[1:]:
                refused += await send_images(stubs, suffix, data)
            refused += await send_sidecars(stubs)
            ends += await send_all(stubs, [*archives(slice(30, None)), *metadata(slice(30, None))])
            growth = resident_bytes(server.process.pid) - before
            good = await import_files(stubs, "good", [("good.png", picture(99))])
            assert failure_of(good) == ""
            assert server.process.poll() is None
            assert outside(place) == before_all
    assert growth < MAX_GROWTH_BYTES
    # The damage did something, and not the same to all.
    assert len(refused) >= 5
    assert all(ends[failure] for failure in ("", "FILES_REFUSED", "ARCHIVE_INVALID"))
    log_text = (tmp_path / "server.log").read_text()
    assert "INTERNAL" not in log_text
    assert "Traceback" not in log_text
