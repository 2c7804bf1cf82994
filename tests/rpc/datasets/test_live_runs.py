"""A dataset that is edited, and whose deletion is asked for, while a real run trains on it."""

import asyncio
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pytest

from datasets_server import Stubs, imported, running
from deployment import ServeProcess, client_of, follow_run, import_emoji, training_request
from refusals import refusal_of
from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import editing_pb2, selection_pb2, versions_pb2
from sfumato.job.v1 import job_pb2
from sfumato.trainer.v1 import trainer_pb2
from sfumato_chassis.blobs import digest_of
from sfumato_chassis.clock import ManualClock
from sfumato_chassis.failpoints import VARIABLE
from sfumato_diffusion.families.registry import build_tiny

MODEL = "tiny-z-image"
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.02


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@pytest.fixture
def serve(tmp_path: Path, gate: Path) -> Iterator[ServeProcess]:
    """Datasets and trainer, whose runs wait after their first step until the gate is there."""
    data_dir = tmp_path / "data"
    build_tiny("z-image", data_dir / "models" / MODEL)
    process = ServeProcess(
        data_dir,
        only=("datasets", "trainer"),
        environment={VARIABLE: f"train_adapter:step=hold:{gate}"},
    )
    process.start()
    yield process
    gate.touch()
    process.stop()


async def version_as_it_is(stubs: Stubs, dataset: str, number: int) -> tuple[Any, list[Any]]:
    """A version and its samples, whose bytes are read and checked."""
    found = await stubs.datasets.GetDatasetVersion(
        pb.GetDatasetVersionRequest(version=versions_pb2.VersionRef(dataset=dataset, number=number))
    )
    request = pb.StreamSamplesRequest(
        version=versions_pb2.VersionRef(dataset=dataset, number=number)
    )
    samples = [
        message.sample
        async for message in stubs.datasets.StreamSamples(request)
        if message.HasField("sample")
    ]
    for sample in samples:
        read = stubs.blobs.ReadBlob(blobs_pb2.ReadBlobRequest(digest=sample.image.digest))
        data = b"".join([part.chunk async for part in read])
        assert digest_of(data) == sample.image.digest
    return found.version, samples


async def edit(stubs: Stubs, dataset: str, samples: list[Any]) -> int:
    """Recaptions one sample and removes another; answers the number of the version that this made."""
    found = await stubs.datasets.GetDataset(pb.GetDatasetRequest(name=dataset))
    changed, removed = (
        selection_pb2.SampleSelection(
            names=selection_pb2.SampleNames(file_names=[sample.file_name])
        )
        for sample in samples[:2]
    )
    answer = await stubs.datasets.EditDataset(
        pb.EditDatasetRequest(
            request_id=str(uuid.uuid4()),
            dataset=dataset,
            etag=found.dataset.etag,
            edits=[
                editing_pb2.Edit(samples=changed, set_caption=editing_pb2.SetCaption(caption="x")),
                editing_pb2.Edit(samples=removed, remove=editing_pb2.RemoveSamples()),
            ],
        )
    )
    return answer.version.number


async def test_a_run_keeps_what_it_reads_until_it_ends(serve: ServeProcess, gate: Path) -> None:
    async with (
        client_of(serve.address) as client,
        grpc.aio.insecure_channel(serve.address) as channel,
    ):
        stubs = Stubs(channel)
        await import_emoji(client)
        before = await version_as_it_is(stubs, "emoji", 1)
        created = await client.trainer.create_training_run(training_request(model=MODEL, steps=3))
        run = created.training_run
        assert (run.dataset.version, run.dataset.digest) == (1, before[0].digest)
        deleted = False

        async def on_event(event: trainer_pb2.TrainingRunEvent) -> None:
            nonlocal deleted
            if deleted or not event.HasField("started"):
                return
            assert await edit(stubs, "emoji", before[1]) == 2
            refusal = await refusal_of(
                stubs.datasets.DeleteDataset(pb.DeleteDatasetRequest(name="emoji"))
            )
            assert (refusal.code, refusal.reason) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "RESOURCE_PINNED",
            )
            assert refusal.details == {"holder": run.name, "version": "1"}
            marked = await stubs.datasets.DeleteDataset(
                pb.DeleteDatasetRequest(name="emoji", after_use=True)
            )
            assert marked.pending
            assert await version_as_it_is(stubs, "emoji", 1) == before
            deleted = True
            gate.touch()

        _, ended = await follow_run(client, run.name, on_event)
        assert deleted
        assert ended.status.state == job_pb2.JOB_STATE_SUCCEEDED, ended.status
        assert ended.dataset.digest == before[0].digest
        await serve_until_gone(stubs, "emoji")


async def serve_until_gone(stubs: Stubs, dataset: str) -> None:
    """Returns once a dataset is gone: its pin is given back right after the end of the run."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            listed = await stubs.datasets.ListDatasets(pb.ListDatasetsRequest())
            if dataset not in {found.name for found in listed.datasets}:
                return
            await asyncio.sleep(POLL_SECONDS)


async def test_a_pin_that_is_not_renewed_frees_itself(tmp_path: Path, root: Path) -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    overrides = {"datasets.import_roots": (root,)}
    async with running(tmp_path / "data", clock=clock, overrides=overrides) as server:
        await imported(server.stubs, "cats")
        request = pb.PinVersionRequest(
            version=versions_pb2.VersionRef(dataset="cats", number=1), holder="run-1"
        )
        request.lease.seconds = 2
        await server.stubs.datasets.PinVersion(request)
        clock.advance(1.0)
        deletion = pb.DeleteDatasetRequest(name="cats")
        refusal = await refusal_of(server.stubs.datasets.DeleteDataset(deletion))
        assert refusal.reason == "RESOURCE_PINNED"
        clock.advance(1.0)
        assert not (await server.stubs.datasets.DeleteDataset(deletion)).pending
