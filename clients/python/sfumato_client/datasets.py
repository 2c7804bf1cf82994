"""Imports, datasets and their samples."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from sfumato.blobs.v1 import blobs_pb2_grpc
from sfumato.datasets.v1 import (
    datasets_pb2,
    datasets_pb2_grpc,
    export_pb2,
    imports_pb2,
    selection_pb2,
    statistics_pb2,
    versions_pb2,
)
from sfumato_client.blobs import Blobs
from sfumato_client.calls import Caller, RetryPolicy, with_request_id
from sfumato_client.channel import ChannelPair
from sfumato_client.errors import violated
from sfumato_client.exports import fetch_export
from sfumato_client.jobs import JobCalls, duration, pages
from sfumato_client.watch import Cursor, Reconnecting, WatchItem


class Datasets:
    """Imports, datasets and their samples.

    Every method answers proto messages and raises SfumatoError.

    Attributes:
        stub: the service's methods, to be called as they are.
        caller: makes the calls.
        blobs: BlobService of this service.
    """

    def __init__(self, channels: ChannelPair, caller: Caller, watch_policy: RetryPolicy) -> None:
        """Makes no call."""
        self.stub = datasets_pb2_grpc.DatasetsServiceStub(channels.unary)
        self.caller = caller
        self.blobs = Blobs(stub=blobs_pb2_grpc.BlobServiceStub(channels.unary), caller=caller)
        self._imports = _calls(
            self.stub, datasets_pb2_grpc.DatasetsServiceStub(channels.watch), caller, watch_policy
        )

    async def create_import(
        self, request: imports_pb2.CreateImportRequest
    ) -> imports_pb2.CreateImportResponse:
        """Asks for an import and answers the queued job. Without a request id it makes one."""
        return await self.caller.repeatable(self.stub.CreateImport, with_request_id(request))

    async def get_import(self, name: str) -> imports_pb2.Import:
        """The job as it stands."""
        return await self._imports.get(name)

    def list_imports(self, *, page_size: int = 0) -> AsyncGenerator[imports_pb2.Import, None]:
        """Newest first, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListImports,
                imports_pb2.ListImportsRequest(page_size=page_size, page_token=page_token),
            ),
            lambda page: page.imports,
        )

    async def wait_import(
        self, name: str, *, timeout_seconds: float | None = None
    ) -> imports_pb2.Import:
        """Waits until the job has ended, or for the time given; "not done" is no error."""
        return await self._imports.wait(name, timeout_seconds)

    def watch_import(
        self,
        name: str,
        *,
        cursor: Cursor | None = None,
        on_reconnecting: Callable[[Reconnecting], None] | None = None,
    ) -> AsyncGenerator[WatchItem[imports_pb2.Import, imports_pb2.ImportEvent], None]:
        """Follows the job: each event once, in order, across lost connections (`Watch.items`)."""
        return self._imports.watch(name, cursor, on_reconnecting)

    async def cancel_import(self, name: str) -> imports_pb2.Import:
        """Ends an import; nothing of it is kept."""
        return await self._imports.cancel(name)

    async def delete_import(self, name: str) -> None:
        """Removes a job that has ended, with its log. After a loss it is not repeated."""
        await self.caller.once(self.stub.DeleteImport, imports_pb2.DeleteImportRequest(name=name))

    async def get_dataset(self, name: str) -> datasets_pb2.Dataset:
        """The dataset with its latest version."""
        response = await self.caller.repeatable(
            self.stub.GetDataset, datasets_pb2.GetDatasetRequest(name=name)
        )
        return response.dataset

    async def get_dataset_version(
        self, dataset: str, *, version: int | None = None
    ) -> versions_pb2.DatasetVersion:
        """One version, by default the latest."""
        response = await self.caller.repeatable(
            self.stub.GetDatasetVersion,
            datasets_pb2.GetDatasetVersionRequest(
                version=versions_pb2.VersionRef(dataset=dataset, number=version)
            ),
        )
        return response.version

    def list_dataset_versions(
        self, dataset: str, *, page_size: int = 0
    ) -> AsyncGenerator[versions_pb2.DatasetVersion, None]:
        """Newest first, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListDatasetVersions,
                datasets_pb2.ListDatasetVersionsRequest(
                    dataset=dataset, page_size=page_size, page_token=page_token
                ),
            ),
            lambda page: page.versions,
        )

    def list_datasets(self, *, page_size: int = 0) -> AsyncGenerator[datasets_pb2.Dataset, None]:
        """By name, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListDatasets,
                datasets_pb2.ListDatasetsRequest(page_size=page_size, page_token=page_token),
            ),
            lambda page: page.datasets,
        )

    def list_samples(
        self,
        dataset: str,
        *,
        version: int | None = None,
        page_size: int = 0,
        fitting: selection_pb2.SampleFilter | None = None,
    ) -> AsyncGenerator[datasets_pb2.Sample, None]:
        """Samples of one version by file name, over all pages; with `fitting` those it describes.

        Without a version it is the one that was the latest when the first page was asked for.
        """
        shown = versions_pb2.VersionRef(dataset=dataset, number=version)

        async def fetch(page_token: str) -> datasets_pb2.ListSamplesResponse:
            page = await self.caller.repeatable(
                self.stub.ListSamples,
                datasets_pb2.ListSamplesRequest(
                    version=shown, page_size=page_size, page_token=page_token, filter=fitting
                ),
            )
            shown.number = page.version.number
            return page

        return pages(fetch, lambda page: page.samples)

    async def edit_dataset(
        self, request: datasets_pb2.EditDatasetRequest
    ) -> datasets_pb2.EditDatasetResponse:
        """Makes one new version with all of the edits. Without a request id it makes one.

        Raises:
            Aborted: the dataset changed since `etag` was read, or an import holds it.
        """
        return await self.caller.repeatable(self.stub.EditDataset, with_request_id(request))

    async def delete_dataset(self, name: str, *, etag: str = "", after_use: bool = False) -> bool:
        """Removes a dataset; answers whether it waits for runs that use it.

        After a loss it is not repeated.
        """
        response = await self.caller.once(
            self.stub.DeleteDataset,
            datasets_pb2.DeleteDatasetRequest(name=name, etag=etag, after_use=after_use),
        )
        return response.pending

    async def delete_dataset_version(
        self, dataset: str, version: int, *, after_use: bool = False
    ) -> bool:
        """Removes a version that is not the latest; answers whether it waits for runs that use it.

        After a loss it is not repeated.
        """
        response = await self.caller.once(
            self.stub.DeleteDatasetVersion,
            versions_pb2.DeleteDatasetVersionRequest(
                version=versions_pb2.VersionRef(dataset=dataset, number=version),
                after_use=after_use,
            ),
        )
        return response.pending

    async def get_version_statistics(
        self, dataset: str, *, version: int | None = None
    ) -> statistics_pb2.VersionStatistics:
        """What is in a version: sizes, captions, tags, buckets, duplicates."""
        response = await self.caller.repeatable(
            self.stub.GetVersionStatistics,
            statistics_pb2.GetVersionStatisticsRequest(
                version=versions_pb2.VersionRef(dataset=dataset, number=version)
            ),
        )
        return response.statistics

    def list_duplicates(
        self,
        dataset: str,
        *,
        version: int | None = None,
        kind: statistics_pb2.DuplicateKind.ValueType = statistics_pb2.DUPLICATE_KIND_CONTENT,
        page_size: int = 0,
    ) -> AsyncGenerator[statistics_pb2.DuplicateGroup, None]:
        """Groups of samples that show the same picture, over all pages."""
        shown = versions_pb2.VersionRef(dataset=dataset, number=version)
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListDuplicates,
                statistics_pb2.ListDuplicatesRequest(
                    version=shown, kind=kind, page_size=page_size, page_token=page_token
                ),
            ),
            lambda page: page.groups,
        )

    def diff_versions(
        self, dataset: str, base: int, target: int | None = None, *, page_size: int = 0
    ) -> AsyncGenerator[datasets_pb2.SampleDifference, None]:
        """What became of each sample from one version to another, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.DiffVersions,
                datasets_pb2.DiffVersionsRequest(
                    dataset=dataset,
                    base=base,
                    target=target,
                    page_size=page_size,
                    page_token=page_token,
                ),
            ),
            lambda page: page.differences,
        )

    async def get_thumbnail(
        self,
        image_digest: str,
        *,
        size: export_pb2.ThumbnailSize.ValueType = export_pb2.THUMBNAIL_SIZE_MEDIUM,
    ) -> export_pb2.GetThumbnailResponse:
        """A small picture of an image."""
        return await self.caller.repeatable(
            self.stub.GetThumbnail,
            export_pb2.GetThumbnailRequest(image_digest=image_digest, size=size),
        )

    async def export_version(
        self,
        dataset: str,
        destination: str | os.PathLike[str],
        *,
        version: int | None = None,
        format: export_pb2.ExportFormat.ValueType = export_pb2.EXPORT_FORMAT_ZIP,
    ) -> export_pb2.ExportedArchive:
        """Fetches a version as an archive into a file, which appears only when it is whole.

        What an earlier, interrupted export left in `.<name>.<etag>.part` is gone on with where its last
        MiB is that of the archive; otherwise it begins anew.

        Raises:
            OSError: the file cannot be written.
            SfumatoError: as for ExportVersion, or TransportLost without progress for the budget.
        """
        request = export_pb2.ExportVersionRequest(
            version=versions_pb2.VersionRef(dataset=dataset, number=version), format=format
        )
        return await fetch_export(self.stub, self.caller, request, destination)

    def list_examples(self, *, page_size: int = 0) -> AsyncGenerator[export_pb2.Example, None]:
        """Small datasets of the Hub, for ExampleSource, over all pages."""
        return pages(
            lambda page_token: self.caller.repeatable(
                self.stub.ListExamples,
                export_pb2.ListExamplesRequest(page_size=page_size, page_token=page_token),
            ),
            lambda page: page.examples,
        )

    async def pin_version(
        self, dataset: str, *, holder: str, version: int | None = None, lease_seconds: float
    ) -> datasets_pb2.PinVersionResponse:
        """Keeps a version from being deleted while the lease lasts; pinning again renews it."""
        return await self.caller.repeatable(
            self.stub.PinVersion,
            datasets_pb2.PinVersionRequest(
                version=versions_pb2.VersionRef(dataset=dataset, number=version),
                holder=holder,
                lease=duration(lease_seconds),
            ),
        )

    async def unpin_version(self, dataset: str, *, holder: str, version: int) -> None:
        """Ends a pin; one that is not there is no error."""
        await self.caller.repeatable(
            self.stub.UnpinVersion,
            datasets_pb2.UnpinVersionRequest(
                version=versions_pb2.VersionRef(dataset=dataset, number=version), holder=holder
            ),
        )

    async def read_manifest(
        self, dataset: str, *, version: int | None = None
    ) -> tuple[versions_pb2.DatasetVersion, list[datasets_pb2.Sample]]:
        """One version with all its samples by file name, in one stream.

        Raises:
            ContractViolated: the stream ended well but without all samples of the version.
            SfumatoError: a refusal, or TransportLost.
        """
        request = datasets_pb2.StreamSamplesRequest(
            version=versions_pb2.VersionRef(dataset=dataset, number=version)
        )
        return await self.caller.repeat(lambda: self._read_manifest_once(request))

    async def _read_manifest_once(
        self, request: datasets_pb2.StreamSamplesRequest
    ) -> tuple[versions_pb2.DatasetVersion, list[datasets_pb2.Sample]]:
        stream = self.stub.StreamSamples(request, metadata=self.caller.metadata)
        found = versions_pb2.DatasetVersion()
        samples: list[datasets_pb2.Sample] = []
        async for message in stream:
            if message.WhichOneof("message") == "version":
                found = message.version
            else:
                samples.append(message.sample)
        if not found.number or len(samples) != found.num_samples:
            raise violated(f"{len(samples)} of {found.num_samples} samples arrived")
        return found, samples


class _Answer(Protocol):
    """What Get, Wait and Cancel answer."""

    @property
    def import_job(self) -> imports_pb2.Import: ...


def _calls(
    stub: datasets_pb2_grpc.DatasetsServiceStub,
    watch_stub: datasets_pb2_grpc.DatasetsServiceStub,
    caller: Caller,
    watch_policy: RetryPolicy,
) -> JobCalls[imports_pb2.Import, imports_pb2.ImportEvent, _Answer]:
    return JobCalls(
        caller=caller,
        watch_policy=watch_policy,
        resource_of=lambda answer: answer.import_job,
        ask_get=lambda name: caller.repeatable(
            stub.GetImport, imports_pb2.GetImportRequest(name=name)
        ),
        ask_wait=lambda name, seconds: caller.repeatable(
            stub.WaitImport,
            imports_pb2.WaitImportRequest(name=name, timeout=duration(seconds)),
            additional_timeout_seconds=seconds,
        ),
        ask_cancel=lambda name: caller.repeatable(
            stub.CancelImport, imports_pb2.CancelImportRequest(name=name)
        ),
        open_watch=lambda name, at: watch_stub.WatchImport(
            imports_pb2.WatchImportRequest(
                name=name, after_sequence=at.sequence, log_id=at.log_id, replay=at.replay
            ),
            metadata=caller.metadata,
        ),
    )
