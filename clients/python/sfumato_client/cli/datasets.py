"""`sfumato datasets`: imports, and what is there."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from sfumato.datasets.v1 import imports_pb2, selection_pb2
from sfumato_client.calls import new_request_id
from sfumato_client.cli import dataset_edits, dataset_versions
from sfumato_client.cli.dataset_uploads import SourceOptions, fill_source
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.following import (
    JobView,
    Milestone,
    Position,
    Sight,
    describe_interrupted,
    describe_queued,
    describe_started,
)
from sfumato_client.cli.session import Session, session_of
from sfumato_client.cli.text import counted, file_size, moment, state_name
from sfumato_client.cli.validation import check
from sfumato_client.cli.watching import WatchCommand
from sfumato_client.client import Client

app = typer.Typer(no_args_is_help=True, help="Import captioned images; see what is there.")


class Mode(StrEnum):
    """What an import does with what the dataset holds."""

    REQUIRE_EMPTY = "require-empty"
    ADD = "add"


class OnRefused(StrEnum):
    """What an import does with a file that it refuses."""

    STOP = "stop"
    SKIP = "skip"


MODES = {
    Mode.REQUIRE_EMPTY: imports_pb2.IMPORT_MODE_REQUIRE_EMPTY,
    Mode.ADD: imports_pb2.IMPORT_MODE_ADD,
}
POLICIES = {
    OnRefused.STOP: imports_pb2.REFUSED_FILE_POLICY_STOP,
    OnRefused.SKIP: imports_pb2.REFUSED_FILE_POLICY_SKIP,
}


Source = Annotated[
    str,
    typer.Argument(
        help="A folder of images with their captions, an archive (zip, tar, WebDataset),"
        " hub:organisation/name[@revision], or example:NAME."
    ),
]
ServerSide = Annotated[
    bool,
    typer.Option("--server-side", help="SOURCE is a folder on the server, under an allowed root."),
]


@app.command("import")
def import_source(
    context: typer.Context,
    source: Source,
    name: Annotated[str, typer.Argument(help="The dataset, new or there already.")],
    mode: Annotated[
        Mode | None, typer.Option(help="Refuse a dataset that holds something, or add to it.")
    ] = None,
    on_refused: Annotated[
        OnRefused | None, typer.Option(help="What to do when a file is refused.")
    ] = None,
    caption_column: Annotated[
        str | None, typer.Option(help="Column of the metadata that holds captions.")
    ] = None,
    all_captions: Annotated[
        bool, typer.Option("--all-captions", help="Keep the other captions of a list as variants.")
    ] = False,
    server_side: ServerSide = False,
    shards: Annotated[
        bool, typer.Option("--shards", help="SOURCE is a folder of archives, to be read as one.")
    ] = False,
    folder: Annotated[str, typer.Option(help="Hub: only this folder of the repository.")] = "",
    split: Annotated[str | None, typer.Option(help="Hub, Parquet: default train.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Hub, Parquet.")] = None,
    max_samples: Annotated[int | None, typer.Option(help="Hub: the first so many.")] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check, but create nothing.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    request_id: Annotated[
        str | None, typer.Option(help="UUID; the same one, the same job.")
    ] = None,
) -> None:
    """Import captioned images as a new version of a dataset."""
    session = session_of(context)
    if not source:
        raise typer.BadParameter("must name where to import from", param_hint="SOURCE")
    request = imports_pb2.CreateImportRequest(
        request_id=request_id or new_request_id(),
        validate_only=validate_only,
        dataset=name,
        mode=None if mode is None else MODES[mode],
        refused_files=None if on_refused is None else POLICIES[on_refused],
        caption_column=caption_column,
        all_captions=all_captions,
    )
    options = SourceOptions(
        on_server=server_side,
        as_shards=shards,
        skip_unreadable=on_refused is OnRefused.SKIP,
        hub=imports_pb2.HubSource(
            folder=folder, split=split, image_column=image_column, max_samples=max_samples
        ),
    )
    begin_import(session, request, source, options, detach=detach)


def begin_import(
    session: Session,
    request: imports_pb2.CreateImportRequest,
    source: str,
    options: SourceOptions,
    *,
    detach: bool,
) -> None:
    """Asks for the import and follows it to its end."""

    async def work(client: Client) -> ExitCode:
        await fill_source(session, client, request, source, options)
        check(request)
        session.reattach = session.repeated_with(request.request_id)
        response = await client.datasets.create_import(request)
        created = response.import_job
        if request.validate_only or detach:
            session.print_message(created)
            return ExitCode.OK
        if not session.as_json:
            session.print(f"import {created.name}")
        return await WATCH.attend(session, client, created.name)

    session.run(work)


@app.command()
def cancel(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="IMPORT", help="The import's name.")],
) -> None:
    """End an import. Nothing of it is kept."""
    session = session_of(context)

    async def work(client: Client) -> None:
        cancelled = await client.datasets.cancel_import(name)
        if session.as_json:
            session.print_message(cancelled)
        else:
            session.print(f"{name} is {state_name(cancelled.status.state)}")

    session.run(work)


@app.command("list")
def list_datasets(context: typer.Context) -> None:
    """List the datasets by name."""
    session = session_of(context)

    async def work(client: Client) -> None:
        datasets = [dataset async for dataset in client.datasets.list_datasets()]
        if session.as_json:
            for dataset in datasets:
                session.print_message(dataset)
            return
        rows = [
            (
                dataset.name,
                str(dataset.latest_version.number),
                str(dataset.latest_version.num_samples),
                str(dataset.latest_version.num_captioned),
                file_size(dataset.latest_version.size_bytes),
                moment(dataset.update_time),
            )
            for dataset in datasets
        ]
        session.print_table(("name", "version", "images", "captioned", "size", "changed"), rows)

    session.run(work)


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The dataset.")],
    contains: Annotated[str, typer.Option(help="Only captions with this text.")] = "",
    tag: Annotated[str, typer.Option(help="Only samples with this tag.")] = "",
    missing: Annotated[bool, typer.Option("--missing", help="Only without a caption.")] = False,
) -> None:
    """Show a dataset, its versions and the samples of the latest."""
    session = session_of(context)
    fitting = selection_pb2.SampleFilter(
        caption_contains=contains, tag=tag, missing_caption=missing
    )

    async def work(client: Client) -> None:
        dataset = await client.datasets.get_dataset(name)
        versions = [version async for version in client.datasets.list_dataset_versions(name)]
        found = client.datasets.list_samples(name, fitting=fitting)
        samples = [sample async for sample in found]
        if session.as_json:
            for message in (dataset, *versions, *samples):
                session.print_message(message)
            return
        for version in versions:
            session.print(
                f"version {version.number}: {counted(version.num_samples, 'image')}, {version.num_captioned}"
                f" captioned, {file_size(version.size_bytes)}, {moment(version.create_time)},"
                f" by {version.created_by}{', to be removed' if version.deletion_pending else ''}"
            )
        rows = [
            (
                sample.file_name,
                f"{sample.width}x{sample.height}",
                ", ".join(sample.tags),
                sample.caption,
            )
            for sample in samples
        ]
        session.print_table(("file", "size", "tags", "caption"), rows)

    session.run(work)


def describe_event(event: imports_pb2.ImportEvent) -> Sight | None:
    """What one event of an import looks like."""
    kind = event.WhichOneof("event")
    match kind:
        case "queued":
            return describe_queued(event.queued)
        case "started":
            return describe_started(event.started)
        case "progress":
            return _position(event.progress)
        case "note":
            verdict = "refused" if event.note.refused else "note"
            return Milestone(
                text=f"{verdict}: {event.note.file_name}: {event.note.reason}: {event.note.message}"
            )
        case "interrupted":
            return describe_interrupted(event.interrupted)
        case "revision_pinned":
            return Milestone(text=f"at commit {event.revision_pinned.revision}")
        case "cancel_requested":
            return Milestone(text="cancelling")
        case "succeeded" | "failed" | "cancelled" | None:
            return None


def _position(progress: imports_pb2.ImportProgress) -> Position:
    if not progress.num_files and progress.num_bytes_to_fetch:
        return Position(
            stage="fetching",
            done=progress.num_bytes_fetched,
            total=progress.num_bytes_to_fetch,
            facts=file_size(progress.num_bytes_fetched),
        )
    return Position(
        stage="importing",
        done=progress.num_files_done,
        total=progress.num_files,
        facts=file_size(progress.num_bytes_done),
    )


def describe_success(imported: imports_pb2.Import) -> str:
    """The last line of an import with a result."""
    version = imported.version
    return (
        f"{version.dataset}, version {version.number}: {counted(version.num_samples, 'image')},"
        f" {version.num_captioned} captioned"
    )


VIEW = JobView(
    describe_event=describe_event,
    describe_resource=lambda imported: _position(imported.progress),
    describe_success=describe_success,
)

WATCH = WatchCommand(
    group="datasets",
    summary="Follow an import from its first event.",
    view=VIEW,
    method=lambda client: client.datasets.watch_import,
)
WATCH.add_to(app)
dataset_versions.add_to(app)
app.add_typer(dataset_edits.app, name="edit")
app.command("delete")(dataset_edits.delete)
