"""The messages of datasets, versions and samples, from the service's records and back."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import (
    datasets_pb2,
    editing_pb2,
    export_pb2,
    selection_pb2,
    statistics_pb2,
    versions_pb2,
)
from sfumato_chassis.job_messages import timestamp
from sfumato_datasets import editing
from sfumato_datasets.differences import Difference
from sfumato_datasets.examples import Example
from sfumato_datasets.library import SampleFilter
from sfumato_datasets.manifest import Sample
from sfumato_datasets.statistics import Distribution, VersionStatistics
from sfumato_datasets.storage import Dataset, Version

if TYPE_CHECKING:  # it loads what only exports need
    from sfumato_datasets.exporter import Export

MAX_NAMES = 200
"""Of one group of duplicates."""

EXPORT_FORMATS = {
    export_pb2.EXPORT_FORMAT_UNSPECIFIED: "zip",
    export_pb2.EXPORT_FORMAT_ZIP: "zip",
    export_pb2.EXPORT_FORMAT_WEBDATASET: "webdataset",
}

THUMBNAIL_SIDES = {
    export_pb2.THUMBNAIL_SIZE_UNSPECIFIED: 256,
    export_pb2.THUMBNAIL_SIZE_SMALL: 128,
    export_pb2.THUMBNAIL_SIZE_MEDIUM: 256,
    export_pb2.THUMBNAIL_SIZE_LARGE: 512,
}
"""In pixels."""


def dataset_message(dataset: Dataset) -> datasets_pb2.Dataset:
    """A dataset."""
    return datasets_pb2.Dataset(
        name=dataset.name,
        owner=dataset.owner,
        etag=dataset.etag,
        latest_version=version_message(dataset.latest),
        create_time=timestamp(dataset.create_time),
        update_time=timestamp(dataset.update_time),
        deletion_pending=dataset.deletion_pending,
    )


def version_message(version: Version) -> versions_pb2.DatasetVersion:
    """A version."""
    return versions_pb2.DatasetVersion(
        dataset=version.dataset,
        number=version.number,
        digest=version.digest,
        num_samples=version.num_samples,
        size_bytes=version.size_bytes,
        num_captioned=version.num_captioned,
        create_time=timestamp(version.create_time),
        created_by=version.created_by,
        deletion_pending=version.deletion_pending,
    )


def sample_message(sample: Sample) -> datasets_pb2.Sample:
    """A sample."""
    return datasets_pb2.Sample(
        file_name=sample.file_name,
        image=blobs_pb2.BlobRef(
            digest=sample.image_digest,
            size_bytes=sample.size_bytes,
            media_type=sample.media_type,
        ),
        width=sample.width,
        height=sample.height,
        caption=sample.caption,
        caption_source=sample.caption_source,
        mask=None if sample.mask_digest is None else blobs_pb2.BlobRef(digest=sample.mask_digest),
        tags=sample.tags,
        caption_variants=sample.caption_variants,
    )


def difference_message(difference: Difference) -> datasets_pb2.SampleDifference:
    """A sample that is not the same in both versions."""
    base, target = difference.base, difference.target
    return datasets_pb2.SampleDifference(
        file_name=difference.file_name,
        base=None if base is None else sample_message(base),
        target=None if target is None else sample_message(target),
    )


def sample_filter(message: selection_pb2.SampleFilter) -> SampleFilter:
    """Which samples are meant."""
    return SampleFilter(
        caption_contains=message.caption_contains,
        tag=message.tag,
        missing_caption=message.missing_caption,
    )


def edit_of(message: editing_pb2.Edit) -> editing.Edit:
    """What is to be done with which samples."""
    action = ACTIONS[str(message.WhichOneof("action"))](message)
    if message.samples.HasField("names"):
        return editing.Edit(action=action, names=frozenset(message.samples.names.file_names))
    return editing.Edit(action=action, fitting=sample_filter(message.samples.filter))


ACTIONS: Mapping[str, Callable[[editing_pb2.Edit], editing.Action]] = {
    "set_caption": lambda edit: editing.set_caption(
        edit.set_caption.caption, edit.set_caption.variants
    ),
    "replace_text": lambda edit: editing.replace_text(
        edit.replace_text.find, edit.replace_text.replacement
    ),
    "add_prefix": lambda edit: editing.add_prefix(edit.add_prefix),
    "add_suffix": lambda edit: editing.add_suffix(edit.add_suffix),
    "set_tags": lambda edit: editing.set_tags(edit.set_tags.tags),
    "add_tags": lambda edit: editing.add_tags(edit.add_tags.tags),
    "remove_tags": lambda edit: editing.remove_tags(edit.remove_tags.tags),
    "remove": lambda _: editing.remove,
}
"""By the name of the member of the oneof."""


def statistics_message(
    version: Version, statistics: VersionStatistics
) -> statistics_pb2.VersionStatistics:
    """What is said of a version."""
    tables = [
        statistics_pb2.BucketTable(
            **{**table, "buckets": [statistics_pb2.Bucket(**each) for each in table["buckets"]]}
        )
        for table in statistics.bucket_tables
    ]
    return statistics_pb2.VersionStatistics(
        version=version_message(version),
        width=distribution_message(statistics.width),
        height=distribution_message(statistics.height),
        aspect=distribution_message(statistics.aspect),
        caption_characters=distribution_message(statistics.caption_characters),
        media_types=statistics.media_types,
        tags=[
            statistics_pb2.TagCount(tag=tag, num_samples=count) for tag, count in statistics.tags
        ],
        num_tags=statistics.num_tags,
        bucket_tables=tables,
        num_duplicate_groups=statistics.num_duplicate_groups,
        num_near_duplicate_groups=statistics.num_near_duplicate_groups,
    )


def distribution_message(distribution: Distribution) -> statistics_pb2.Distribution:
    """How a number is distributed."""
    return statistics_pb2.Distribution(
        count=distribution.count,
        minimum=distribution.minimum,
        maximum=distribution.maximum,
        mean=distribution.mean,
        median=distribution.median,
        bins=[
            statistics_pb2.HistogramBin(lower=each.lower, upper=each.upper, count=each.count)
            for each in distribution.bins
        ],
    )


def group_message(group: Sequence[str]) -> statistics_pb2.DuplicateGroup:
    """Samples that show the same picture."""
    return statistics_pb2.DuplicateGroup(file_names=group[:MAX_NAMES], num_samples=len(group))


def archive_message(version: Version, export: "Export") -> export_pb2.ExportedArchive:
    """What the bytes of an export are."""
    return export_pb2.ExportedArchive(
        version=version_message(version),
        file_name=export.file_name,
        media_type=export.format.media_type,
        size_bytes=export.layout.size_bytes,
        etag=export.etag,
    )


def example_message(example: Example) -> export_pb2.Example:
    """A small dataset of the Hub."""
    return export_pb2.Example(
        name=example.name,
        hub_id=example.hub_id,
        description=example.description,
        licence=example.licence,
        source_page=example.source_page,
        max_samples=example.max_samples,
    )
