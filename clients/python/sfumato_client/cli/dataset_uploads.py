"""What `sfumato datasets import` reads on this machine, and how it reaches the server."""

from __future__ import annotations

import asyncio
import errno
import mimetypes
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from sfumato.datasets.v1 import imports_pb2
from sfumato_client.cli.session import Session
from sfumato_client.cli.text import counted, printable
from sfumato_client.cli.validation import check
from sfumato_client.client import Client
from sfumato_client.errors import NotFound, SfumatoError

NUM_PARALLEL_UPLOADS = 4
HUB = "hub:"
EXAMPLE = "example:"
_NO_DIGEST = f"sha256:{'0' * 64}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """How a source is read.

    Attributes:
        on_server: It is a folder on the server.
        as_shards: It is a folder of archives, which are read as one.
        skip_unreadable: Leave out what is no file that can be read.
        hub: What is asked of the Hub, besides the name and the revision.
    """

    on_server: bool
    as_shards: bool
    skip_unreadable: bool
    hub: imports_pb2.HubSource


async def fill_source(
    session: Session,
    client: Client,
    request: imports_pb2.CreateImportRequest,
    source: str,
    options: SourceOptions,
) -> None:
    """Says in the request where to import from, and uploads what is on this machine.

    Raises:
        OSError: no such file; or one that cannot be read, unless those are skipped.
        SfumatoError: the server refuses the import or an upload.
    """
    if options.on_server:
        request.folder.path = source
    elif source.startswith(HUB):
        name, _, revision = source.removeprefix(HUB).partition("@")
        request.hub.CopyFrom(imports_pb2.HubSource(id=name, revision=revision or None))
        request.hub.MergeFrom(options.hub)
    elif source.startswith(EXAMPLE):
        request.example.name = source.removeprefix(EXAMPLE)
    else:
        await _upload(session, client, request, Path(source), options)


async def _upload(
    session: Session,
    client: Client,
    request: imports_pb2.CreateImportRequest,
    path: Path,
    options: SourceOptions,
) -> None:
    """Uploads a folder or an archive, after the server has said that it would take the import at all."""
    paths = [path] if path.is_file() else readable_files(path, skip=options.skip_unreadable)
    if not paths:
        raise typer.BadParameter(f"{path}: no files in it", param_hint="SOURCE")
    await check_taken(client, request)
    files = await upload_all(client, paths)
    if not session.as_json:
        session.print(f"uploaded {counted(len(files), 'file')}")
    if options.as_shards or path.is_file():
        request.archive.files.extend(files)
    else:
        request.upload.files.extend(files)


def readable_files(folder: Path, *, skip: bool) -> list[Path]:
    """The files at the top of a folder, hidden ones and folders left out, by name.

    Raises:
        OSError: what is neither, such as a link that leads nowhere, unless those are skipped.
    """
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in entries:
        if not path.is_file() and not path.is_dir():
            if not skip:
                raise OSError(errno.EINVAL, "is no file that can be read", str(path))
            sys.stderr.write(printable(f"refused: {path.name}: is no file that can be read") + "\n")
    return [path for path in entries if path.is_file()]


async def check_taken(client: Client, request: imports_pb2.CreateImportRequest) -> None:
    """Refuses what the server would refuse whatever is uploaded.

    Raises:
        SfumatoError: the name cannot be one, the dataset is busy or not empty.
    """
    trial = imports_pb2.CreateImportRequest()
    trial.CopyFrom(request)
    trial.validate_only = True
    trial.upload.files.add(file_name="trial.png", digest=_NO_DIGEST)
    check(trial)
    try:
        await client.datasets.create_import(trial)
    except NotFound:
        # Of the upload that is not there: the last thing that is checked.
        return


async def upload_all(client: Client, paths: list[Path]) -> list[imports_pb2.UploadedFile]:
    """Uploads files, a few at once; what the server has already is not sent."""
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
    return [task.result() for task in uploads]
