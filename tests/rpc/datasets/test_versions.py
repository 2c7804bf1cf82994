"""What is read of versions: filters, statistics, duplicates, differences, thumbnails, exports."""

import io
import json
import uuid
import zipfile
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

from datasets_server import Running, finished, imported, upload
from refusals import refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import (
    editing_pb2,
    export_pb2,
    imports_pb2,
    selection_pb2,
    statistics_pb2,
    versions_pb2,
)
from sfumato.job.v1 import job_pb2
from sfumato_chassis.blobs import key_of

LATEST = versions_pb2.VersionRef(dataset="photos")
FORMATS = [export_pb2.EXPORT_FORMAT_ZIP, export_pb2.EXPORT_FORMAT_WEBDATASET]


def photo(seed: int, width: int = 320, height: int = 200) -> Image.Image:
    """Smooth shapes that `seed` decides: perceptual hashes tell them apart."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 8, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, format: str = "jpeg", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


FILES = {
    "a.jpg": encoded(photo(1)),
    "a copy.jpg": encoded(photo(1)),
    "a small.webp": encoded(photo(1, 160, 100), "webp", quality=70),
    "b.png": encoded(photo(2, 200, 320), "png"),
    "c.jpg": encoded(photo(3)),
    "dötted.name.png": encoded(photo(4), "png"),
    "a.txt": "A red Fox",
    "a copy.txt": "a blue bird",
    "b.txt": "",
    "metadata.jsonl": "\n".join(
        json.dumps(row)
        for row in (
            {"file_name": "c.jpg", "text": "a fox in a box"},
            {"file_name": "dötted.name.png", "text": "größer\nzwei Zeilen"},
        )
    ),
}


@pytest.fixture
async def photos(server: Running, root: Path) -> pb.Dataset:
    (root / "photos").mkdir()
    for name, content in FILES.items():
        data = content.encode() if isinstance(content, str) else content
        (root / "photos" / name).write_bytes(data)
    end = await imported(server.stubs, "photos", "photos")
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.notes
    answer = await server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="photos"))
    return answer.dataset


async def samples(server: Running, dataset: str = "photos", **fields: Any) -> list[pb.Sample]:
    found: list[pb.Sample] = []
    request = pb.ListSamplesRequest(version=versions_pb2.VersionRef(dataset=dataset), **fields)
    while True:
        page = await server.stubs.datasets.ListSamples(request)
        found += page.samples
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


@pytest.mark.parametrize(
    ("fitting", "expected"),
    [
        ({"caption_contains": "FOX"}, ["a.jpg", "c.jpg"]),
        ({"caption_contains": "GRÖSSER"}, ["dötted.name.png"]),
        ({"missing_caption": True}, ["a small.webp", "b.png"]),
        ({"missing_caption": True, "caption_contains": "fox"}, []),
        ({"tag": "nothing"}, []),
    ],
)
@pytest.mark.parametrize("size", [1, 50])
async def test_samples_are_listed_by_what_they_are(
    server: Running, photos: pb.Dataset, fitting: dict[str, Any], expected: list[str], size: int
) -> None:
    found = await samples(server, filter=selection_pb2.SampleFilter(**fitting), page_size=size)
    assert [sample.file_name for sample in found] == expected


async def test_a_page_token_belongs_to_its_filter(server: Running, photos: pb.Dataset) -> None:
    page = await server.stubs.datasets.ListSamples(
        pb.ListSamplesRequest(version=LATEST, page_size=1)
    )
    request = pb.ListSamplesRequest(
        version=LATEST,
        page_token=page.next_page_token,
        filter=selection_pb2.SampleFilter(tag="x"),
    )
    refusal = await refusal_of(server.stubs.datasets.ListSamples(request))
    assert refusal.reason == "PAGE_TOKEN_INVALID"


async def test_statistics_say_what_is_in_a_version(server: Running, photos: pb.Dataset) -> None:
    answer = await server.stubs.datasets.GetVersionStatistics(
        statistics_pb2.GetVersionStatisticsRequest(version=LATEST)
    )
    said = answer.statistics
    assert said.version == photos.latest_version
    assert (said.width.count, said.width.minimum, said.width.maximum) == (6, 160, 320)
    assert said.width.mean == pytest.approx((4 * 320 + 160 + 200) / 6)
    assert said.width.median == 320
    assert sum(each.count for each in said.aspect.bins) == 6
    assert said.caption_characters.count == 4
    assert said.caption_characters.maximum == len("größer\nzwei Zeilen")
    assert dict(said.media_types) == {"image/jpeg": 3, "image/png": 2, "image/webp": 1}
    assert (said.num_duplicate_groups, said.num_near_duplicate_groups) == (1, 1)
    assert [table.resolution for table in said.bucket_tables] == [512, 768, 1024]
    assert sum(bucket.num_samples for bucket in said.bucket_tables[0].buckets) == 6


async def test_duplicates_are_named(server: Running, photos: pb.Dataset) -> None:
    def request(kind: int | None = None) -> statistics_pb2.ListDuplicatesRequest:
        return statistics_pb2.ListDuplicatesRequest(version=LATEST, kind=kind)

    same = await server.stubs.datasets.ListDuplicates(request())
    assert [list(group.file_names) for group in same.groups] == [["a copy.jpg", "a.jpg"]]
    near = await server.stubs.datasets.ListDuplicates(request(statistics_pb2.DUPLICATE_KIND_NEAR))
    assert [list(group.file_names) for group in near.groups] == [["a copy.jpg", "a small.webp"]]
    assert near.groups[0].num_samples == 2


async def test_a_difference_names_what_became_of_each_sample(
    server: Running, photos: pb.Dataset
) -> None:
    def names(*file_names: str) -> selection_pb2.SampleSelection:
        return selection_pb2.SampleSelection(names=selection_pb2.SampleNames(file_names=file_names))

    await server.stubs.datasets.EditDataset(
        pb.EditDatasetRequest(
            request_id=str(uuid.uuid4()),
            dataset="photos",
            etag=photos.etag,
            edits=[
                editing_pb2.Edit(samples=names("b.png"), remove=editing_pb2.RemoveSamples()),
                editing_pb2.Edit(
                    samples=names("c.jpg"), set_caption=editing_pb2.SetCaption(caption="new")
                ),
            ],
        )
    )
    request = pb.DiffVersionsRequest(dataset="photos", base=1, page_size=1)
    first = await server.stubs.datasets.DiffVersions(request)
    assert (first.num_added, first.num_removed, first.num_changed) == (0, 1, 1)
    assert (first.base.number, first.target.number) == (1, 2)
    request.page_token = first.next_page_token
    second = await server.stubs.datasets.DiffVersions(request)
    assert not second.next_page_token
    removed, changed = first.differences[0], second.differences[0]
    assert (removed.file_name, removed.HasField("target")) == ("b.png", False)
    assert (changed.base.caption, changed.target.caption) == ("a fox in a box", "new")
    back = await server.stubs.datasets.DiffVersions(
        pb.DiffVersionsRequest(dataset="photos", base=2, target=1)
    )
    assert (back.num_added, back.num_removed, back.num_changed) == (1, 0, 1)
    refusal = await refusal_of(
        server.stubs.datasets.DiffVersions(pb.DiffVersionsRequest(dataset="photos", base=9))
    )
    assert refusal.code == grpc.StatusCode.NOT_FOUND


async def test_thumbnails_are_small_and_only_the_owners(
    server: Running, photos: pb.Dataset
) -> None:
    digest = (await samples(server))[2].image.digest
    for size, side in ((None, 256), ("THUMBNAIL_SIZE_SMALL", 128), ("THUMBNAIL_SIZE_LARGE", 320)):
        answer = await server.stubs.datasets.GetThumbnail(
            export_pb2.GetThumbnailRequest(image_digest=digest, size=size)
        )
        with Image.open(io.BytesIO(answer.data)) as image:
            assert image.size == (answer.width, answer.height)
            assert Image.MIME[str(image.format)] == answer.media_type
            assert max(image.size) == side
        assert len(answer.data) <= 64 << 10
    request = export_pb2.GetThumbnailRequest(image_digest=digest)
    refusal = await refusal_of(
        server.stubs.datasets.GetThumbnail(request, metadata=[("x-sfumato-principal", "another")])
    )
    assert refusal.resource == ("image", digest)


async def export(
    server: Running, format: int, dataset: str = "photos", offset: int = 0
) -> tuple[export_pb2.ExportedArchive, bytes]:
    request = export_pb2.ExportVersionRequest(
        version=versions_pb2.VersionRef(dataset=dataset), format=format, offset=offset
    )
    messages = [message async for message in server.stubs.datasets.ExportVersion(request)]
    data = b"".join(message.chunk for message in messages[1:])
    assert all(len(message.chunk) <= 1 << 20 for message in messages)
    return messages[0].archive, data


@pytest.mark.parametrize("format", FORMATS)
async def test_an_export_goes_on_at_any_offset(
    server: Running, photos: pb.Dataset, format: int
) -> None:
    archive, data = await export(server, format)
    assert archive.size_bytes == len(data)
    assert archive.version == photos.latest_version
    for offset in (1, 1000, len(data) // 2, len(data) - 1, len(data)):
        rest, tail = await export(server, format, offset=offset)
        assert rest == archive
        assert tail == data[offset:]
    request = export_pb2.ExportVersionRequest(version=LATEST, format=format, offset=len(data) + 1)
    refusal = await refusal_of(server.stubs.datasets.ExportVersion(request))
    assert refusal.reason == "OFFSET_OUT_OF_RANGE"


@pytest.mark.parametrize("format", FORMATS)
async def test_what_was_exported_is_imported_again_as_it_was(
    server: Running, photos: pb.Dataset, format: int
) -> None:
    archive, data = await export(server, format)
    request = imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()),
        dataset="again",
        archive=imports_pb2.ArchiveSource(
            files=[
                imports_pb2.UploadedFile(
                    file_name=archive.file_name, digest=await upload(server.stubs, data)
                )
            ]
        ),
    )
    created = await server.stubs.datasets.CreateImport(request)
    end = await finished(server.stubs, created.import_job.name)
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, (end.status.error, end.notes)
    again = {sample.image.digest: sample for sample in await samples(server, "again")}
    before = await samples(server)
    assert len(await samples(server, "again")) == len(before)
    for sample in before:
        assert again[sample.image.digest].width == sample.width
        if sample.file_name not in {"a.jpg", "a copy.jpg"}:  # one image under two captions
            assert again[sample.image.digest].caption == sample.caption
            assert bool(again[sample.image.digest].caption_source) == bool(sample.caption_source)
    if format == export_pb2.EXPORT_FORMAT_ZIP:
        names = [sample.file_name for sample in await samples(server, "again")]
        assert names == [sample.file_name for sample in before]
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            assert opened.testzip() is None


@pytest.mark.parametrize("format", FORMATS)
async def test_a_damaged_image_is_never_exported(
    server: Running, photos: pb.Dataset, format: int
) -> None:
    digest = (await samples(server))[2].image.digest
    path = server.platform.blobs.folder.root / key_of(digest)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    request = export_pb2.ExportVersionRequest(version=LATEST, format=format)
    refusal = await refusal_of(server.stubs.datasets.ExportVersion(request))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.DATA_LOSS, "BLOB_CORRUPT")


async def test_examples_are_listed_with_their_licences(server: Running) -> None:
    answer = await server.stubs.datasets.ListExamples(export_pb2.ListExamplesRequest())
    assert {example.hub_id: example.max_samples for example in answer.examples} == {
        "diffusers/dog-example": 10,
        "linoyts/Tuxemon": 60,
        "multimodalart/1920-raider-waite-tarot-public-domain": 60,
        "huggan/smithsonian_butterflies_subset": 100,
        "m1guelpf/nouns": 100,
    }
    assert all(example.licence and example.source_page for example in answer.examples)
    request = imports_pb2.CreateImportRequest(
        request_id=str(uuid.uuid4()),
        dataset="x",
        example=imports_pb2.ExampleSource(name="no such"),
    )
    refusal = await refusal_of(server.stubs.datasets.CreateImport(request))
    assert list(refusal.fields) == ["example.name"]
