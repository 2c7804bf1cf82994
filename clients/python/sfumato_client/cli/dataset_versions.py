"""`sfumato datasets stats`, `duplicates`, `diff`, `export` and `examples`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sfumato.datasets.v1 import datasets_pb2, export_pb2, statistics_pb2
from sfumato_client.cli.files import check_file_writable
from sfumato_client.cli.session import Session, session_of
from sfumato_client.cli.text import counted, file_size
from sfumato_client.client import Client

MAX_BUCKETS = 8
"""So many of a table are printed."""

Name = Annotated[str, typer.Argument(help="The dataset.")]
VersionNumber = Annotated[int | None, typer.Option("--version", min=1, help="Default the latest.")]


class Format(StrEnum):
    """What a version becomes."""

    ZIP = "zip"
    WEBDATASET = "webdataset"


FORMATS = {
    Format.ZIP: export_pb2.EXPORT_FORMAT_ZIP,
    Format.WEBDATASET: export_pb2.EXPORT_FORMAT_WEBDATASET,
}


def add_to(app: typer.Typer) -> None:
    """Adds the commands to their group."""
    for command in (stats, duplicates, diff, export, examples):
        app.command()(command)


def stats(context: typer.Context, name: Name, version: VersionNumber = None) -> None:
    """Say what is in a version: sizes, captions, tags, buckets, duplicates."""
    session = session_of(context)

    async def work(client: Client) -> None:
        statistics = await client.datasets.get_version_statistics(name, version=version)
        if session.as_json:
            session.print_message(statistics)
        else:
            print_statistics(session, statistics)

    session.run(work)


def print_statistics(session: Session, statistics: statistics_pb2.VersionStatistics) -> None:
    """For people."""
    version = statistics.version
    session.print(
        f"{version.dataset}, version {version.number}: {counted(version.num_samples, 'image')},"
        f" {version.num_captioned} captioned, {file_size(version.size_bytes)}"
    )
    rows = [
        (label, *(f"{value:.4g}" for value in (d.minimum, d.median, d.mean, d.maximum)))
        for label, d in (
            ("width", statistics.width),
            ("height", statistics.height),
            ("aspect", statistics.aspect),
            ("caption characters", statistics.caption_characters),
        )
    ]
    session.print_table(("of", "smallest", "median", "mean", "largest"), rows)
    for table in statistics.bucket_tables:
        shapes = ", ".join(
            f"{bucket.width}x{bucket.height}: {bucket.num_samples}"
            for bucket in table.buckets[:MAX_BUCKETS]
        )
        more = ", …" if len(table.buckets) > MAX_BUCKETS else ""
        session.print(
            f"at {table.resolution}: {counted(len(table.buckets), 'bucket')} ({shapes}{more}), cropped"
            f" {table.mean_crop:.1%} on average, {table.worst_crop:.1%} at worst"
        )
    if statistics.tags:
        tags = ", ".join(f"{tag.tag} ({tag.num_samples})" for tag in statistics.tags)
        session.print(f"tags: {tags}")
    session.print(
        f"{counted(statistics.num_duplicate_groups, 'group')} of duplicates,"
        f" {counted(statistics.num_near_duplicate_groups, 'group')} of near-duplicates"
    )


def duplicates(
    context: typer.Context,
    name: Name,
    near: Annotated[
        bool, typer.Option("--near", help="Pictures that look alike, rather than equal files.")
    ] = False,
    version: VersionNumber = None,
) -> None:
    """List groups of samples that show the same picture."""
    session = session_of(context)
    kind = statistics_pb2.DUPLICATE_KIND_NEAR if near else statistics_pb2.DUPLICATE_KIND_CONTENT

    async def work(client: Client) -> None:
        async for group in client.datasets.list_duplicates(name, version=version, kind=kind):
            if session.as_json:
                session.print_message(group)
            else:
                more = group.num_samples - len(group.file_names)
                session.print("  ".join(group.file_names) + (f"  and {more} more" if more else ""))

    session.run(work)


def diff(
    context: typer.Context,
    name: Name,
    base: Annotated[int, typer.Argument(min=1, help="The earlier version.")],
    target: Annotated[
        int | None, typer.Argument(min=1, help="The later one; default the latest.")
    ] = None,
) -> None:
    """Say what became of each sample from one version to another."""
    session = session_of(context)

    async def work(client: Client) -> None:
        async for difference in client.datasets.diff_versions(name, base, target):
            if session.as_json:
                session.print_message(difference)
            else:
                session.print(described(difference))

    session.run(work)


def described(difference: datasets_pb2.SampleDifference) -> str:
    """One line: `+` added, `-` removed, `~` changed, and how."""
    if not difference.HasField("base"):
        return f"+ {difference.file_name}"
    if not difference.HasField("target"):
        return f"- {difference.file_name}"
    before, after = difference.base, difference.target
    changes = [
        f"{label} {old!r} -> {new!r}"
        for label, old, new in (
            ("image", before.image.digest, after.image.digest),
            ("caption", before.caption, after.caption),
            ("variants", list(before.caption_variants), list(after.caption_variants)),
            ("tags", list(before.tags), list(after.tags)),
            ("caption from", before.caption_source, after.caption_source),
        )
        if old != new
    ]
    return f"~ {difference.file_name}: {'; '.join(changes)}"


def export(
    context: typer.Context,
    name: Name,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file; default NAME-VERSION.zip or .tar here.")
    ] = None,
    format: Annotated[Format, typer.Option(help="zip, or a WebDataset tar.")] = Format.ZIP,
    version: VersionNumber = None,
) -> None:
    """Write a version into an archive."""
    session = session_of(context)

    async def work(client: Client) -> None:
        destination, number = out, version
        if destination is None:
            found = await client.datasets.get_dataset_version(name, version=version)
            number = found.number
            suffix = "zip" if format is Format.ZIP else "tar"
            destination = Path(f"{name}-{number}.{suffix}")
        check_file_writable(destination)
        archive = await client.datasets.export_version(
            name, destination, version=number, format=FORMATS[format]
        )
        if session.as_json:
            session.print_message(archive)
        else:
            session.print(f"{destination}: {file_size(archive.size_bytes)}")

    session.run(work)


def examples(context: typer.Context) -> None:
    """List small datasets of the Hub to try things with."""
    session = session_of(context)

    async def work(client: Client) -> None:
        found = [example async for example in client.datasets.list_examples()]
        if session.as_json:
            for example in found:
                session.print_message(example)
            return
        rows = [
            (
                f"example:{example.name}",
                str(example.max_samples),
                example.licence,
                example.description,
                example.source_page,
            )
            for example in found
        ]
        session.print_table(("source", "at most", "licence", "what", "page"), rows)

    session.run(work)
