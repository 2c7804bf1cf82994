"""Edits and deletions, against a real server."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

import grpc
import pytest
from sqlalchemy import select

from datasets_server import Running, begun, finished, import_request, imported
from refusals import refusal_of
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import editing_pb2, selection_pb2, versions_pb2
from sfumato.job.v1 import job_pb2
from sfumato_chassis.blobs import key_of
from sfumato_chassis.tables import blob_references

ALL = selection_pb2.SampleSelection(all=selection_pb2.AllSamples())


def named(*names: str) -> selection_pb2.SampleSelection:
    return selection_pb2.SampleSelection(names=selection_pb2.SampleNames(file_names=names))


def caption(text: str, *names: str) -> editing_pb2.Edit:
    return editing_pb2.Edit(
        samples=named(*names) if names else ALL,
        set_caption=editing_pb2.SetCaption(caption=text),
    )


def edit_request(etag: str, *edits: editing_pb2.Edit, **fields: Any) -> pb.EditDatasetRequest:
    fields.setdefault("request_id", str(uuid.uuid4()))
    fields.setdefault("dataset", "cats")
    return pb.EditDatasetRequest(etag=etag, edits=edits, **fields)


async def dataset(server: Running, name: str = "cats") -> pb.Dataset:
    answer = await server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name=name))
    return answer.dataset


async def captions(server: Running, number: int | None = None) -> dict[str, str]:
    version = versions_pb2.VersionRef(dataset="cats", number=number)
    listed = await server.stubs.datasets.ListSamples(pb.ListSamplesRequest(version=version))
    return {sample.file_name: sample.caption for sample in listed.samples}


async def pin(server: Running, number: int = 1, holder: str = "run-1") -> None:
    await server.stubs.datasets.PinVersion(
        pb.PinVersionRequest(
            version=versions_pb2.VersionRef(dataset="cats", number=number), holder=holder
        )
    )


async def unpin(server: Running, number: int = 1, holder: str = "run-1") -> None:
    await server.stubs.datasets.UnpinVersion(
        pb.UnpinVersionRequest(
            version=versions_pb2.VersionRef(dataset="cats", number=number), holder=holder
        )
    )


@pytest.fixture
async def cats(server: Running) -> pb.Dataset:
    end = await imported(server.stubs, "cats")
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED
    return await dataset(server)


async def test_an_edit_is_one_new_version_and_leaves_the_old_one(
    server: Running, cats: pb.Dataset
) -> None:
    before = await captions(server)
    tags = editing_pb2.Edit(
        samples=named("picture_0002.png"), set_tags=editing_pb2.TagList(tags=["x", "y"])
    )
    answer = await server.stubs.datasets.EditDataset(
        edit_request(cats.etag, caption("new", "picture_0001.png"), tags)
    )
    assert (answer.version.number, answer.num_samples_changed) == (2, 2)
    assert answer.dataset.latest_version == answer.version
    assert answer.version.created_by.startswith("edit-")
    assert answer.dataset.etag != cats.etag
    assert await dataset(server) == answer.dataset
    assert await captions(server) == {**before, "picture_0001.png": "new"}
    assert await captions(server, 1) == before


async def test_an_edit_of_what_has_changed_is_aborted(server: Running, cats: pb.Dataset) -> None:
    await server.stubs.datasets.EditDataset(edit_request(cats.etag, caption("first")))
    refusal = await refusal_of(
        server.stubs.datasets.EditDataset(edit_request(cats.etag, caption("second")))
    )
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.ABORTED, "ETAG_MISMATCH")
    assert set((await captions(server)).values()) == {"first"}


async def test_of_twenty_edits_at_once_one_is_done(server: Running, cats: pb.Dataset) -> None:
    requests = [edit_request(cats.etag, caption(f"number {n}")) for n in range(20)]
    answers = await asyncio.gather(
        *(server.stubs.datasets.EditDataset(request) for request in requests),
        return_exceptions=True,
    )
    done = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert len(done) == 1
    assert (await dataset(server)).latest_version.number == 2


async def test_the_same_request_again_makes_nothing_new(server: Running, cats: pb.Dataset) -> None:
    request = edit_request(cats.etag, caption("once"))
    answers = await asyncio.gather(*(server.stubs.datasets.EditDataset(request) for _ in range(20)))
    assert {answer.version.number for answer in answers} == {2}
    assert {answer.num_samples_changed for answer in answers} == {3}
    assert sorted(answer.deduplicated for answer in answers) == [False] + [True] * 19
    request.edits[0].set_caption.caption = "twice"
    refusal = await refusal_of(server.stubs.datasets.EditDataset(request))
    assert refusal.reason == "REQUEST_ID_REUSED"


async def test_what_changes_nothing_makes_no_version(server: Running, cats: pb.Dataset) -> None:
    nothing = editing_pb2.Edit(
        samples=ALL, replace_text=editing_pb2.ReplaceText(find="zebra", replacement="x")
    )
    answer = await server.stubs.datasets.EditDataset(edit_request(cats.etag, nothing))
    assert (answer.version.number, answer.num_samples_changed) == (1, 0)
    tried = await server.stubs.datasets.EditDataset(
        edit_request(cats.etag, caption("x"), validate_only=True)
    )
    assert (tried.version.number, tried.num_samples_changed) == (1, 3)
    assert await dataset(server) == cats


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (editing_pb2.Edit(samples=ALL), "edits[0].action"),
        (
            editing_pb2.Edit(
                samples=selection_pb2.SampleSelection(), remove=editing_pb2.RemoveSamples()
            ),
            "edits[0].samples.selection",
        ),
        (
            editing_pb2.Edit(
                samples=selection_pb2.SampleSelection(filter=selection_pb2.SampleFilter()),
                remove=editing_pb2.RemoveSamples(),
            ),
            "edits[0].samples.filter",
        ),
        (editing_pb2.Edit(samples=ALL, add_suffix="x" * 8190), "edits[0]"),
        (
            editing_pb2.Edit(samples=ALL, add_tags=editing_pb2.TagList(tags=["a\nb"])),
            "edits[0].add_tags.tags[0]",
        ),
    ],
)
async def test_a_bad_edit_is_refused_by_field(
    server: Running, cats: pb.Dataset, edit: editing_pb2.Edit, field: str
) -> None:
    refusal = await refusal_of(server.stubs.datasets.EditDataset(edit_request(cats.etag, edit)))
    assert (refusal.code, list(refusal.fields)) == (grpc.StatusCode.INVALID_ARGUMENT, [field])
    assert await dataset(server) == cats


async def test_what_is_not_there_is_not_found(server: Running, cats: pb.Dataset) -> None:
    refusal = await refusal_of(
        server.stubs.datasets.EditDataset(edit_request(cats.etag, caption("x", "zebra.png")))
    )
    assert refusal.resource == ("sample", "zebra.png")
    refusal = await refusal_of(
        server.stubs.datasets.EditDataset(edit_request("x", caption("x"), dataset="dogs"))
    )
    assert refusal.resource == ("dataset", "dogs")


async def test_while_an_import_holds_the_dataset_nothing_else_writes(
    held: tuple[Running, Path],
) -> None:
    server, gate = held
    gate.touch()
    await imported(server.stubs, "cats")
    gate.unlink()
    cats = await dataset(server)
    created = await server.stubs.datasets.CreateImport(
        import_request("cats", mode="IMPORT_MODE_ADD")
    )
    await begun(server, created.import_job.name)
    for call in (
        server.stubs.datasets.EditDataset(edit_request(cats.etag, caption("x"))),
        server.stubs.datasets.DeleteDataset(pb.DeleteDatasetRequest(name="cats")),
        server.stubs.datasets.CreateImport(import_request("cats", mode="IMPORT_MODE_ADD")),
    ):
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.ABORTED, "DATASET_BUSY")
        assert refusal.details == {"holder": created.import_job.name}
    gate.touch()
    await finished(server.stubs, created.import_job.name)
    await server.stubs.datasets.EditDataset(
        edit_request((await dataset(server)).etag, caption("x"))
    )


async def test_a_dataset_is_removed_with_all_its_versions(
    server: Running, cats: pb.Dataset
) -> None:
    first = cats.latest_version.created_by
    await server.stubs.datasets.EditDataset(edit_request(cats.etag, caption("x")))
    refusal = await refusal_of(
        server.stubs.datasets.DeleteDataset(pb.DeleteDatasetRequest(name="cats", etag=cats.etag))
    )
    assert refusal.reason == "ETAG_MISMATCH"
    answer = await server.stubs.datasets.DeleteDataset(pb.DeleteDatasetRequest(name="cats"))
    assert not answer.pending
    refusal = await refusal_of(server.stubs.datasets.GetDataset(pb.GetDatasetRequest(name="cats")))
    assert refusal.code == grpc.StatusCode.NOT_FOUND
    # The import that made it is still told of, without what is gone; and its name is free.
    old = await finished(server.stubs, first)
    assert not old.HasField("version")
    again = await imported(server.stubs, "cats")
    assert again.version.number == 1


async def test_one_version_is_removed_and_its_number_not_used_again(
    server: Running, cats: pb.Dataset
) -> None:
    def version(number: int, **fields: Any) -> versions_pb2.DeleteDatasetVersionRequest:
        reference = versions_pb2.VersionRef(dataset="cats", number=number)
        return versions_pb2.DeleteDatasetVersionRequest(version=reference, **fields)

    stubs = server.stubs.datasets
    refusal = await refusal_of(stubs.DeleteDatasetVersion(version(1)))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "VERSION_IS_LATEST",
    )
    edited = await stubs.EditDataset(edit_request(cats.etag, caption("second")))
    await stubs.DeleteDatasetVersion(version(1))
    assert (await refusal_of(stubs.DeleteDatasetVersion(version(1)))).reason == "RESOURCE_NOT_FOUND"
    assert set((await captions(server)).values()) == {"second"}
    third = await stubs.EditDataset(edit_request(edited.dataset.etag, caption("third")))
    assert third.version.number == 3


async def test_what_a_run_has_pinned_stays_and_names_the_run(
    server: Running, cats: pb.Dataset
) -> None:
    await pin(server)
    before = await captions(server, 1)
    stubs = server.stubs.datasets
    edited = await stubs.EditDataset(edit_request(cats.etag, caption("x")))
    reference = versions_pb2.VersionRef(dataset="cats", number=1)
    for call in (
        stubs.DeleteDataset(pb.DeleteDatasetRequest(name="cats")),
        stubs.DeleteDatasetVersion(versions_pb2.DeleteDatasetVersionRequest(version=reference)),
    ):
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "RESOURCE_PINNED",
        )
        assert refusal.details == {"holder": "run-1", "version": "1"}
        assert "run-1" in refusal.message
    assert await captions(server, 1) == before
    assert await dataset(server) == edited.dataset


async def test_a_deferred_deletion_waits_for_the_last_pin(
    server: Running, cats: pb.Dataset
) -> None:
    await pin(server, holder="run-1")
    await pin(server, holder="run-2")
    stubs = server.stubs.datasets
    answer = await stubs.DeleteDataset(pb.DeleteDatasetRequest(name="cats", after_use=True))
    assert answer.pending
    marked = await dataset(server)
    assert marked.deletion_pending
    for call in (
        stubs.EditDataset(edit_request(marked.etag, caption("x"))),
        stubs.CreateImport(import_request("cats", mode="IMPORT_MODE_ADD")),
        stubs.PinVersion(
            pb.PinVersionRequest(
                version=versions_pb2.VersionRef(dataset="cats", number=1), holder="run-3"
            )
        ),
    ):
        refusal = await refusal_of(call)
        assert (refusal.code, refusal.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "DELETION_PENDING",
        )
    await pin(server, holder="run-1")  # who has it keeps it
    await unpin(server, holder="run-1")
    assert len(await captions(server)) == 3
    await unpin(server, holder="run-2")
    refusal = await refusal_of(stubs.GetDataset(pb.GetDatasetRequest(name="cats")))
    assert refusal.code == grpc.StatusCode.NOT_FOUND


async def test_a_deferred_deletion_of_one_version(server: Running, cats: pb.Dataset) -> None:
    await pin(server)
    stubs = server.stubs.datasets
    await stubs.EditDataset(edit_request(cats.etag, caption("x")))
    answer = await stubs.DeleteDatasetVersion(
        versions_pb2.DeleteDatasetVersionRequest(
            version=versions_pb2.VersionRef(dataset="cats", number=1), after_use=True
        )
    )
    assert answer.pending
    listed = await stubs.ListDatasetVersions(pb.ListDatasetVersionsRequest(dataset="cats"))
    assert [version.deletion_pending for version in listed.versions] == [False, True]
    await unpin(server)
    listed = await stubs.ListDatasetVersions(pb.ListDatasetVersionsRequest(dataset="cats"))
    assert [version.number for version in listed.versions] == [2]


async def test_what_only_removed_versions_kept_is_collected(
    server: Running, cats: pb.Dataset
) -> None:
    listed = await server.stubs.datasets.ListSamples(
        pb.ListSamplesRequest(version=versions_pb2.VersionRef(dataset="cats"))
    )
    gone, *kept = [sample.image.digest for sample in listed.samples]
    remove = editing_pb2.Edit(samples=named("picture_0000.png"), remove=editing_pb2.RemoveSamples())
    await server.stubs.datasets.EditDataset(edit_request(cats.etag, remove))
    references = await referenced(server)
    assert gone in references
    await server.stubs.datasets.DeleteDatasetVersion(
        versions_pb2.DeleteDatasetVersionRequest(
            version=versions_pb2.VersionRef(dataset="cats", number=1)
        )
    )
    references = await referenced(server)
    assert gone not in references
    assert set(kept) <= references
    await server.stubs.datasets.DeleteDataset(pb.DeleteDatasetRequest(name="cats"))
    assert await referenced(server) == set()
    assert (server.platform.blobs.folder.root / key_of(gone)).is_file()


async def referenced(server: Running) -> set[str]:
    return set(
        await server.platform.database.read(
            lambda connection: connection.execute(select(blob_references.c.digest)).scalars().all()
        )
    )
