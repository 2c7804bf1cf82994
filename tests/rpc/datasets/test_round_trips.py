"""What an export holds, an import of it gives again."""

import json
import uuid
from pathlib import Path

import pytest

from datasets_server import Running, finished, imported, upload
from pictures import write_pictures
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import export_pb2, imports_pb2, versions_pb2
from sfumato.job.v1 import job_pb2

METADATA = (
    {"file_name": "0.png", "text": ["a cat", "its fur"], "tags": ["indoor", "größe"]},
    {"file_name": "1.png", "text": "zwei\nZeilen", "tags": []},
)


async def samples(server: Running, dataset: str) -> list[pb.Sample]:
    request = pb.ListSamplesRequest(version=versions_pb2.VersionRef(dataset=dataset))
    return list((await server.stubs.datasets.ListSamples(request)).samples)


@pytest.mark.parametrize(
    "format", [export_pb2.EXPORT_FORMAT_ZIP, export_pb2.EXPORT_FORMAT_WEBDATASET]
)
async def test_captions_variants_and_tags_come_back(
    server: Running, root: Path, format: export_pb2.ExportFormat.ValueType
) -> None:
    folder = root / "described"
    write_pictures(folder, 4)
    for sidecar in folder.glob("*.txt"):
        sidecar.unlink()
    names = sorted(path.name for path in folder.iterdir())
    rows = [{**row, "file_name": name} for row, name in zip(METADATA, names, strict=False)]
    (folder / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / names[2]).with_suffix(".txt").write_text("")
    made = await imported(server.stubs, "described", "first", all_captions=True)
    assert made.status.state == job_pb2.JOB_STATE_SUCCEEDED, made.notes
    before = await samples(server, "first")
    assert [list(sample.caption_variants) for sample in before[:2]] == [["its fur"], []]
    assert list(before[0].tags) == ["indoor", "größe"]

    chunks = [
        message.chunk
        async for message in server.stubs.datasets.ExportVersion(
            export_pb2.ExportVersionRequest(
                version=versions_pb2.VersionRef(dataset="first"), format=format
            )
        )
    ]
    digest = await upload(server.stubs, b"".join(chunks))
    created = await server.stubs.datasets.CreateImport(
        imports_pb2.CreateImportRequest(
            request_id=str(uuid.uuid4()),
            dataset="second",
            all_captions=True,
            archive=imports_pb2.ArchiveSource(
                files=[imports_pb2.UploadedFile(file_name="archive", digest=digest)]
            ),
        )
    )
    again = await finished(server.stubs, created.import_job.name)
    assert again.status.state == job_pb2.JOB_STATE_SUCCEEDED, again.notes
    after = await samples(server, "second")
    for old, new in zip(before, after, strict=True):
        for field in ("file_name", "image", "caption", "caption_variants", "tags"):
            assert getattr(old, field) == getattr(new, field)
    # That a sample is meant to have no caption comes back too.
    assert after[2].caption_source == before[2].caption_source == "sidecar.txt"
