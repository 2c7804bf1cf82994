"""``sfumato.datasets.v1.DatasetsService``: converts, delegates, converts."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from sfumato.datasets.v1 import (
    datasets_pb2,
    editing_pb2,
    export_pb2,
    statistics_pb2,
    versions_pb2,
)
from sfumato.datasets.v1.versions_pb2 import VersionRef
from sfumato_chassis.errors import InvalidArgument
from sfumato_chassis.job_messages import timestamp
from sfumato_chassis.paging import Page, cut_page, decode_token, page_size, rows_that_fit
from sfumato_chassis.pipeline import current_principal
from sfumato_chassis.platform import Platform
from sfumato_chassis.request_messages import request_of
from sfumato_datasets import storage
from sfumato_datasets.editing import Edit
from sfumato_datasets.engine import ImportEngine
from sfumato_datasets.examples import EXAMPLES
from sfumato_datasets.images import PREVIEWS_MEDIA_TYPE
from sfumato_datasets.import_servicer import ImportMethods
from sfumato_datasets.library import EVERY_SAMPLE
from sfumato_datasets.library_messages import (
    EXPORT_FORMATS,
    THUMBNAIL_SIDES,
    archive_message,
    dataset_message,
    difference_message,
    edit_of,
    example_message,
    group_message,
    sample_filter,
    sample_message,
    statistics_message,
    version_message,
)
from sfumato_datasets.parts import Parts

DEFAULT_PIN = timedelta(hours=1)
MAX_PIN = timedelta(hours=24)
MIN_PIN = timedelta(seconds=1)

Listed = TypeVar("Listed")


class PagedRequest(Protocol):
    """Asks for a page."""

    @property
    def page_size(self) -> int: ...
    @property
    def page_token(self) -> str: ...


class DatasetsServicer(ImportMethods):
    """Imports, and what they make."""

    def __init__(self, platform: Platform, engine: ImportEngine, parts: Parts) -> None:
        super().__init__(platform, engine)
        self._platform = platform
        self._parts = parts

    async def GetDataset(
        self, request: datasets_pb2.GetDatasetRequest, context: Any
    ) -> datasets_pb2.GetDatasetResponse:
        owner = current_principal().name
        dataset = await self._platform.database.read(
            lambda connection: storage.get_dataset(connection, owner, request.name)
        )
        return datasets_pb2.GetDatasetResponse(dataset=dataset_message(dataset))

    async def GetDatasetVersion(
        self, request: datasets_pb2.GetDatasetVersionRequest, context: Any
    ) -> datasets_pb2.GetDatasetVersionResponse:
        owner, reference = current_principal().name, request.version
        version = await self._platform.database.read(
            lambda connection: storage.get_version(
                connection, owner, reference.dataset, version_number(reference)
            )
        )
        return datasets_pb2.GetDatasetVersionResponse(version=version_message(version))

    async def ListDatasetVersions(
        self, request: datasets_pb2.ListDatasetVersionsRequest, context: Any
    ) -> datasets_pb2.ListDatasetVersionsResponse:
        page = await self._platform.database.read(
            partial(
                storage.select_versions,
                owner=current_principal().name,
                dataset=request.dataset,
                size=page_size(request.page_size),
                token=request.page_token,
            )
        )
        return datasets_pb2.ListDatasetVersionsResponse(
            versions=[version_message(version) for version in page.rows],
            next_page_token=page.next_page_token,
        )

    async def ListDatasets(
        self, request: datasets_pb2.ListDatasetsRequest, context: Any
    ) -> datasets_pb2.ListDatasetsResponse:
        page = await self._platform.database.read(
            partial(
                storage.select_datasets,
                owner=current_principal().name,
                size=page_size(request.page_size),
                token=request.page_token,
            )
        )
        return datasets_pb2.ListDatasetsResponse(
            datasets=[dataset_message(dataset) for dataset in page.rows],
            next_page_token=page.next_page_token,
        )

    async def ListSamples(
        self, request: datasets_pb2.ListSamplesRequest, context: Any
    ) -> datasets_pb2.ListSamplesResponse:
        version = await self._version(request.version)
        fitting = sample_filter(request.filter)
        query = {"list": "sample", "version": version.digest, "filter": repr(fitting)}
        size = page_size(request.page_size)
        rows = await self._parts.reading.samples(
            version, after=last_name(query, request.page_token), limit=size + 1, fitting=fitting
        )
        fitting_rows = rows_that_fit(rows[:size], lambda row: sample_message(row).ByteSize())
        page = cut_page(rows, len(fitting_rows), query, lambda sample: [sample.file_name])
        return datasets_pb2.ListSamplesResponse(
            version=version_message(version),
            samples=[sample_message(sample) for sample in page.rows],
            next_page_token=page.next_page_token,
        )

    async def StreamSamples(
        self, request: datasets_pb2.StreamSamplesRequest, context: Any
    ) -> AsyncIterator[datasets_pb2.StreamSamplesResponse]:
        version = await self._version(request.version)
        yield datasets_pb2.StreamSamplesResponse(version=version_message(version))
        async for sample in self._parts.reading.stream(version):
            yield datasets_pb2.StreamSamplesResponse(sample=sample_message(sample))

    async def PinVersion(
        self, request: datasets_pb2.PinVersionRequest, context: Any
    ) -> datasets_pb2.PinVersionResponse:
        lease = request.lease.ToTimedelta() if request.HasField("lease") else DEFAULT_PIN
        if not MIN_PIN <= lease <= MAX_PIN:
            raise InvalidArgument.field("lease", "must be 1 s to 24 h")
        owner, now = current_principal().name, self._platform.clock.now()
        version, expire_time = await self._platform.database.write(
            lambda connection: storage.pin_version(
                connection,
                owner,
                request.version.dataset,
                version_number(request.version),
                holder=request.holder,
                now=now,
                lease=lease,
            )
        )
        return datasets_pb2.PinVersionResponse(
            version=version_message(version), expire_time=timestamp(expire_time)
        )

    async def UnpinVersion(
        self, request: datasets_pb2.UnpinVersionRequest, context: Any
    ) -> datasets_pb2.UnpinVersionResponse:
        number = required_number(request.version)
        await self._parts.editor.unpin(
            current_principal().name, request.version.dataset, number, holder=request.holder
        )
        return datasets_pb2.UnpinVersionResponse()

    async def EditDataset(
        self, request: datasets_pb2.EditDatasetRequest, context: Any
    ) -> datasets_pb2.EditDatasetResponse:
        outcome = await self._parts.editor.edit(
            request_of(request, current_principal().name),
            request.dataset,
            request.etag,
            edits_of(request.edits),
            validate_only=request.validate_only,
        )
        return datasets_pb2.EditDatasetResponse(
            dataset=dataset_message(outcome.dataset),
            num_samples_changed=outcome.num_changed,
            deduplicated=outcome.deduplicated,
            version=version_message(outcome.version),
        )

    async def DeleteDataset(
        self, request: datasets_pb2.DeleteDatasetRequest, context: Any
    ) -> datasets_pb2.DeleteDatasetResponse:
        pending = await self._parts.editor.delete_dataset(
            current_principal().name, request.name, etag=request.etag, after_use=request.after_use
        )
        return datasets_pb2.DeleteDatasetResponse(pending=pending)

    async def DeleteDatasetVersion(
        self, request: versions_pb2.DeleteDatasetVersionRequest, context: Any
    ) -> versions_pb2.DeleteDatasetVersionResponse:
        pending = await self._parts.editor.delete_version(
            current_principal().name,
            request.version.dataset,
            required_number(request.version),
            after_use=request.after_use,
        )
        return versions_pb2.DeleteDatasetVersionResponse(pending=pending)

    async def GetVersionStatistics(
        self, request: statistics_pb2.GetVersionStatisticsRequest, context: Any
    ) -> statistics_pb2.GetVersionStatisticsResponse:
        version = await self._version(request.version)
        statistics = await self._parts.reading.statistics(version)
        return statistics_pb2.GetVersionStatisticsResponse(
            statistics=statistics_message(version, statistics)
        )

    async def ListDuplicates(
        self, request: statistics_pb2.ListDuplicatesRequest, context: Any
    ) -> statistics_pb2.ListDuplicatesResponse:
        version = await self._version(request.version)
        duplicates = await self._parts.reading.duplicates(version)
        near = request.kind == statistics_pb2.DUPLICATE_KIND_NEAR
        groups = duplicates.near if near else duplicates.content
        query = {"list": "duplicate", "version": version.digest, "near": str(near)}
        page = page_after(
            groups, lambda group: group[0], query, request, size_bytes=lambda group: len(str(group))
        )
        return statistics_pb2.ListDuplicatesResponse(
            groups=[group_message(group) for group in page.rows],
            next_page_token=page.next_page_token,
        )

    async def DiffVersions(
        self, request: datasets_pb2.DiffVersionsRequest, context: Any
    ) -> datasets_pb2.DiffVersionsResponse:
        base = await self._version(VersionRef(dataset=request.dataset, number=request.base))
        number = request.target if request.HasField("target") else None
        target = await self._version(VersionRef(dataset=request.dataset, number=number))
        found = await self._parts.reading.differences(base, target)
        query = {"list": "difference", "base": base.digest, "target": target.digest}
        page = page_after(
            found,
            lambda difference: difference.file_name,
            query,
            request,
            size_bytes=lambda difference: difference_message(difference).ByteSize(),
        )
        return datasets_pb2.DiffVersionsResponse(
            base=version_message(base),
            target=version_message(target),
            num_added=sum(1 for each in found if each.base is None),
            num_removed=sum(1 for each in found if each.target is None),
            num_changed=sum(1 for each in found if each.base and each.target),
            differences=[difference_message(each) for each in page.rows],
            next_page_token=page.next_page_token,
        )

    async def GetThumbnail(
        self, request: export_pb2.GetThumbnailRequest, context: Any
    ) -> export_pb2.GetThumbnailResponse:
        side = THUMBNAIL_SIDES[request.size]
        preview, data = await self._parts.reading.thumbnail(
            current_principal().name, request.image_digest, side
        )
        return export_pb2.GetThumbnailResponse(
            data=data,
            media_type=PREVIEWS_MEDIA_TYPE,
            width=preview.width,
            height=preview.height,
        )

    async def ExportVersion(
        self, request: export_pb2.ExportVersionRequest, context: Any
    ) -> AsyncIterator[export_pb2.ExportVersionResponse]:
        version = await self._version(request.version)
        export = await self._parts.exporter.open(
            version, EXPORT_FORMATS[request.format], offset=request.offset
        )
        yield export_pb2.ExportVersionResponse(archive=archive_message(version, export))
        async for chunk in self._parts.exporter.read(export, request.offset):
            yield export_pb2.ExportVersionResponse(chunk=chunk)

    async def ListExamples(
        self, request: export_pb2.ListExamplesRequest, context: Any
    ) -> export_pb2.ListExamplesResponse:
        page = page_after(
            EXAMPLES,
            lambda example: example.name,
            {"list": "example"},
            request,
            size_bytes=lambda example: example_message(example).ByteSize(),
        )
        return export_pb2.ListExamplesResponse(
            examples=[example_message(example) for example in page.rows],
            next_page_token=page.next_page_token,
        )

    async def _version(self, reference: VersionRef) -> storage.Version:
        owner = current_principal().name
        return await self._platform.database.read(
            lambda connection: storage.get_version(
                connection, owner, reference.dataset, version_number(reference)
            )
        )


def version_number(reference: VersionRef) -> int | None:
    """The number in a reference; None for the latest."""
    return reference.number if reference.HasField("number") else None


def required_number(reference: VersionRef) -> int:
    """The number in a reference. Raises InvalidArgument where there is none."""
    number = version_number(reference)
    if number is None:
        raise InvalidArgument.field("version.number", "must be set")
    return number


def edits_of(edits: Sequence[editing_pb2.Edit]) -> list[Edit]:
    """What is to be done. Raises InvalidArgument for a filter that says nothing."""
    for index, edit in enumerate(edits):
        if edit.samples.HasField("filter") and sample_filter(edit.samples.filter) == EVERY_SAMPLE:
            path = f"edits[{index}].samples.filter"
            raise InvalidArgument.field(path, "must say something; `all` means all samples")
    return [edit_of(edit) for edit in edits]


def last_name(query: Mapping[str, str], token: str) -> str:
    """The name after which a page begins. Raises InvalidArgument, PAGE_TOKEN_INVALID."""
    return str(decode_token(query, token, [str])[0]) if token else ""


def page_after(
    rows: Sequence[Listed],
    name_of: Callable[[Listed], str],
    query: Mapping[str, str],
    request: PagedRequest,
    *,
    size_bytes: Callable[[Listed], int],
) -> Page[Listed]:
    """A page of a list that is at hand, in the order of names."""
    start = bisect_right(rows, last_name(query, request.page_token), key=name_of)
    size = page_size(request.page_size)
    wanted = rows[start : start + size + 1]
    fitting = rows_that_fit(wanted[:size], size_bytes)
    return cut_page(wanted, len(fitting), query, lambda row: [name_of(row)])
