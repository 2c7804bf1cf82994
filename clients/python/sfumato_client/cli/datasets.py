"""`sfumato datasets`: imports, and what is there."""

from __future__ import annotations

import asyncio
import errno
import mimetypes
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sfumato.datasets.v1 import imports_pb2
from sfumato_client.calls import new_request_id
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
from sfumato_client.cli.text import counted, file_size, moment, printable, state_name
from sfumato_client.cli.validation import check
from sfumato_client.cli.watching import WatchCommand
from sfumato_client.client import Client
from sfumato_client.errors import SfumatoError

NUM_PARALLEL_UPLOADS = 4

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


@app.command("import")
def import_folder(
    context: typer.Context,
    folder: Annotated[str, typer.Argument(help="Images with their captions, in one folder.")],
    name: Annotated[str, typer.Argument(help="The dataset, new or there already.")],
    mode: Annotated[
        Mode | None, typer.Option(help="Refuse a dataset that holds something, or add to it.")
    ] = None,
    on_refused: Annotated[
        OnRefused | None, typer.Option(help="What to do when a file is refused.")
    ] = None,
    caption_column: Annotated[
        str | None, typer.Option(help="Column of metadata.jsonl or .csv that holds captions.")
    ] = None,
    server_side: Annotated[
        bool,
        typer.Option(
            "--server-side", help="FOLDER is on the server, under one of its allowed roots."
        ),
    ] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Check, but create nothing.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    request_id: Annotated[
        str | None, typer.Option(help="UUID; the same one, the same job.")
    ] = None,
) -> None:
    """Import a folder as a new version of a dataset."""
    session = session_of(context)
    if not folder:
        raise typer.BadParameter("must name a folder", param_hint="FOLDER")
    request = imports_pb2.CreateImportRequest(
        request_id=request_id or new_request_id(),
        validate_only=validate_only,
        dataset=name,
        mode=None if mode is None else MODES[mode],
        refused_files=None if on_refused is None else POLICIES[on_refused],
        caption_column=caption_column,
    )

    async def work(client: Client) -> ExitCode:
        if server_side:
            request.folder.path = folder
        else:
            files = await upload_folder(
                session, client, Path(folder), skip=on_refused is OnRefused.SKIP
            )
            request.upload.CopyFrom(imports_pb2.UploadSource(files=files))
        check(request)
        session.reattach = session.repeated_with(request.request_id)
        response = await client.datasets.create_import(request)
        created = response.import_job
        if validate_only or detach:
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
) -> None:
    """Show a dataset, its versions and the samples of the latest."""
    session = session_of(context)

    async def work(client: Client) -> None:
        dataset = await client.datasets.get_dataset(name)
        versions = [version async for version in client.datasets.list_dataset_versions(name)]
        samples = [sample async for sample in client.datasets.list_samples(name)]
        if session.as_json:
            for message in (dataset, *versions, *samples):
                session.print_message(message)
            return
        for version in versions:
            session.print(
                f"version {version.number}: {counted(version.num_samples, 'image')}, {version.num_captioned}"
                f" captioned, {file_size(version.size_bytes)}, {moment(version.create_time)}"
            )
        rows = [
            (sample.file_name, f"{sample.width}x{sample.height}", sample.caption)
            for sample in samples
        ]
        session.print_table(("file", "size", "caption"), rows)

    session.run(work)


async def upload_folder(
    session: Session, client: Client, folder: Path, *, skip: bool
) -> list[imports_pb2.UploadedFile]:
    """Uploads the files at the top of a folder, hidden ones and folders left out; by name.

    Raises:
        OSError: what is neither, such as a link that leads nowhere, unless those are skipped.
    """
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    paths = [path for path in entries if path.is_file()]
    for path in entries:
        if not path.is_file() and not path.is_dir():
            if not skip:
                raise OSError(errno.EINVAL, "is no file that can be read", str(path))
            sys.stderr.write(printable(f"refused: {path.name}: is no file that can be read") + "\n")
    if not paths:
        raise typer.BadParameter(f"{folder}: no files in it", param_hint="FOLDER")
    slots = asyncio.Semaphore(NUM_PARALLEL_UPLOADS)

    async def upload(path: Path) -> imports_pb2.UploadedFile:
        async with slots:
            media_type, _ = mimetypes.guess_type(path.name)
            blob = await client.blobs.upload(path, media_type=media_type or "")
            return imports_pb2.UploadedFile(file_name=path.name, digest=blob.digest)

    try:
        async with asyncio.TaskGroup() as group:
            uploads = [group.create_task(upload(path)) for path in paths]
    except* (SfumatoError, OSError, UnicodeEncodeError) as errors:
        raise errors.exceptions[0] from None
    if not session.as_json:
        session.print(f"uploaded {counted(len(paths), 'file')}")
    return [task.result() for task in uploads]


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
        case "cancel_requested":
            return Milestone(text="cancelling")
        case "succeeded" | "failed" | "cancelled" | None:
            return None


def _position(progress: imports_pb2.ImportProgress) -> Position:
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
